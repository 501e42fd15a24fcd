//! Unpacks one layer's tar into a directory. The archive is hostile.
//!
//! Every name is taken apart here and every parent directory is opened beneath the layer's root without following a
//! single symbolic link, so an archive that plants a link and then writes "through" it is refused, not followed.
//! Of an image, device nodes, FIFOs and all extended attributes are dropped; whiteouts become what overlayfs understands.
//! Of a snapshot nothing is: it says what a layer of an overlay holds, and what it says that cannot be one is refused.

mod folders;
mod snapshot;
mod whiteout;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use folders::PendingDirectory;
use whiteout::WHITEOUT_PREFIX;

pub(crate) use whiteout::OPAQUE_XATTR;

use crate::attributes::Attributes;
use crate::beneath::{open_dir_beneath, remove_tree};
use crate::error::ImageError;
use crate::limits::Budget;
use crate::sparse;
use crate::tarstream::{Kind, Member, TarStream, stream_error};

/// Ids above would not be mapped inside: a sandbox has 65,536 of them.
pub(crate) const ID_COUNT: u64 = 65_536;

/// What unpacking found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Unpacked {
    /// Bytes of file content.
    pub bytes: u64,
    /// Entries left out: devices, FIFOs, AUFS bookkeeping.
    pub skipped: u64,
}

/// Unpacks what a sandbox has written, as an archive of its own making, into an empty folder.
pub fn unpack_layer(source: impl Read, root: impl AsFd) -> Result<Unpacked, ImageError> {
    let mut budget = Budget::new(crate::Limits::default());
    let stream = crate::decompress::LayerStream::new(source, &budget).map_err(stream_error)?;
    let mut tar = TarStream::new(stream);
    let unpacked = unpack(&mut tar, root.as_fd(), &mut budget, &|_| {})?;
    tar.finish()?;
    Ok(unpacked)
}

/// Unpacks `stream` into `root`, an empty directory. `wrote` hears of the bytes written so far.
pub(crate) fn unpack<R: Read>(
    stream: &mut TarStream<R>,
    root: BorrowedFd<'_>,
    budget: &mut Budget,
    wrote: &dyn Fn(u64),
) -> Result<Unpacked, ImageError> {
    let mut unpacker = Unpacker::new(root, budget, Dialect::Image);
    while let Some(member) = stream.next()? {
        unpacker.member(&member, stream)?;
        wrote(unpacker.done.bytes);
    }
    Ok(unpacker.finish()?.0)
}

/// How an archive says what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// As images do: `.wh.` in front of a name says that it was removed.
    Image,
    /// As layers on a disk do: a device `0:0` says so, and attributes, FIFOs and holes are kept.
    Snapshot,
}

pub(crate) struct Unpacker<'a> {
    root: BorrowedFd<'a>,
    budget: &'a mut Budget,
    as_root: bool,
    pending: Vec<PendingDirectory>,
    pending_bytes: usize,
    skipped_paths: HashSet<Vec<u8>>,
    dialect: Dialect,
    /// Of what came, in order: two layers of the same content have the same.
    digest: Sha256,
    done: Unpacked,
    buffer: Vec<u8>,
}

impl<'a> Unpacker<'a> {
    /// Unpacks into `root`, an empty folder.
    pub(crate) fn new(root: BorrowedFd<'a>, budget: &'a mut Budget, dialect: Dialect) -> Self {
        Unpacker {
            root,
            budget,
            as_root: rustix::process::geteuid().is_root(),
            pending: Vec::new(),
            pending_bytes: 0,
            skipped_paths: HashSet::new(),
            dialect,
            digest: Sha256::new(),
            done: Unpacked::default(),
            buffer: vec![0; 256 << 10],
        }
    }
}

