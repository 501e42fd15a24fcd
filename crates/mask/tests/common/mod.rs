//! What the tests share.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::fs;
use std::path::{Path, PathBuf};

use sloplet_mask::{Config, Key, MaskError, Report, mask_file};
use tempfile::TempDir;

/// A folder that goes with the test, rules and a key.
pub struct Bench {
    pub folder: TempDir,
    pub config: Config,
    pub key: Key,
}

impl Bench {
    pub fn new(rules: &str) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            config: Config::parse(rules).unwrap(),
            key: Key::from_bytes([42; 32]),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Masks a text as a file of this name.
    pub fn mask(&self, name: &str, text: &str) -> Result<(String, Report), MaskError> {
        let source = self.write(name, text);
        let out = self.path(&format!("masked-{name}"));
        let report = mask_file(&source, &self.config, &self.key, &out)?;
        Ok((fs::read_to_string(out).unwrap(), report))
    }

    /// Masks and says why not; nothing may be left behind.
    #[track_caller]
    pub fn refused(&self, name: &str, text: &str) -> String {
        let source = self.write(name, text);
        let before = names(self.folder.path());
        let error = mask_file(&source, &self.config, &self.key, &self.path("masked")).unwrap_err();
        assert_eq!(names(self.folder.path()), before, "something was left behind");
        error.to_string()
    }
}

pub fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The fields of a CSV file without quotes.
pub fn cells(text: &str) -> Vec<Vec<&str>> {
    text.lines().skip(1).map(|line| line.split(',').collect()).collect()
}
