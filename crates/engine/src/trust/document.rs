//! A `sloplet.toml` as it was read, once: what is vouched for is what is used.

use std::fs::File as HostFile;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat};
use rustix::io::Errno;
use sloplet_policy::file::{File, FileError, MOST, NAME};

/// A file as it was read.
#[derive(Debug)]
pub struct Document {
    /// The real path of its folder, and its name there.
    pub path: PathBuf,
    /// The SHA-256 of its content.
    pub sha256: String,
    /// Where its content really lies, if its name is a symlink's.
    real: PathBuf,
    text: String,
}

impl Document {
    /// The one in a folder, if there is one.
    pub fn find(folder: &Path) -> Result<Option<Self>, FileError> {
        let path = folder.join(NAME);
        match path.is_file() {
            true => Self::read(&path).map(Some),
            false => Ok(None),
        }
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let unreadable = |source| FileError::Unreadable { path: path.to_owned(), source };
        let (folder, settled) = place(path)?;
        let name = settled.file_name().unwrap_or_default();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = openat(&folder, name, flags, Mode::empty()).map_err(|error| unreadable(error.into()))?;
        let real = real_path(&file).map_err(unreadable)?;
        if FileType::from_raw_mode(fstat(&file).map_err(|error| unreadable(error.into()))?.st_mode).is_dir() {
            return Err(unreadable(Errno::ISDIR.into()));
        }
        let mut bytes = Vec::new();
        HostFile::from(file).take(MOST as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() > MOST {
            return Err(unreadable(io::Error::other("it is larger than 1 MiB")));
        }
        let sha256 = sloplet_ledger::sha256(&bytes);
        let text = String::from_utf8(bytes).map_err(|_| unreadable(io::Error::other("it is no UTF-8 text")))?;
        Ok(Self { path: settled, sha256, real, text })
    }

    /// What it says.
    pub fn file(&self) -> Result<File, FileError> {
        File::at(&self.path, &self.text)
    }

    /// The first of these folders that it, or what it is a link to, lies in.
    pub fn lies_in(&self, folders: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
        folders.into_iter().find(|folder| self.path.starts_with(folder) || self.real.starts_with(folder))
    }

    /// The folders around it, and around what it is a link to, and they themselves.
    pub fn ancestors(&self) -> impl Iterator<Item = PathBuf> {
        self.path.ancestors().chain(self.real.ancestors()).map(Path::to_owned)
    }
}

/// The real path of a file's folder, and its name there; the file need not exist.
pub fn settled(path: &Path) -> Result<PathBuf, FileError> {
    place(path).map(|(_, path)| path)
}

fn place(path: &Path) -> Result<(OwnedFd, PathBuf), FileError> {
    let unreadable = |source| FileError::Unreadable { path: path.to_owned(), source };
    let whole = std::path::absolute(path).map_err(unreadable)?;
    let (Some(folder), Some(name)) = (whole.parent(), whole.file_name()) else {
        return Err(unreadable(Errno::ISDIR.into()));
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = open(folder, flags, Mode::empty()).map_err(|error| unreadable(error.into()))?;
    let path = real_path(&folder).map_err(unreadable)?.join(name);
    Ok((folder, path))
}

/// Where an open file is now.
fn real_path(file: &OwnedFd) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}