impl Unpacker<'_> {
    /// Unpacks one member.
    pub(crate) fn member<R: Read>(&mut self, member: &Member, stream: &mut TarStream<R>) -> Result<(), ImageError> {
        self.budget.spend_entry()?;
        let path = clean_path(self.budget, &member.path, &member.path)?;
        let owner = self.owner(member)?;
        let attributes = match self.dialect {
            Dialect::Image if member.sparse.is_some() => return Err(sparse::refused(&member.path)),
            Dialect::Image => Attributes::default(),
            Dialect::Snapshot => {
                self.note(member);
                Attributes::check(member)?
            }
        };
        let (parent_path, name) = split(&path);
        if name.is_empty() {
            // The root itself. Anything but a directory there would replace the layer.
            if member.kind != Kind::Directory {
                return Err(ImageError::refused(&member.path, "the root of an image must be a directory"));
            }
            return self.pend(path, member.mode, owner, Some(self.times(member)), attributes);
        }
        if self.dialect == Dialect::Snapshot {
            return self.of_layer(member, path, owner, attributes, stream);
        }
        if parent_path.split(|b| *b == b'/').any(|c| c.starts_with(WHITEOUT_PREFIX)) {
            return Err(ImageError::refused(&member.path, "something inside a whiteout"));
        }
        if name.starts_with(WHITEOUT_PREFIX) {
            return self.whiteout(member, parent_path, name);
        }
        if matches!(member.kind, Kind::Fifo | Kind::Device | Kind::Removed) {
            self.done.skipped += 1;
            self.spend_pending(path.len())?;
            self.skipped_paths.insert(path);
            return Ok(());
        }
        let parent = self.parent(&member.path, parent_path)?;
        match member.kind {
            Kind::Directory => {
                self.directory(member, parent.as_fd(), name)?;
                self.pend(path, member.mode, owner, Some(self.times(member)), attributes)
            }
            Kind::File => self.file(member, parent.as_fd(), name, owner, &attributes, stream),
            Kind::Symlink => self.symlink(member, parent.as_fd(), name, owner),
            Kind::Hardlink => self.hardlink(member, parent.as_fd(), &path, name),
            Kind::Fifo | Kind::Device | Kind::Removed => Ok(()),
        }
    }

    /// The owner to set; an unprivileged caller can only own everything itself.
    fn owner(&self, member: &Member) -> Result<Option<(Uid, Gid)>, ImageError> {
        if !self.as_root {
            return Ok(None);
        }
        let id = |id: u64| u32::try_from(id).ok().filter(|_| id < ID_COUNT);
        match (id(member.uid), id(member.gid)) {
            (Some(uid), Some(gid)) => Ok(Some((Uid::from_raw(uid), Gid::from_raw(gid)))),
            _ => Err(ImageError::refused(
                &member.path,
                format!("owner {}:{}; ids must be below {ID_COUNT}", member.uid, member.gid),
            )),
        }
    }

    fn file<R: Read>(
        &mut self,
        member: &Member,
        parent: BorrowedFd<'_>,
        name: &[u8],
        owner: Option<(Uid, Gid)>,
        attributes: &Attributes,
        stream: &mut TarStream<R>,
    ) -> Result<(), ImageError> {
        let fail = |e: std::io::Error| ImageError::unpack(&member.path, e);
        self.make_room(member, parent, name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR).map_err(|e| fail(e.into()))?;
        let mut file = File::from(fd);
        match member.sparse {
            Some(size) => {
                let noted = Some(&mut self.digest);
                self.done.bytes += sparse::read(&member.path, size, stream, &file, &mut self.buffer, noted)?;
            }
            None => loop {
                let n = stream.read_body(&mut self.buffer).map_err(stream_error)?;
                if n == 0 {
                    break;
                }
                file.write_all(&self.buffer[..n]).map_err(fail)?;
                if self.dialect == Dialect::Snapshot {
                    self.digest.update(&self.buffer[..n]);
                }
                self.done.bytes += n as u64;
            },
        }
        // chown clears the setuid bits, so the mode comes after it.
        if let Some((uid, gid)) = owner {
            rustix::fs::fchown(&file, Some(uid), Some(gid)).map_err(|e| fail(e.into()))?;
        }
        self.done.skipped += attributes.put(file.as_fd(), self.as_root).map_err(fail)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(member.mode)).map_err(|e| fail(e.into()))?;
        attributes.put_access(file.as_fd()).map_err(fail)?;
        rustix::fs::futimens(&file, &self.times(member)).map_err(|e| fail(e.into()))
    }

    /// When it was changed. Times that the kernel would not take (absurd ones; of images, those before 1970, for which they
    /// have no use) become 1970.
    fn times(&self, member: &Member) -> Timestamps {
        let first = if self.dialect == Dialect::Snapshot { -(1 << 40) } else { 0 };
        let tv_sec = if (first..1 << 40).contains(&member.mtime) { member.mtime } else { 0 };
        let changed = Timespec { tv_sec, tv_nsec: i64::from(member.mtime_nanos) };
        Timestamps { last_access: changed, last_modification: changed }
    }

    fn symlink(
        &mut self,
        member: &Member,
        parent: BorrowedFd<'_>,
        name: &[u8],
        owner: Option<(Uid, Gid)>,
    ) -> Result<(), ImageError> {
        if member.link.is_empty() || member.link.contains(&0) {
            return Err(ImageError::refused(&member.path, "a symbolic link without a usable target"));
        }
        self.budget.check_path(member.link.len(), 0)?;
        self.make_room(member, parent, name)?;
        let fail = |e: Errno| ImageError::unpack(&member.path, e);
        // The target may point anywhere: it is only ever followed inside a sandbox, never here.
        rustix::fs::symlinkat(OsStr::from_bytes(&member.link), parent, name).map_err(fail)?;
        if let Some((uid, gid)) = owner {
            rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map_err(fail)?;
        }
        rustix::fs::utimensat(parent, name, &self.times(member), AtFlags::SYMLINK_NOFOLLOW).map_err(fail)
    }

    fn hardlink(
        &mut self,
        member: &Member,
        parent: BorrowedFd<'_>,
        path: &[u8],
        name: &[u8],
    ) -> Result<(), ImageError> {
        let target = clean_path(self.budget, &member.link, &member.path)?;
        if target == path {
            return Ok(());
        }
        if self.skipped_paths.contains(&target) {
            self.done.skipped += 1;
            return Ok(());
        }
        let outside = || ImageError::refused(&member.path, "a hard link to something that is not in this layer");
        let (target_parent, target_name) = split(&target);
        let target_dir = open_dir_beneath(self.root, target_parent).map_err(|_| outside())?;
        let fail = |e: Errno| ImageError::unpack(&member.path, e);
        match lookup(target_dir.as_fd(), target_name).map_err(fail)? {
            Some(stat) if matches!(file_type(&stat), FileType::RegularFile | FileType::Symlink | FileType::Fifo) => {}
            _ => return Err(outside()),
        }
        self.make_room(member, parent, name)?;
        // Without AT_SYMLINK_FOLLOW: the link itself. ENOENT when making room removed the target.
        rustix::fs::linkat(&target_dir, target_name, parent, name, AtFlags::empty()).map_err(|e| match e {
            Errno::NOENT => outside(),
            other => fail(other),
        })
    }

    /// A later entry of the same name wins, as in tar; what was there goes, without anything being followed.
    fn make_room(&self, member: &Member, parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), ImageError> {
        remove_tree(parent, OsStr::from_bytes(name)).map_err(|e| ImageError::unpack(&member.path, e))
    }
}

/// Strips leading slashes and `.` components as tar does; refuses `..`, NUL and what is too long.
pub(crate) fn clean_path(budget: &Budget, path: &[u8], entry: &[u8]) -> Result<Vec<u8>, ImageError> {
    budget.check_path(path.len(), 0)?;
    let mut clean = Vec::with_capacity(path.len());
    let mut depth = 0;
    for component in path.split(|b| *b == b'/') {
        match component {
            b"" | b"." => continue,
            b".." => return Err(ImageError::refused(entry, "a path with '..' in it")),
            _ if component.contains(&0) => return Err(ImageError::refused(entry, "a NUL byte in a path")),
            _ if component.len() > 255 => {
                return Err(ImageError::refused(entry, "a file name longer than 255 bytes"));
            }
            _ => {}
        }
        if !clean.is_empty() {
            clean.push(b'/');
        }
        clean.extend_from_slice(component);
        depth += 1;
    }
    budget.check_path(clean.len(), depth)?;
    Ok(clean)
}

/// `a/b/c` → (`a/b`, `c`)
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

fn lookup(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Stat>, Errno> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}
