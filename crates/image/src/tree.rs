//! A directory as a source: walked without following anything, packed into a canonical tar, fingerprinted.
//!
//! A directory import goes through the same unpacker as every other image, so the same checks and caps hold for it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::beneath::{open_dir, open_dir_beneath, open_real_dir};
use crate::digest::hex;

/// Deeper trees would cost a descriptor per level; the unpacker refuses them anyway.
const MAX_DEPTH: usize = 256;

/// A directory to be read.
pub(crate) struct Tree {
    path: PathBuf,
    /// The directory itself, where its path may lead elsewhere by now.
    open: Option<OwnedFd>,
    /// Device and inode of a directory to leave out: the store itself, when it lies inside.
    exclude: Option<(u64, u64)>,
    /// Whether names that mean "removed" to an unpacker of images are names like others.
    whole: bool,
}

pub(crate) type Visit<'v> = dyn FnMut(BorrowedFd<'_>, &OsStr, &Path, &Stat) -> io::Result<()> + 'v;

impl Tree {
    /// A directory by its real path: no symlink on the way is followed.
    pub(crate) fn new(path: &Path, exclude: Option<(u64, u64)>) -> Self {
        Tree { path: path.to_path_buf(), open: None, exclude, whole: false }
    }

    /// A directory that is open, with everything in it.
    pub(crate) fn of_open(folder: OwnedFd) -> Self {
        Tree { path: PathBuf::new(), open: Some(folder), exclude: None, whole: true }
    }

    /// A layer of the store, with everything in it.
    pub(crate) fn of_layer(path: &Path) -> Self {
        Tree { path: path.to_path_buf(), open: None, exclude: None, whole: true }
    }

    /// Changes whenever anything in the tree changes; reads no content.
    pub(crate) fn fingerprint(&self) -> io::Result<String> {
        let mut hasher = Sha256::new();
        self.walk(&mut |_, _, path, stat| {
            hasher.update(path.as_os_str().as_bytes());
            let numbers = [
                stat.st_ino,
                u64::from(stat.st_mode),
                stat.st_size as u64,
                stat.st_mtime as u64,
                stat.st_mtime_nsec,
                stat.st_ctime as u64,
                stat.st_ctime_nsec,
            ];
            hasher.update([0]);
            for number in numbers {
                hasher.update(number.to_le_bytes());
            }
            Ok(())
        })?;
        Ok(hex(&hasher.finalize()))
    }

    /// Writes the tree as a tar: names sorted, numeric owners, whole seconds.
    pub(crate) fn write_tar(&self, out: impl Write) -> io::Result<()> {
        let mut builder = tar::Builder::new(out);
        let mut first_links: HashMap<(u64, u64), PathBuf> = HashMap::new();
        self.walk(&mut |dir, name, path, stat| {
            let mut header = tar::Header::new_gnu();
            header.set_mode(stat.st_mode & 0o7777);
            header.set_uid(u64::from(stat.st_uid));
            header.set_gid(u64::from(stat.st_gid));
            header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
            header.set_size(0);
            let kind = FileType::from_raw_mode(stat.st_mode);
            if kind != FileType::Directory && stat.st_nlink > 1 {
                if let Some(first) = first_links.get(&(stat.st_dev, stat.st_ino)) {
                    header.set_entry_type(tar::EntryType::Link);
                    return builder.append_link(&mut header, path, first);
                }
                first_links.insert((stat.st_dev, stat.st_ino), path.to_path_buf());
            }
            match kind {
                FileType::Directory => {
                    header.set_entry_type(tar::EntryType::Directory);
                    builder.append_data(&mut header, path, io::empty())
                }
                FileType::Symlink => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
                    append_symlink(&mut builder, &mut header, path, target.to_bytes())
                }
                FileType::RegularFile => {
                    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
                    let file = File::from(rustix::fs::openat(dir, name, flags, Mode::empty())?);
                    let size = file.metadata()?.len();
                    header.set_entry_type(tar::EntryType::Regular);
                    header.set_size(size);
                    // The file may shrink or grow meanwhile; the entry has the size its header says.
                    builder.append_data(&mut header, path, file.chain(io::repeat(0)).take(size))
                }
                // Recorded, so that the unpacker counts it among what it leaves out.
                _ => {
                    header.set_entry_type(tar::EntryType::Fifo);
                    builder.append_data(&mut header, path, io::empty())
                }
            }
        })?;
        builder.into_inner()?.flush()
    }

    /// Visits everything below the top, folders before what is in them and names in order.
    pub(crate) fn walk(&self, visit: &mut Visit<'_>) -> io::Result<()> {
        let root = match &self.open {
            Some(folder) => open_dir_beneath(folder.as_fd(), b"").map_err(io::Error::from),
            None if self.whole => open_dir(&self.path),
            None => open_real_dir(&self.path),
        };
        let root = root.map_err(|e| named(e, Path::new("")))?;
        let device = rustix::fs::fstat(&root)?.st_dev;
        self.walk_dir(root.as_fd(), Path::new(""), device, 0, visit)
    }

    fn walk_dir(
        &self,
        dir: BorrowedFd<'_>,
        path: &Path,
        device: u64,
        depth: usize,
        visit: &mut Visit<'_>,
    ) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Err(named(io::Error::other("directories nested too deeply"), path));
        }
        let mut names = Vec::new();
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let bytes = entry.file_name().to_bytes();
            // `.wh.` names mean "removed" to an unpacker; in a plain directory they mean nothing and stay out.
            if !matches!(bytes, b"." | b"..") && (self.whole || !bytes.starts_with(b".wh.")) {
                names.push(OsStr::from_bytes(bytes).to_owned());
            }
        }
        names.sort();
        for name in names {
            let path = path.join(&name);
            let stat = rustix::fs::statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| named(e.into(), &path))?;
            if self.exclude == Some((stat.st_dev, stat.st_ino)) {
                continue;
            }
            visit(dir, &name, &path, &stat).map_err(|e| named(e, &path))?;
            // Other file systems mounted inside (a live /proc, say) are left out, as with tar --one-file-system.
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_dev == device {
                let child = match open_dir_beneath(dir, name.as_bytes()) {
                    Err(Errno::XDEV) => continue,
                    Err(Errno::ACCESS) if self.whole && stat.st_uid == rustix::process::geteuid().as_raw() => {
                        self.walk_shut(dir, &name, &path, &stat, depth, visit)?;
                        continue;
                    }
                    other => other.map_err(|e| named(e.into(), &path))?,
                };
                self.walk_dir(child.as_fd(), &path, device, depth + 1, visit)?;
            }
        }
        Ok(())
    }
}

