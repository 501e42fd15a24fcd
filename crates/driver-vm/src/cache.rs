//! Files that are made once and kept in the data folder.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};
use sloplet_engine::DriverError;

use crate::failed;

/// The folder of this driver within the data folder.
pub const FOLDER: &str = "vm";

/// A short name for all that something depends on.
pub fn key(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}

/// What tells whether a file is still the same, without reading it.
pub fn stamp(path: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).map_or_else(
        |_| String::new(),
        |meta| format!("{}:{}:{}:{}.{}", meta.dev(), meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()),
    )
}

/// The folder `name` in the cache, filled by `fill` if it is not there.
pub fn folder(
    data_dir: &Path,
    name: &str,
    fill: impl FnOnce(&Path) -> Result<(), DriverError>,
) -> Result<PathBuf, DriverError> {
    match claim(data_dir, name)? {
        Claim::Kept(path) => Ok(path),
        Claim::Missing(draft) => {
            fill(draft.place())?;
            draft.keep()
        }
    }
}

/// A folder of the cache, for one who needs it.
#[derive(Debug)]
pub enum Claim {
    /// It is there.
    Kept(PathBuf),
    /// It has to be filled.
    Missing(Draft),
}

/// A folder that is being filled, by nobody else. Dropped, it is removed; whoever is killed meanwhile leaves it, and the next
/// one removes it.
#[derive(Debug)]
pub struct Draft {
    draft: PathBuf,
    path: PathBuf,
    lock: PathBuf,
    _held: File,
}

const STEP: &str = "keep what virtual machines are made of";

/// Finds the folder `name`, or begins it. Waits for whoever is filling it.
pub fn claim(data_dir: &Path, name: &str) -> Result<Claim, DriverError> {
    let base = data_dir.join(FOLDER);
    let path = base.join(name);
    if path.is_dir() {
        return Ok(Claim::Kept(path));
    }
    DirBuilder::new().recursive(true).mode(0o700).create(&base).map_err(|error| failed(STEP, error))?;
    let lock = base.join(format!("{name}.lock"));
    let held = File::create(&lock).map_err(|error| failed(STEP, error))?;
    flock(&held, FlockOperation::LockExclusive).map_err(|error| failed(STEP, error))?;
    if path.is_dir() {
        return Ok(Claim::Kept(path));
    }
    let draft = base.join(format!("{name}.draft"));
    remove(&draft).map_err(|error| failed(STEP, error))?;
    DirBuilder::new().mode(0o755).create(&draft).map_err(|error| failed(STEP, error))?;
    Ok(Claim::Missing(Draft { draft, path, lock, _held: held }))
}

impl Draft {
    /// The folder to be filled.
    pub fn place(&self) -> &Path {
        &self.draft
    }

    /// It is whole.
    pub fn keep(self) -> Result<PathBuf, DriverError> {
        fs::rename(&self.draft, &self.path).map_err(|error| failed(STEP, error))?;
        Ok(self.path.clone())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = remove(&self.draft);
        let _ = fs::remove_file(&self.lock);
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes what was made of things that are gone, and what a killed process was making. Returns how many those were.
pub fn collect(data_dir: &Path) -> usize {
    let base = data_dir.join(FOLDER);
    let mut removed = 0;
    for entry in fs::read_dir(&base).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let orphan = match name.strip_suffix(".draft") {
            Some(stem) => {
                let lock = File::open(base.join(format!("{stem}.lock")));
                lock.map_or(true, |lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok())
            }
            None => fs::read_to_string(path.join(SOURCE)).is_ok_and(|source| !Path::new(source.trim()).exists()),
        };
        if orphan && remove(&path).is_ok() {
            removed += 1;
        }
    }
    removed
}

/// A file in a kept folder that names what it was made of.
pub const SOURCE: &str = "source";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_filled_once_and_removed_with_its_source() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("layer");
        fs::create_dir(&source).unwrap();
        let fill = |path: &Path| {
            fs::write(path.join(SOURCE), source.display().to_string()).unwrap();
            Ok(())
        };
        let made = folder(dir.path(), "disk-1", fill).unwrap();
        assert_eq!(folder(dir.path(), "disk-1", |_| unreachable!()).unwrap(), made);
        assert!(folder(dir.path(), "disk-2", |_| Err(failed("x", "y"))).is_err());
        fs::create_dir(dir.path().join("vm/disk-3.draft")).unwrap();
        assert_eq!(collect(dir.path()), 1, "the draft of somebody who was killed");
        assert!(made.is_dir());
        fs::remove_dir(&source).unwrap();
        assert_eq!(collect(dir.path()), 1);
        assert!(!made.exists());
    }
}
