//! A folder and all below it, one entry at a time, without following symlinks.
//!
//! The walk goes from descriptor to descriptor, so a folder that is renamed away or replaced by a symlink under the
//! walker's feet never leads it elsewhere.

use std::ffi::{CStr, CString};

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;

/// Levels of folders; each holds a descriptor and a buffer.
pub(crate) const MAX_DEPTH: usize = 128;

/// A folder opened for reading its entries, never through a symlink.
pub(crate) const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// A walk.
pub(crate) struct Walk {
    levels: Vec<Level>,
    /// Of the current folder, below the first; empty or ending with a slash.
    path: Vec<u8>,
}

struct Level {
    dir: Dir,
    path_len: usize,
}

impl Walk {
    /// Begins with the entries of `folder`, which must be open for reading.
    pub(crate) fn new(folder: OwnedFd) -> Result<Self, Errno> {
        Ok(Self { levels: vec![Level { dir: Dir::new(folder)?, path_len: 0 }], path: Vec::new() })
    }

    /// The next entry of the current folder, or of the one above once that is done; `None` at the end of the walk.
    pub(crate) fn next(&mut self) -> Option<CString> {
        loop {
            let level = self.levels.last_mut()?;
            match level.dir.read() {
                Some(Ok(entry)) => {
                    let name = entry.file_name();
                    if name != c"." && name != c".." {
                        return Some(name.into());
                    }
                }
                // A folder that cannot be read further (it was removed) is over.
                Some(Err(_)) | None => {
                    self.path.truncate(level.path_len);
                    self.levels.pop();
                }
            }
        }
    }

    /// The folder of the entry that [`Self::next`] returned last.
    pub(crate) fn folder(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.levels.last().ok_or(Errno::NOENT)?.dir.fd()
    }

    /// That entry's path below the first folder.
    pub(crate) fn path_of(&self, name: &CStr) -> Vec<u8> {
        [&self.path, name.to_bytes()].concat()
    }

    /// How many folders deep the walk is; 1 at first.
    pub(crate) fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Goes into a folder, the last entry returned.
    pub(crate) fn descend(&mut self, name: &CStr) -> Result<(), Errno> {
        if self.levels.len() >= MAX_DEPTH {
            return Err(Errno::NAMETOOLONG);
        }
        let folder = rustix::fs::openat(self.folder()?, name, FOLDER, Mode::empty())?;
        self.levels.push(Level { dir: Dir::new(folder)?, path_len: self.path.len() });
        self.path.extend_from_slice(name.to_bytes());
        self.path.push(b'/');
        Ok(())
    }
}
