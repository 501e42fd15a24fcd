//! What a client has open.

use std::collections::BTreeMap;
use std::fs::{File, ReadDir};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Refusal;

/// Files and folders that may be open at once.
pub(super) const MOST: usize = 256;

/// Something that is open.
pub(super) enum Handle {
    File {
        file: File,
        /// Writes go to the end, whatever offset they name.
        append: bool,
        /// Where this handle made it, if it did.
        made: Option<PathBuf>,
    },
    Folder {
        entries: ReadDir,
        path: PathBuf,
    },
}

/// All that is open.
#[derive(Default)]
pub(super) struct Handles {
    open: BTreeMap<u32, Handle>,
    next: u32,
}

impl Handles {
    /// Fails before anything is opened or made.
    pub(super) fn check_room(&self) -> Result<(), Refusal> {
        if self.open.len() < MOST {
            return Ok(());
        }
        Err(Refusal::Os(std::io::Error::other(format!("at most {MOST} files can be open"))))
    }

    pub(super) fn add(&mut self, handle: Handle) -> u32 {
        // Never used again: a late request must not meet another file.
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.open.insert(number, handle);
        number
    }

    pub(super) fn get(&mut self, name: &[u8]) -> Result<&mut Handle, Refusal> {
        self.open.get_mut(&number(name)?).ok_or(Refusal::NoHandle)
    }

    pub(super) fn file(&mut self, name: &[u8]) -> Result<&File, Refusal> {
        match self.get(name)? {
            Handle::File { file, .. } => Ok(file),
            Handle::Folder { .. } => Err(Refusal::NoHandle),
        }
    }

    pub(super) fn close(&mut self, name: &[u8]) -> Result<(), Refusal> {
        self.open.remove(&number(name)?).map(drop).ok_or(Refusal::NoHandle)
    }

    /// The client is gone: what it began to write and never closed is removed, if it is still in its place.
    pub(super) fn abandon(&mut self) {
        for handle in std::mem::take(&mut self.open).into_values() {
            if let Handle::File { file, made: Some(path), .. } = handle
                && is_same(&file, &path)
            {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

fn number(name: &[u8]) -> Result<u32, Refusal> {
    name.try_into().map(u32::from_be_bytes).map_err(|_| Refusal::NoHandle)
}

fn is_same(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}
