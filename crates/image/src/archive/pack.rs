//! Writes layers as a tar with everything that they hold.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::LAYERS;
use crate::attributes::{self, MAX_ATTRIBUTE};
use crate::beneath;
use crate::sparse;
use crate::tarstream::{ATTRIBUTE, BLOCK, MAX_EXTENSION_BYTES};
use crate::tree::Tree;

/// Bytes at once.
const CHUNK: usize = 256 << 10;

/// The largest size that fits into a plain header.
const PLAIN_SIZE: u64 = 1 << 33;

/// Bytes and entries of a layer in an archive.
pub(super) fn measure(name: &str, layer: &Path, path_bytes: usize) -> io::Result<(u64, u64)> {
    let mut packer = Packer::new(io::sink(), path_bytes);
    packer.measuring = true;
    packer.layer(name, layer)?;
    Ok((packer.bytes, packer.entries))
}

/// A tar being written.
pub(super) struct Packer<W> {
    to: W,
    buffer: Vec<u8>,
    /// The longest path, and the most of a path, that whoever unpacks it takes.
    path_bytes: usize,
    /// Files of several names: the first of them, and how many are still to come.
    links: HashMap<(u64, u64), (Vec<u8>, u64)>,
    /// Only count.
    measuring: bool,
    bytes: u64,
    entries: u64,
}

