//! Unpacks one layer's tar into a directory. The archive is hostile.
//!
//! Every name is taken apart here and every parent directory is opened beneath the layer's root without following a
//! single symbolic link, so an archive that plants a link and then writes "through" it is refused, not followed.
//! Device nodes, FIFOs and all extended attributes are dropped; whiteouts become what overlayfs understands.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::beneath::{make_dirs_beneath, open_dir_beneath, remove_tree};
use crate::error::ImageError;
use crate::limits::{Budget, LimitExceeded};
use crate::tarstream::{Kind, Member, TarStream, stream_error};

/// Set on a directory that hides what lower layers have in it. Sandboxes mount overlayfs with `userxattr`, always.
pub(crate) const OPAQUE_XATTR: &str = "user.overlay.opaque";

const WHITEOUT_PREFIX: &[u8] = b".wh.";
const OPAQUE_MARKER: &[u8] = b".wh..wh..opq";
/// AUFS bookkeeping, which Docker once exported; it means nothing to anybody else.
const AUFS_PREFIX: &[u8] = b".wh..wh.";

/// Ids above would not be mapped inside: a sandbox has 65,536 of them.
const ID_COUNT: u64 = 65_536;

/// Directories keep mode 0700 until the end; their paths are remembered up to this many bytes.
const MAX_PENDING_BYTES: usize = 128 << 20;

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
    let mut unpacker = Unpacker {
        root,
        budget,
        as_root: rustix::process::geteuid().is_root(),
        pending: Vec::new(),
        pending_bytes: 0,
        skipped_paths: HashSet::new(),
        done: Unpacked::default(),
        buffer: vec![0; 256 << 10],
    };
    while let Some(member) = stream.next()? {
        unpacker.member(&member, stream)?;
        wrote(unpacker.done.bytes);
    }
    unpacker.finish()
}

/// Mode, owner and time of a directory, applied when nothing more is written into it.
struct PendingDirectory {
    path: Vec<u8>,
    mode: u32,
    owner: Option<(Uid, Gid)>,
    mtime: Option<Timespec>,
}

struct Unpacker<'a> {
    root: BorrowedFd<'a>,
    budget: &'a mut Budget,
    as_root: bool,
    pending: Vec<PendingDirectory>,
    pending_bytes: usize,
    skipped_paths: HashSet<Vec<u8>>,
    done: Unpacked,
    buffer: Vec<u8>,
}

