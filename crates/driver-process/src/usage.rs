//! How much a sandbox has written.
//!
//! What is measured is being changed by hostile programs at the same time: nothing here follows a symlink, and what
//! cannot be measured counts as too much.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, chmodat, openat, statat};
use rustix::io::Errno;

/// What a sandbox may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Bytes on the disk, of all files together.
    pub bytes: u64,
    /// Files and folders.
    pub files: u64,
}

/// Folders nested deeper than this are too deep to be measured with a reasonable number of descriptors.
const MAX_DEPTH: usize = 256;

/// Whether what is in `folder` exceeds the allowance.
pub fn exceeds(folder: &Path, allowance: Allowance) -> bool {
    let top = match open(CWD, folder) {
        Ok(top) => top,
        // Removed already.
        Err(Errno::NOENT) => return false,
        Err(_) => return true,
    };
    let (mut bytes, mut files) = (0u64, 0u64);
    let Ok(listing) = Dir::new(top) else { return true };
    let mut listings = vec![listing];
    while let Some(listing) = listings.last_mut() {
        let entry = match listing.read() {
            None => {
                listings.pop();
                continue;
            }
            Some(Ok(entry)) => entry,
            // A folder that vanishes while it is read ends; anything else is not measurable.
            Some(Err(Errno::NOENT)) => {
                listings.pop();
                continue;
            }
            Some(Err(_)) => return true,
        };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Ok(parent) = listing.fd() else { return true };
        let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue,
            Err(_) => return true,
        };
        files += 1;
        bytes = bytes.saturating_add((stat.st_blocks as u64).saturating_mul(512));
        if bytes > allowance.bytes || files > allowance.files {
            return true;
        }
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            match open(parent, name).and_then(Dir::new) {
                Ok(inner) if listings.len() < MAX_DEPTH => listings.push(inner),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {} // gone, or something else by now
                _ => return true,
            }
        }
    }
    false
}

/// Opens a folder; a program that closed its own folder (to hide what it writes there through a descriptor) has it
/// opened again.
fn open(parent: impl std::os::fd::AsFd, name: impl rustix::path::Arg + Copy) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(&parent, name, flags, Mode::empty()) {
        // Does not happen to root. For others this can reach, by a symlink put there in this very moment, no more than
        // the program itself could change.
        Err(Errno::ACCESS) => {
            chmodat(&parent, name, Mode::RWXU, AtFlags::empty())?;
            openat(&parent, name, flags, Mode::empty())
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn bytes_and_files_are_counted_wherever_they_are() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/file"), vec![1; 1 << 20]).unwrap();
        let with = |bytes, files| exceeds(dir.path(), Allowance { bytes, files });
        assert!(!with(2 << 20, 3));
        assert!(with(2 << 20, 2));
        assert!(with(1 << 19, 3));
    }

    #[test]
    fn what_a_symlink_leads_to_is_not_counted() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/usr", dir.path().join("link")).unwrap();
        assert!(!exceeds(dir.path(), Allowance { bytes: 1 << 16, files: 1 }));
    }

    #[test]
    fn what_is_too_deep_to_be_measured_is_too_much_and_what_is_gone_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut path = dir.path().to_owned();
        for _ in 0..MAX_DEPTH + 1 {
            path.push("d");
        }
        fs::create_dir_all(&path).unwrap();
        let allowance = Allowance { bytes: u64::MAX, files: u64::MAX };
        assert!(exceeds(dir.path(), allowance));
        assert!(!exceeds(&dir.path().join("gone"), allowance));
    }
}
