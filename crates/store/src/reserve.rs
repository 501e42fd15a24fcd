//! Space that is kept for the time when there is none.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, StatVfs, fallocate, statvfs};
use rustix::io::Errno;

/// Bytes that are kept: hundreds of changes, and what removing files takes.
const RESERVED: u64 = 4 << 20;

/// With less space than this there is none.
const SCARCE: u64 = 1 << 20;

/// With more than this some is kept again.
const PLENTY: u64 = 4 * RESERVED;

/// With fewer inodes than this there are none.
const SCARCE_INODES: u64 = 16;

/// A file that holds nothing but space.
#[derive(Debug)]
pub(crate) struct Reserve {
    folder: PathBuf,
    kept: AtomicBool,
}

impl Reserve {
    /// That of a folder.
    pub(crate) fn of(folder: &Path) -> Self {
        let reserve = Self { folder: folder.to_owned(), kept: AtomicBool::new(false) };
        reserve.kept.store(reserve.file().exists(), Ordering::Relaxed);
        reserve
    }

    fn file(&self) -> PathBuf {
        self.folder.join("sloplet.reserve")
    }

    /// Releases it where space is scarce, and keeps it again where there is plenty.
    pub(crate) fn tend(&self) {
        let Ok(space) = statvfs(&self.folder) else { return };
        match self.kept.load(Ordering::Relaxed) {
            true if is_scarce(&space) => self.release(),
            false if available(&space) > PLENTY && !is_scarce(&space) => self.keep(),
            _ => {}
        }
    }

    /// Gives the space back.
    pub(crate) fn release(&self) {
        if self.kept.swap(false, Ordering::Relaxed) {
            let _ = std::fs::remove_file(self.file());
        }
    }

    fn keep(&self) {
        match fill(&self.file()) {
            Ok(()) => self.kept.store(true, Ordering::Relaxed),
            Err(_) => drop(std::fs::remove_file(self.file())),
        }
    }
}

fn available(space: &StatVfs) -> u64 {
    space.f_bavail.saturating_mul(space.f_frsize)
}

fn is_scarce(space: &StatVfs) -> bool {
    // Some file systems do not count inodes.
    available(space) < SCARCE || (space.f_files > 0 && space.f_favail < SCARCE_INODES)
}

fn fill(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    match fallocate(&file, FallocateFlags::empty(), 0, RESERVED) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write(file),
        Err(error) => Err(error.into()),
    }
}

fn write(mut file: File) -> io::Result<()> {
    io::copy(&mut io::Read::take(io::repeat(1), RESERVED), &mut file).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_kept_and_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let reserve = Reserve::of(folder.path());
        reserve.tend();
        assert_eq!(std::fs::metadata(reserve.file()).unwrap().len(), RESERVED);
        assert!(Reserve::of(folder.path()).kept.load(Ordering::Relaxed), "the next one finds it");
        reserve.release();
        assert!(!reserve.file().exists());
        reserve.tend();
        assert!(reserve.file().exists());
    }
}