impl Unpacker<'_> {
    fn member<R: Read>(&mut self, member: &Member, stream: &mut TarStream<R>) -> Result<(), ImageError> {
        self.budget.spend_entry()?;
        let path = self.clean_path(&member.path, &member.path)?;
        let owner = self.owner(member)?;
        let (parent_path, name) = split(&path);
        if name.is_empty() {
            // The root itself. Anything but a directory there would replace the layer.
            if member.kind != Kind::Directory {
                return Err(ImageError::refused(&member.path, "the root of an image must be a directory"));
            }
            return self.pend(path, member.mode, owner, Some(mtime(member)));
        }
        if parent_path.split(|b| *b == b'/').any(|c| c.starts_with(WHITEOUT_PREFIX)) {
            return Err(ImageError::refused(&member.path, "something inside a whiteout"));
        }
        if name.starts_with(WHITEOUT_PREFIX) {
            return self.whiteout(member, parent_path, name);
        }
        if member.kind == Kind::Special {
            self.done.skipped += 1;
            self.spend_pending(path.len())?;
            self.skipped_paths.insert(path);
            return Ok(());
        }
        let parent = self.parent(&member.path, parent_path)?;
        match member.kind {
            Kind::Directory => {
                self.directory(member, parent.as_fd(), name)?;
                self.pend(path, member.mode, owner, Some(mtime(member)))
            }
            Kind::File => self.file(member, parent.as_fd(), name, owner, stream),
            Kind::Symlink => self.symlink(member, parent.as_fd(), name, owner),
            Kind::Hardlink => self.hardlink(member, parent.as_fd(), &path, name),
            Kind::Special => Ok(()),
        }
    }

    /// Strips leading slashes and `.` components as tar does; refuses `..`, NUL and what is too long.
    fn clean_path(&self, path: &[u8], entry: &[u8]) -> Result<Vec<u8>, ImageError> {
        self.budget.check_path(path.len(), 0)?;
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
        self.budget.check_path(clean.len(), depth)?;
        Ok(clean)
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

    /// Opens the parent directory, creating what the archive left out.
    fn parent(&mut self, entry: &[u8], path: &[u8]) -> Result<OwnedFd, ImageError> {
        let mut created = Vec::new();
        let parent = make_dirs_beneath(self.root, path, |dir| created.push(dir.to_vec()));
        let owner = self.as_root.then_some((Uid::ROOT, Gid::ROOT));
        for dir in created {
            self.budget.spend_entry()?;
            self.pend(dir, 0o755, owner, None)?;
        }
        parent.map_err(|error| match error {
            Errno::LOOP => ImageError::refused(entry, "it would be written through a symbolic link"),
            Errno::NOTDIR => ImageError::refused(entry, "its parent is not a directory"),
            Errno::XDEV => ImageError::refused(entry, "it leads out of the layer"),
            other => ImageError::unpack(entry, other),
        })
    }

    fn spend_pending(&mut self, bytes: usize) -> Result<(), ImageError> {
        self.pending_bytes += bytes + std::mem::size_of::<PendingDirectory>();
        if self.pending_bytes > MAX_PENDING_BYTES {
            return Err(LimitExceeded::Metadata(MAX_PENDING_BYTES as u64).into());
        }
        Ok(())
    }

    fn pend(
        &mut self,
        path: Vec<u8>,
        mode: u32,
        owner: Option<(Uid, Gid)>,
        mtime: Option<Timespec>,
    ) -> Result<(), ImageError> {
        self.spend_pending(path.len())?;
        self.pending.push(PendingDirectory { path, mode, owner, mtime });
        Ok(())
    }

    fn directory(&mut self, member: &Member, parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), ImageError> {
        let fail = |e: Errno| ImageError::unpack(&member.path, e);
        let existing = lookup(parent, name).map_err(fail)?;
        let hides_lower = existing.as_ref().is_some_and(is_whiteout);
        match existing {
            Some(stat) if file_type(&stat) == FileType::Directory => return Ok(()),
            Some(_) => rustix::fs::unlinkat(parent, name, AtFlags::empty()).map_err(fail)?,
            None => {}
        }
        rustix::fs::mkdirat(parent, name, Mode::RWXU).map_err(fail)?;
        if hides_lower {
            // `.wh.x` came first, then a new directory x: what lower layers have in theirs must not shine through.
            make_opaque(parent, name).map_err(fail)?;
        }
        Ok(())
    }

    fn file<R: Read>(
        &mut self,
        member: &Member,
        parent: BorrowedFd<'_>,
        name: &[u8],
        owner: Option<(Uid, Gid)>,
        stream: &mut TarStream<R>,
    ) -> Result<(), ImageError> {
        let fail = |e: std::io::Error| ImageError::unpack(&member.path, e);
        self.make_room(member, parent, name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR).map_err(|e| fail(e.into()))?;
        let mut file = File::from(fd);
        loop {
            let n = stream.read_body(&mut self.buffer).map_err(stream_error)?;
            if n == 0 {
                break;
            }
            file.write_all(&self.buffer[..n]).map_err(fail)?;
            self.done.bytes += n as u64;
        }
        // chown clears the setuid bits, so the mode comes after it.
        if let Some((uid, gid)) = owner {
            rustix::fs::fchown(&file, Some(uid), Some(gid)).map_err(|e| fail(e.into()))?;
        }
        rustix::fs::fchmod(&file, Mode::from_raw_mode(member.mode)).map_err(|e| fail(e.into()))?;
        rustix::fs::futimens(&file, &timestamps(mtime(member))).map_err(|e| fail(e.into()))
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
        rustix::fs::utimensat(parent, name, &timestamps(mtime(member)), AtFlags::SYMLINK_NOFOLLOW).map_err(fail)
    }

    fn hardlink(
        &mut self,
        member: &Member,
        parent: BorrowedFd<'_>,
        path: &[u8],
        name: &[u8],
    ) -> Result<(), ImageError> {
        let target = self.clean_path(&member.link, &member.path)?;
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
            Some(stat) if matches!(file_type(&stat), FileType::RegularFile | FileType::Symlink) => {}
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

    fn whiteout(&mut self, member: &Member, parent_path: &[u8], name: &[u8]) -> Result<(), ImageError> {
        let fail = |e: Errno| ImageError::unpack(&member.path, e);
        let parent = self.parent(&member.path, parent_path)?;
        if name == OPAQUE_MARKER {
            return set_opaque(parent.as_fd()).map_err(fail);
        }
        if name.starts_with(AUFS_PREFIX) {
            self.done.skipped += 1;
            return Ok(());
        }
        let hidden = &name[WHITEOUT_PREFIX.len()..];
        if matches!(hidden, b"" | b"." | b"..") || hidden.starts_with(WHITEOUT_PREFIX) {
            return Err(ImageError::refused(&member.path, "a whiteout of nothing"));
        }
        // A whiteout concerns lower layers only: what this layer itself has under that name stays.
        match lookup(parent.as_fd(), hidden).map_err(fail)? {
            Some(stat) if file_type(&stat) == FileType::Directory => make_opaque(parent.as_fd(), hidden).map_err(fail),
            Some(_) => Ok(()),
            // Device 0:0 is the one device an unprivileged user may make.
            None => rustix::fs::mknodat(&parent, hidden, FileType::CharacterDevice, Mode::empty(), 0).map_err(fail),
        }
    }

    /// Directories get their modes, owners and times, deepest first: a parent's mode may shut its children off.
    fn finish(self) -> Result<Unpacked, ImageError> {
        let owner = self.as_root.then_some((Uid::ROOT, Gid::ROOT));
        let root = PendingDirectory { path: Vec::new(), mode: 0o755, owner, mtime: None };
        // A stable sort, later entries first: of several for one directory the last one counts.
        let mut pending: Vec<_> = std::iter::once(root).chain(self.pending).collect();
        pending.reverse();
        pending.sort_by(|a, b| b.path.cmp(&a.path));
        pending.dedup_by(|later, earlier| later.path == earlier.path);
        for directory in pending {
            let fail = |e: Errno| ImageError::unpack(&directory.path, e);
            let dir = match open_dir_beneath(self.root, &directory.path) {
                Ok(dir) => dir,
                // A later entry replaced the directory by something else.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(error) => return Err(fail(error)),
            };
            if let Some((uid, gid)) = directory.owner {
                rustix::fs::fchown(&dir, Some(uid), Some(gid)).map_err(fail)?;
            }
            // The layer's root must stay movable and readable for the store's owner.
            let mode = if directory.path.is_empty() { directory.mode | 0o700 } else { directory.mode };
            rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode)).map_err(fail)?;
            if let Some(mtime) = directory.mtime {
                rustix::fs::futimens(&dir, &timestamps(mtime)).map_err(fail)?;
            }
        }
        Ok(self.done)
    }
}

/// `a/b/c` → (`a/b`, `c`)
fn split(path: &[u8]) -> (&[u8], &[u8]) {
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

fn is_whiteout(stat: &Stat) -> bool {
    file_type(stat) == FileType::CharacterDevice && stat.st_rdev == 0
}

fn make_opaque(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    set_opaque(open_dir_beneath(parent, name)?.as_fd())
}

fn set_opaque(dir: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::fs::fsetxattr(dir, OPAQUE_XATTR, b"y", XattrFlags::empty())
}

fn mtime(member: &Member) -> Timespec {
    // Times that the kernel would not take (negative, absurd) become 1970; images have no use for them.
    let seconds = if (0..1 << 40).contains(&member.mtime) { member.mtime } else { 0 };
    Timespec { tv_sec: seconds, tv_nsec: i64::from(member.mtime_nanos) }
}

fn timestamps(mtime: Timespec) -> Timestamps {
    Timestamps { last_access: mtime, last_modification: mtime }
}
