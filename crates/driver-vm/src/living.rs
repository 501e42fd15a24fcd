//! What is known of machines that live, for engines that come later: a file for each in the data folder, where nobody inside
//! can change it. It goes with the machine, or, if nobody was there to remove it, with the next cleaning.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cache;
use crate::saved::Record;

const FOLDER: &str = "living";

/// The file of one machine. Dropped, it stays.
#[derive(Debug, Clone)]
pub struct Note(PathBuf);

#[derive(Serialize, Deserialize)]
struct Content {
    /// The first process of QEMU's sandbox, and when it was started: numbers are used again.
    process: (i32, u64),
    record: Record,
}

fn folder(data_dir: &Path) -> PathBuf {
    data_dir.join(cache::FOLDER).join(FOLDER)
}

impl Note {
    /// The file of a machine, whether there is one or not.
    pub fn of(data_dir: &Path, id: &str) -> Self {
        Self(folder(data_dir).join(id))
    }

    /// Writes down what a machine is made of.
    pub fn write(&self, pid: i32, record: &Record) -> io::Result<()> {
        if let Some(folder) = self.0.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let content = Content { process: (pid, start_of(pid).unwrap_or(0)), record: record.clone() };
        fs::write(&self.0, serde_json::to_vec(&content)?)
    }

    /// What the machine is made of, if that is known.
    pub fn read(&self) -> Option<Record> {
        read(&self.0).map(|content| content.record)
    }

    /// The machine is gone.
    pub fn remove(&self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn read(path: &Path) -> Option<Content> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// When a process was started, in ticks since the host's boot.
fn start_of(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// Removes what is known of machines that are gone; returns of how many.
pub fn collect(data_dir: &Path) -> usize {
    let files = fs::read_dir(folder(data_dir)).into_iter().flatten().flatten().map(|entry| entry.path());
    let gone = |path: &PathBuf| match read(path) {
        Some(Content { process: (pid, start), .. }) => start_of(pid) != Some(start),
        None => true,
    };
    files.filter(gone).filter(|path| fs::remove_file(path).is_ok()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_goes_with_the_process_it_is_about() {
        let dir = tempfile::tempdir().unwrap();
        let record = Record {
            accel: crate::accel::Accel::Tcg,
            whole: false,
            memory: 1,
            cpus: 1,
            boot: "/b".into(),
            empty: "/e".into(),
            disks: Vec::new(),
            password: "x".into(),
            private_memory: false,
            disks_below: 0,
        };
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let (living, own) = (Note::of(dir.path(), "a"), Note::of(dir.path(), "b"));
        living.write(child.id() as i32, &record).unwrap();
        own.write(std::process::id() as i32, &record).unwrap();
        assert_eq!(collect(dir.path()), 0);
        assert_eq!(living.read().unwrap().password, "x");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(collect(dir.path()), 1);
        assert!(living.read().is_none() && own.read().is_some());
    }
}
