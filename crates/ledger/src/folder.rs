//! Where everything is, and the lock.
//!
//! ```text
//! ledger/lock             held while anything is appended, cut off or removed
//! ledger/00000001.log     a segment: records, one a line
//! ledger/heads            signed heads, one a line
//! ledger/pruned           the signed checkpoint, once segments were removed
//! ledger/key, key.pub     the signing key (PKCS #8) and its public half
//! ledger/outputs/         what commands printed
//! ```

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, StatVfsMountFlags, flock};

use crate::error::LedgerError;

/// Bytes that are space enough for what waits for the writer.
const ENOUGH: u64 = 16 << 20;

/// Inodes that are enough for a new segment.
const ENOUGH_INODES: u64 = 16;

/// A ledger's folder.
#[derive(Debug, Clone)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Below the data folder.
    pub fn below(data: &Path) -> Self {
        Self(data.join("ledger"))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn key(&self) -> PathBuf {
        self.0.join("key")
    }

    pub fn public_key(&self) -> PathBuf {
        self.0.join("key.pub")
    }

    pub fn heads(&self) -> PathBuf {
        self.0.join("heads")
    }

    pub fn checkpoint(&self) -> PathBuf {
        self.0.join("pruned")
    }

    pub fn outputs(&self) -> PathBuf {
        self.0.join("outputs")
    }

    pub fn segment(&self, number: u32) -> PathBuf {
        self.0.join(format!("{number:08}.log"))
    }

    /// Whether there is so much space that all that may wait for the writer finds a place.
    pub fn has_space(&self) -> bool {
        let above = self.0.parent().unwrap_or(&self.0);
        let Ok(space) = rustix::fs::statvfs(&self.0).or_else(|_| rustix::fs::statvfs(above)) else { return false };
        let read_only = space.f_flag.contains(StatVfsMountFlags::RDONLY);
        // Some file systems do not count inodes.
        let inodes = space.f_files == 0 || space.f_favail >= ENOUGH_INODES;
        !read_only && inodes && space.f_bavail.saturating_mul(space.f_frsize) >= ENOUGH
    }

    /// Makes it, for its owner only.
    pub fn create(&self) -> Result<(), LedgerError> {
        private_folder(&self.0)
    }

    /// Brings the names in it to the disk.
    pub fn sync(&self) -> Result<(), LedgerError> {
        let synced = File::open(&self.0).and_then(|folder| folder.sync_all());
        synced.map_err(LedgerError::io("sync", &self.0))
    }

    /// The segments' numbers in order.
    pub fn segments(&self) -> Result<Vec<u32>, LedgerError> {
        let entries = match std::fs::read_dir(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(LedgerError::io("list", &self.0))?,
        };
        let mut numbers = Vec::new();
        for entry in entries {
            let name = entry.map_err(LedgerError::io("list", &self.0))?.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(".log"));
            numbers.extend(number.filter(|digits| digits.len() == 8).and_then(|digits| digits.parse::<u32>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The lock, not yet taken.
    pub fn open_lock(&self) -> Result<Lock, LedgerError> {
        let path = self.0.join("lock");
        let file = private().create(true).truncate(false).open(&path).map_err(LedgerError::io("open", &path))?;
        Ok(Lock { file, path })
    }

    /// Waits until nobody writes, for a reader. `None` if there is no lock, or none can be had, as on a read-only copy.
    pub fn pause_writers(&self) -> Option<File> {
        let file = File::open(self.0.join("lock")).ok()?;
        flock(&file, FlockOperation::LockShared).ok()?;
        Some(file)
    }
}

/// Lets one process write at a time.
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    pub fn take(&self) -> Result<Held<'_>, LedgerError> {
        loop {
            match flock(&self.file, FlockOperation::LockExclusive) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(LedgerError::io("lock", &self.path)(error.into())),
                Ok(()) => break,
            }
        }
        let held = Held(&self.file);
        // A lock that was removed locks nobody out.
        let links = self.file.metadata().map_err(LedgerError::io("lock", &self.path))?.nlink();
        if links == 0 { Err(LedgerError::io("lock", &self.path)(ErrorKind::NotFound.into())) } else { Ok(held) }
    }
}

/// The lock, until dropped.
pub(crate) struct Held<'a>(&'a File);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

/// For reading and writing by its owner only.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

/// Makes a folder that only its owner can enter.
pub(crate) fn private_folder(path: &Path) -> Result<(), LedgerError> {
    match DirBuilder::new().mode(0o700).recursive(true).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(LedgerError::io("make", path)(error)),
        _ => Ok(()),
    }
}

/// The file's content, if it exists.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, LedgerError> {
    match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        content => content.map(Some).map_err(LedgerError::io("read", path)),
    }
}

/// Replaces a file as a whole, on the disk too. The caller holds the lock.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<(), LedgerError> {
    let beside = path.with_extension("new");
    let written = || -> io::Result<()> {
        let mut file = private().create(true).truncate(true).open(&beside)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    written().map_err(LedgerError::io("write", path))
}

/// Where the last complete line ends.
pub(crate) fn complete(file: &mut File) -> io::Result<u64> {
    let mut end = file.seek(SeekFrom::End(0))?;
    let mut last = [0];
    if end > 0 {
        read_at(file, end - 1, &mut last)?;
    }
    if last == *b"\n" {
        return Ok(end);
    }
    let mut chunk = vec![0; 64 * 1024];
    while end > 0 {
        let size = end.min(chunk.len() as u64);
        let start = end - size;
        let part = &mut chunk[..usize::try_from(size).unwrap_or_default()];
        read_at(file, start, part)?;
        if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// The line that ends at `end` (just after a line's end), without its end, and where it starts.
pub(crate) fn line_before(file: &mut File, end: u64) -> io::Result<(u64, Vec<u8>)> {
    let mut line = Vec::new();
    let mut at = end.saturating_sub(1);
    while at > 0 {
        let start = at.saturating_sub(4096);
        let mut part = vec![0; usize::try_from(at - start).unwrap_or_default()];
        read_at(file, start, &mut part)?;
        if let Some(found) = part.iter().rposition(|byte| *byte == b'\n') {
            line.splice(..0, part.drain(found + 1..));
            return Ok((start + found as u64 + 1, line));
        }
        line.splice(..0, part);
        at = start;
    }
    Ok((0, line))
}

fn read_at(file: &mut File, at: u64, into: &mut [u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(into)
}