/// What is said of one entry, beside its stat.
#[derive(Default)]
struct Entry<'a> {
    path: &'a [u8],
    kind: u8,
    link: &'a [u8],
    /// Bytes that follow.
    size: u64,
    /// The size of a file with holes.
    sparse: Option<u64>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl<W: Write> Packer<W> {
    pub(super) fn new(to: W, path_bytes: usize) -> Self {
        Self {
            to,
            buffer: vec![0; CHUNK.max(MAX_ATTRIBUTE)],
            path_bytes,
            links: HashMap::new(),
            measuring: false,
            bytes: 0,
            entries: 0,
        }
    }

    /// Writes a file that is there already.
    pub(super) fn document(&mut self, path: &[u8], content: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_entry_type(tar::EntryType::Regular);
        header.as_old_mut().name[..path.len()].copy_from_slice(path);
        header.set_size(content.len() as u64);
        header.set_cksum();
        self.put(header.as_bytes())?;
        self.put(content)?;
        self.fill(content.len() as u64)
    }

    /// Writes a layer with all that is in it.
    pub(super) fn layer(&mut self, name: &str, root: &Path) -> io::Result<()> {
        self.links.clear();
        let top = [LAYERS, name.as_bytes(), b"/"].concat();
        let dir = beneath::open_dir(root)?;
        let attributes = attributes::of(dir.as_fd(), &mut self.buffer)?;
        self.head(&rustix::fs::fstat(&dir)?, Entry { path: &top, kind: b'5', attributes, ..Entry::default() })?;
        let path_bytes = self.path_bytes;
        Tree::of_layer(root).walk(&mut |dir, name, path, stat| {
            let inside = path.as_os_str().as_bytes();
            if inside.len() > path_bytes {
                return Err(io::Error::other(format!("a path of more than {path_bytes} bytes cannot be exported")));
            }
            self.entry(dir, name, &[&top, inside].concat(), top.len(), stat)
        })
    }

    /// The end of the archive.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.put(&[0; 2 * BLOCK])?;
        Ok(self.to)
    }

    fn entry(&mut self, dir: BorrowedFd<'_>, name: &OsStr, path: &[u8], top: usize, stat: &Stat) -> io::Result<()> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        let whiteout = kind == FileType::CharacterDevice && stat.st_rdev == 0;
        if kind != FileType::Directory && !whiteout && stat.st_nlink > 1 {
            if let Some((first, left)) = self.links.get_mut(&(stat.st_dev, stat.st_ino)) {
                let link = first.clone();
                *left -= 1;
                if *left == 0 {
                    self.links.remove(&(stat.st_dev, stat.st_ino));
                }
                return self.head(stat, Entry { path, kind: b'1', link: &link, ..Entry::default() });
            }
            self.links.insert((stat.st_dev, stat.st_ino), (path.to_vec(), stat.st_nlink - 1));
        }
        match kind {
            FileType::Directory => {
                let folder = readable(dir, name, stat, OFlags::DIRECTORY)?;
                let attributes = attributes::of(folder.as_fd(), &mut self.buffer)?;
                self.head(stat, Entry { path: &[path, b"/"].concat(), kind: b'5', attributes, ..Entry::default() })
            }
            FileType::RegularFile => self.file(File::from(readable(dir, name, stat, OFlags::NONBLOCK)?), path, stat),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
                self.head(stat, Entry { path, kind: b'2', link: target.to_bytes(), ..Entry::default() })
            }
            FileType::Fifo => self.head(stat, Entry { path, kind: b'6', ..Entry::default() }),
            _ if whiteout => self.head(stat, Entry { path, kind: b'3', ..Entry::default() }),
            _ => {
                let shown = crate::error::printable(&path[top..]);
                Err(io::Error::other(format!("'{shown}' is a device or a socket, which cannot be exported")))
            }
        }
    }

    fn file(&mut self, mut file: File, path: &[u8], stat: &Stat) -> io::Result<()> {
        let (size, attributes) = (stat.st_size as u64, attributes::of(file.as_fd(), &mut self.buffer)?);
        if (stat.st_blocks as u64).saturating_mul(512) >= size {
            self.head(stat, Entry { path, kind: b'0', size, attributes, ..Entry::default() })?;
            self.content(&mut file, size)?;
            return self.fill(size);
        }
        let parts = sparse::parts(&file, size)?;
        let list = sparse::list(&parts);
        let there = parts.iter().map(|(_, length)| length).sum::<u64>() + list.len() as u64;
        self.head(stat, Entry { path, kind: b'0', size: there, sparse: Some(size), attributes, ..Entry::default() })?;
        self.put(&list)?;
        for (at, length) in parts {
            file.seek(SeekFrom::Start(at))?;
            self.content(&mut file, length)?;
        }
        self.fill(there)
    }

    fn content(&mut self, file: &mut File, length: u64) -> io::Result<()> {
        if self.measuring {
            self.bytes += length;
            return Ok(());
        }
        let mut left = length;
        while left > 0 {
            let want = CHUNK.min(usize::try_from(left).unwrap_or(CHUNK));
            match file.read(&mut self.buffer[..want])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => {
                    self.bytes += count as u64;
                    self.to.write_all(&self.buffer[..count])?;
                    left -= count as u64;
                }
            }
        }
        Ok(())
    }

    /// Writes what comes before content.
    fn head(&mut self, stat: &Stat, entry: Entry<'_>) -> io::Result<()> {
        self.entries += 1;
        let mut records = Vec::new();
        let mut record = |key: &[u8], value: &[u8]| {
            let rest = key.len() + value.len() + 3; // space, equals, newline
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            records.extend_from_slice(format!("{length} ").as_bytes());
            for part in [key, b"=", value, b"\n"] {
                records.extend_from_slice(part);
            }
        };
        record(b"path", entry.path);
        record(b"mtime", time(stat.st_mtime, stat.st_mtime_nsec).as_bytes());
        if !entry.link.is_empty() {
            record(b"linkpath", entry.link);
        }
        if entry.size >= PLAIN_SIZE {
            record(b"size", entry.size.to_string().as_bytes());
        }
        if let Some(size) = entry.sparse {
            record(b"GNU.sparse.major", b"1");
            record(b"GNU.sparse.minor", b"0");
            record(b"GNU.sparse.name", entry.path);
            record(b"GNU.sparse.realsize", size.to_string().as_bytes());
        }
        for (name, value) in &entry.attributes {
            record(&[ATTRIBUTE, &encoded(name)].concat(), value);
        }
        if records.len() as u64 > MAX_EXTENSION_BYTES {
            return Err(io::Error::other(format!("attributes of more than {MAX_EXTENSION_BYTES} bytes")));
        }
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::XHeader);
        header.as_old_mut().name[..3].copy_from_slice(b"pax");
        header.set_size(records.len() as u64);
        header.set_cksum();
        self.put(header.as_bytes())?;
        self.put(&records)?;
        self.fill(records.len() as u64)?;

        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::new(entry.kind));
        header.set_mode(stat.st_mode & 0o7777);
        header.set_uid(u64::from(stat.st_uid));
        header.set_gid(u64::from(stat.st_gid));
        header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
        header.set_size(if entry.size < PLAIN_SIZE { entry.size } else { 0 });
        // For readers that know no records; the whole of both is in them.
        let (name, link) = (&entry.path[..entry.path.len().min(100)], &entry.link[..entry.link.len().min(100)]);
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
        if entry.kind == b'3' {
            header.set_device_major(0)?;
            header.set_device_minor(0)?;
        }
        header.set_cksum();
        self.put(header.as_bytes())
    }

    /// Fills up to a whole block.
    fn fill(&mut self, written: u64) -> io::Result<()> {
        let over = (written % BLOCK as u64) as usize;
        if over > 0 { self.put(&[0; BLOCK][over..]) } else { Ok(()) }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes += bytes.len() as u64;
        self.to.write_all(bytes)
    }
}

/// Opens something in a layer. What an ordinary user's sandbox has shut is opened for as long as that takes.
fn readable(dir: BorrowedFd<'_>, name: &OsStr, stat: &Stat, more: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) if stat.st_uid == rustix::process::geteuid().as_raw() => {
            let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
            rustix::fs::chmodat(dir, name, mode | Mode::RUSR, AtFlags::empty())?;
            let opened = rustix::fs::openat(dir, name, flags, Mode::empty());
            rustix::fs::chmodat(dir, name, mode, AtFlags::empty())?;
            Ok(opened?)
        }
        opened => Ok(opened?),
    }
}

/// Seconds with nine digits of a fraction.
fn time(seconds: i64, nanos: u64) -> String {
    match seconds < 0 && nanos > 0 {
        true => format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanos),
        false => format!("{seconds}.{nanos:09}"),
    }
}

/// The name of an attribute in that of a record, where `=` has a meaning.
fn encoded(name: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(name.len());
    for byte in name {
        match byte {
            b'=' => text.extend_from_slice(b"%3D"),
            b'%' => text.extend_from_slice(b"%25"),
            _ => text.push(*byte),
        }
    }
    text
}