impl Tree {
    /// An ordinary user's own folder in a layer, which somebody inside has shut: it is opened for as long as this takes.
    fn walk_shut(
        &self,
        dir: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
        stat: &Stat,
        depth: usize,
        visit: &mut Visit<'_>,
    ) -> io::Result<()> {
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        rustix::fs::chmodat(dir, name, mode | Mode::RWXU, AtFlags::empty()).map_err(|e| named(e.into(), path))?;
        let walked = match open_dir_beneath(dir, name.as_bytes()) {
            Ok(child) => self.walk_dir(child.as_fd(), path, stat.st_dev, depth + 1, visit),
            Err(error) => Err(named(error.into(), path)),
        };
        rustix::fs::chmodat(dir, name, mode, AtFlags::empty()).map_err(|e| named(e.into(), path))?;
        walked
    }
}

/// `append_link` would normalise the target's text; a symbolic link keeps its text, byte for byte.
fn append_symlink<W: Write>(
    builder: &mut tar::Builder<W>,
    header: &mut tar::Header,
    path: &Path,
    target: &[u8],
) -> io::Result<()> {
    if header.set_link_name_literal(target).is_err() {
        let mut long = tar::Header::new_gnu();
        long.set_entry_type(tar::EntryType::GNULongLink);
        long.set_size(target.len() as u64 + 1);
        long.set_path("././@LongLink")?;
        long.set_cksum();
        builder.append(&long, target.chain(&[0u8][..]))?;
    }
    builder.append_data(header, path, io::empty())
}

fn named(error: io::Error, path: &Path) -> io::Error {
    if error.get_ref().is_some() {
        return error; // named already, or worded by us
    }
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Chunks on the way from the packing thread to the unpacker. A channel rather than a pipe: no SIGPIPE.
pub(crate) struct ChunkWriter(pub(crate) SyncSender<Vec<u8>>);

impl Write for ChunkWriter {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.send(buf.to_vec()).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The other end of [`ChunkWriter`].
pub(crate) struct ChunkReader {
    chunks: Receiver<Vec<u8>>,
    current: io::Cursor<Vec<u8>>,
}

impl ChunkReader {
    pub(crate) fn new(chunks: Receiver<Vec<u8>>) -> Self {
        ChunkReader { chunks, current: io::Cursor::new(Vec::new()) }
    }
}

impl Read for ChunkReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let n = self.current.read(buf)?;
            if n > 0 || buf.is_empty() {
                return Ok(n);
            }
            match self.chunks.recv() {
                Ok(chunk) => self.current = io::Cursor::new(chunk),
                Err(_) => return Ok(0),
            }
        }
    }
}
