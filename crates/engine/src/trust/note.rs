//! A small file of the data folder: opened by descriptor, its owner's alone, replaced whole.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, fstat, open, openat, renameat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most bytes of it.
const MOST: u64 = 16 << 20;

/// A file by its name in a folder.
#[derive(Debug, Clone)]
pub struct Note {
    folder: PathBuf,
    name: &'static str,
}

impl Note {
    pub fn new(folder: &Path, name: &'static str) -> Self {
        Self { folder: folder.to_owned(), name }
    }

    /// What it says; nothing if there is none. One that somebody else may have written is refused.
    pub fn read<T: DeserializeOwned + Default>(&self) -> io::Result<T> {
        match open_folder(&self.folder) {
            Err(Errno::NOENT) => Ok(T::default()),
            folder => self.read_in(&folder?),
        }
    }

    /// Changes what it says.
    pub fn change<T>(&self, change: impl FnOnce(&mut T)) -> io::Result<()>
    where
        T: Serialize + DeserializeOwned + Default,
    {
        DirBuilder::new().mode(0o700).recursive(true).create(&self.folder)?;
        let folder = open_folder(&self.folder)?;
        let (lock, draft) = (format!("{}.lock", self.name), format!("{}.draft", self.name));
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = openat(&folder, lock, flags, Mode::RUSR | Mode::WUSR)?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let mut value = self.read_in(&folder)?;
        change(&mut value);
        // One that a killed process left; nobody else has the lock.
        match unlinkat(&folder, &draft, rustix::fs::AtFlags::empty()) {
            Err(error) if error != Errno::NOENT => return Err(error.into()),
            _ => {}
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&folder, &draft, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(&serde_json::to_vec_pretty(&value)?)?;
        file.sync_all()?;
        Ok(renameat(&folder, &draft, &folder, self.name)?)
    }

    fn read_in<T: DeserializeOwned + Default>(&self, folder: &OwnedFd) -> io::Result<T> {
        let named = |why: &str| io::Error::other(format!("{}: {why}", self.folder.join(self.name).display()));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(folder, self.name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(T::default()),
            Err(Errno::LOOP) => return Err(named("it is a symlink")),
            file => file?,
        };
        let stat = fstat(&file)?;
        let own = stat.st_uid == 0 || stat.st_uid == geteuid().as_raw();
        if !own || stat.st_mode & 0o022 != 0 || !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(named("somebody else may have written it: remove it"));
        }
        let mut bytes = Vec::new();
        File::from(file).take(MOST).read_to_end(&mut bytes)?;
        serde_json::from_slice(&bytes).map_err(|error| named(&error.to_string()))
    }
}

fn open_folder(path: &Path) -> Result<OwnedFd, Errno> {
    open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}
