//! Temporary directories of imports, recognisable as dead when their process is, and their way into the store.
//!
//! Each is a pair in `tmp/`: `<id>.lock`, flocked as long as its import lives, then the directory `<id>`. The lock
//! file is made first and removed last, so a directory without one is dead, and a lock that can be taken is too.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags};
use rustix::io::Errno;

use crate::beneath;
use crate::digest::hex;
use crate::error::ImageError;

/// A private temporary directory beside the layers; removed on drop.
#[derive(Debug)]
pub(crate) struct Staging {
    tmp: PathBuf,
    id: String,
    _lock: File,
}

impl Staging {
    /// Makes one in `tmp`.
    pub(crate) fn create(tmp: &Path) -> Result<Staging, ImageError> {
        loop {
            let mut random = [0u8; 8];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
                .map_err(|e| ImageError::store("name a directory in", tmp, e))?;
            let id = format!("{}-{}", std::process::id(), hex(&random));
            let lock_path = tmp.join(format!("{id}.lock"));
            let lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&lock_path);
            let lock = match lock {
                Ok(lock) => lock,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(ImageError::store("create", &lock_path, e)),
            };
            if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue; // a sweep took it for dead in this very moment, and removes it
            }
            if lock.metadata().map_err(|e| ImageError::store("stat", &lock_path, e))?.nlink() == 0 {
                continue;
            }
            let staging = Staging { tmp: tmp.to_path_buf(), id, _lock: lock };
            let path = staging.path();
            DirBuilder::new().mode(0o700).create(&path).map_err(|e| ImageError::store("create", &path, e))?;
            return Ok(staging);
        }
    }

    /// The directory.
    pub(crate) fn path(&self) -> PathBuf {
        self.tmp.join(&self.id)
    }

    /// Makes a new directory in it, the root of a layer to be.
    pub(crate) fn make_root(&self, name: &str) -> Result<(PathBuf, OwnedFd), ImageError> {
        let path = self.path().join(name);
        DirBuilder::new().mode(0o700).create(&path).map_err(|e| ImageError::store("create", &path, e))?;
        let fd = beneath::open_dir(&path).map_err(|e| ImageError::store("open", &path, e))?;
        Ok((path, fd))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // A failure leaves what the next sweep removes.
        if let Ok(dir) = beneath::open_dir(&self.tmp)
            && beneath::remove_tree(dir.as_fd(), OsStr::new(&self.id)).is_ok()
        {
            let _ = std::fs::remove_file(self.tmp.join(format!("{}.lock", self.id)));
        }
    }
}

/// Moves a finished directory to its final name; `false` when another import was first (its content is the same).
pub(crate) fn commit(from: &Path, to: &Path) -> Result<bool, ImageError> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST | Errno::NOTEMPTY) => Ok(false),
        Err(e) => Err(ImageError::store("move a layer to", to, e)),
    }
}

/// Removes what dead imports left in `tmp`; returns how many directories that were.
pub(crate) fn sweep(tmp: &Path) -> Result<usize, ImageError> {
    let dir = match beneath::open_dir(tmp) {
        Ok(dir) => dir,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(e) => return Err(ImageError::store("open", tmp, e)),
    };
    let mut removed = 0;
    for entry in std::fs::read_dir(tmp).map_err(|e| ImageError::store("list", tmp, e))? {
        let name = entry.map_err(|e| ImageError::store("list", tmp, e))?.file_name();
        let Some(text) = name.to_str() else { continue };
        let id = text.strip_suffix(".lock").unwrap_or(text);
        let lock_path = tmp.join(format!("{id}.lock"));
        let lock = match File::open(&lock_path) {
            Ok(lock) => Some(lock),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(ImageError::store("open", &lock_path, e)),
        };
        if let Some(lock) = &lock
            && rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive).is_err()
        {
            continue; // its import lives
        }
        let existed = std::fs::symlink_metadata(tmp.join(id)).is_ok();
        beneath::remove_tree(dir.as_fd(), OsStr::new(id)).map_err(|e| ImageError::store("remove", &tmp.join(id), e))?;
        if lock.is_some() {
            let _ = std::fs::remove_file(&lock_path);
        }
        removed += usize::from(existed);
    }
    Ok(removed)
}
