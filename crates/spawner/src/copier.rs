//! Copies what a sandbox has written, as an overlay keeps it, to a folder: the next layer of an image.
//!
//! The tree is hostile, but nothing in it moves: everything in its sandbox is frozen. Each name is opened in the folder
//! it was found in, and no symlink is followed. Folders are walked without recursion and with one descriptor for each
//! side, up and down.
//!
//! What is kept: content with its holes, modes, times, owners as the sandbox sees them (see [`Owners`]), hard links,
//! symlinks, FIFOs, whiteouts, the overlay's mark of folders that hide lower ones, `user.*` attributes, access control lists
//! and, as far as the kernel lets, file capabilities. Sockets are left out: whoever listened on one does not in the copy.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod,
    fchown, fgetxattr, flistxattr, fsetxattr, fstat, ftruncate, futimens, linkat, mkdirat, mknodat, openat, readlinkat,
    seek, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, pread, pwrite};

use crate::protocol::{During, Problem, Saved};

/// Folders within folders, as in images.
const MAX_DEPTH: usize = 256;

/// The largest attribute that the kernel takes, and the longest list of names that it gives.
const MAX_ATTRIBUTE: usize = 64 * 1024;

/// Bytes at once. Between file systems there is nothing faster than reading and writing: `sendfile` moves 64 KiB at a
/// time, and neither cloning nor `copy_file_range` leaves a file system.
const CHUNK: usize = 256 * 1024;

/// What the overlay itself remembers of a folder. Its other notes are about the layers it had here.
const OPAQUE: &[u8] = b"user.overlay.opaque";

/// Attributes that commands inside gave a name of the overlay's own are kept by it under these.
const ESCAPED: &[u8] = b"user.overlay.overlay.";

/// Access control lists, of a file and of what is made in a folder.
const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Who the copies belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owners {
    /// Who they belong to inside: the sandbox's ids begin at this one outside.
    Inside(u32),
    /// Whoever copies: an ordinary user's store, like all that he imports.
    Copier,
}

impl Owners {
    fn of(self, stat: &Stat) -> Option<(Uid, Gid)> {
        let Self::Inside(first) = self else { return None };
        // An id outside of the range cannot be; if it were, nobody is who it belongs to.
        let inside = |id: u32| id.checked_sub(first).filter(|id| *id < crate::lease::RANGE).unwrap_or(65_534);
        Some((Uid::from_raw(inside(stat.st_uid)), Gid::from_raw(inside(stat.st_gid))))
    }
}

/// Copies all in `from` to the empty folder `to`.
pub fn copy(from: OwnedFd, to: OwnedFd, owners: Owners) -> Result<Saved, Problem> {
    let links = HardLinks::begin(&to)?;
    let mut copier = Copier { owners, saved: Saved::default(), links, buffer: vec![0; CHUNK.max(MAX_ATTRIBUTE)] };
    copier.run(from, to)?;
    Ok(copier.saved)
}

struct Copier {
    owners: Owners,
    saved: Saved,
    links: HardLinks,
    buffer: Vec<u8>,
}

/// A folder on the way down.
struct Level {
    stat: Stat,
    /// Folders in it that are still to be copied.
    rest: Vec<CString>,
}

impl Copier {
    fn run(&mut self, mut from: OwnedFd, mut to: OwnedFd) -> Result<(), Problem> {
        let top = Level { stat: fstat(&from).during("look at the sandbox's files")?, rest: Vec::new() };
        let mut levels = vec![top];
        levels[0].rest = self.files_of(&from, &to)?;
        while let Some(level) = levels.last_mut() {
            match level.rest.pop() {
                Some(name) => {
                    let step = || format!("copy the folder '{}'", printable(&name));
                    if levels.len() >= MAX_DEPTH {
                        let detail = format!("folders are nested more than {MAX_DEPTH} deep");
                        return Err(Problem::plain(&step(), detail));
                    }
                    from = openat(&from, &name, FOLDER, Mode::empty()).during(&step())?;
                    mkdirat(&to, &name, Mode::RWXU).during(&step())?;
                    to = openat(&to, &name, FOLDER, Mode::empty()).during(&step())?;
                    let stat = fstat(&from).during(&step())?;
                    let rest = self.files_of(&from, &to)?;
                    levels.push(Level { stat, rest });
                    self.saved.files += 1;
                }
                None => {
                    let Some(done) = levels.pop() else { break };
                    if levels.is_empty() {
                        self.links.end(&to)?;
                        self.finish_top(&from, &to).during("finish the copy")?;
                        break;
                    }
                    self.dress(&from, &to, &done.stat).during("copy a folder's attributes")?;
                    // Nobody moves them, so that is where they came from.
                    from = openat(&from, "..", FOLDER, Mode::empty()).during("go on with the next folder")?;
                    to = openat(&to, "..", FOLDER, Mode::empty()).during("go on with the next folder")?;
                }
            }
        }
        Ok(())
    }

    /// Copies everything in a folder but the folders in it, whose names it returns.
    fn files_of(&mut self, from: &OwnedFd, to: &OwnedFd) -> Result<Vec<CString>, Problem> {
        let mut folders = Vec::new();
        for entry in Dir::read_from(from).during("list a folder")? {
            let entry = entry.during("list a folder")?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let step = || format!("copy '{}'", printable(name));
            let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW).during(&step())?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => folders.push(name.to_owned()),
                kind => self.file(kind, from, to, name, &stat).during(&step())?,
            }
        }
        Ok(folders)
    }

    fn file(&mut self, kind: FileType, from: &OwnedFd, to: &OwnedFd, name: &CStr, stat: &Stat) -> io::Result<()> {
        let whiteout = kind == FileType::CharacterDevice && stat.st_rdev == 0;
        let linked = stat.st_nlink > 1 && !whiteout;
        if linked && self.links.link(stat.st_ino, to, name)? {
            self.saved.files += 1;
            return Ok(());
        }
        match kind {
            FileType::RegularFile => self.content(from, to, name, stat)?,
            FileType::Symlink => {
                symlinkat(readlinkat(from, name, Vec::new())?.as_c_str(), to, name)?;
                self.date(to, name, stat)?;
            }
            FileType::Fifo => {
                mknodat(to, name, kind, Mode::from_raw_mode(stat.st_mode & 0o777), 0)?;
                self.date(to, name, stat)?;
            }
            FileType::CharacterDevice if whiteout => mknodat(to, name, kind, Mode::empty(), 0)?,
            _ => {
                self.saved.skipped += 1;
                return Ok(());
            }
        }
        self.saved.files += 1;
        if linked {
            self.links.remember(stat.st_ino, to, name)?;
        }
        Ok(())
    }

    fn content(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr, stat: &Stat) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let source = openat(from, name, flags, Mode::empty())?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = openat(to, name, flags, Mode::RUSR | Mode::WUSR)?;
        let length = stat.st_size as u64;
        if (stat.st_blocks as u64) * 512 >= length {
            self.transfer(&source, &target, 0, length)?;
        } else {
            ftruncate(&target, length)?;
            let mut at = 0;
            while at < length {
                at = match seek(&source, SeekFrom::Data(at)) {
                    Err(Errno::NXIO) => break,
                    start => start?,
                };
                let end = seek(&source, SeekFrom::Hole(at))?.min(length);
                self.transfer(&source, &target, at, end)?;
                at = end;
            }
        }
        self.dress(&source, &target, stat)
    }

    /// Copies the bytes from `at` to `end`.
    fn transfer(&mut self, source: &OwnedFd, target: &OwnedFd, mut at: u64, end: u64) -> io::Result<()> {
        while at < end {
            let count = CHUNK.min(usize::try_from(end - at).unwrap_or(CHUNK));
            let got = match pread(source, &mut self.buffer[..count], at) {
                Err(Errno::INTR) => continue,
                // Shorter than it was said to be.
                Ok(0) => break,
                got => got?,
            };
            let mut written = 0;
            while written < got {
                match pwrite(target, &self.buffer[written..got], at + written as u64) {
                    Err(Errno::INTR) => {}
                    count => written += count?,
                }
            }
            at += got as u64;
            self.saved.bytes += got as u64;
        }
        Ok(())
    }

    /// Owner, mode, attributes and times, in the order in which none undoes another.
    fn dress(&mut self, source: &OwnedFd, target: &OwnedFd, stat: &Stat) -> io::Result<()> {
        if let Some((user, group)) = self.owners.of(stat) {
            fchown(target, Some(user), Some(group))?;
        }
        fchmod(target, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
        self.attributes(source, target)?;
        Ok(futimens(target, &times(stat))?)
    }

    /// The same for what cannot be opened.
    fn date(&self, to: &OwnedFd, name: &CStr, stat: &Stat) -> io::Result<()> {
        if let Some((user, group)) = self.owners.of(stat) {
            chownat(to, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(utimensat(to, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn attributes(&mut self, source: &OwnedFd, target: &OwnedFd) -> io::Result<()> {
        let length = match flistxattr(source, &mut self.buffer[..MAX_ATTRIBUTE]) {
            Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(()),
            length => length?,
        };
        let names = self.buffer[..length].to_vec();
        for name in names.split_inclusive(|byte| *byte == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
            let plain = name.to_bytes();
            let capability = plain == b"security.capability";
            let own = plain.starts_with(b"user.") && !plain.starts_with(b"user.overlay.");
            let list = LISTS.contains(&plain);
            if !own && !capability && !list && plain != OPAQUE && !plain.starts_with(ESCAPED) {
                continue;
            }
            let length = fgetxattr(source, name, &mut self.buffer[..MAX_ATTRIBUTE])?;
            let value = &mut self.buffer[..length];
            if list {
                // Those of an ordinary user's store can name nobody but him.
                let value = self.owners.list(value);
                let put = value.map(|value| fsetxattr(target, name, value, XattrFlags::empty()));
                self.saved.skipped += u64::from(!matches!(put, Some(Ok(()))));
            } else if !capability {
                fsetxattr(target, name, value, XattrFlags::empty())?;
            } else if let Some(value) = self.owners.capability(value) {
                // A program without its capabilities is still the program.
                let _ = fsetxattr(target, name, value, XattrFlags::empty());
            }
        }
        Ok(())
    }

    /// The topmost folder belongs to the store; what the sandbox sees there comes from the sandbox.
    fn finish_top(&mut self, from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
        self.attributes(from, to)?;
        Ok(fchmod(to, Mode::from_raw_mode(0o755))?)
    }
}

impl Owners {
    /// The users and groups that an access control list names, as those inside.
    fn list(self, value: &mut [u8]) -> Option<&[u8]> {
        const USER: u8 = 0x02;
        const GROUP: u8 = 0x08;
        let Self::Inside(first) = self else { return Some(value) };
        for entry in value.get_mut(4..)?.chunks_exact_mut(8) {
            if let [USER | GROUP, 0, _, _, id @ ..] = entry {
                let outside = u32::from_le_bytes(id.try_into().ok()?);
                let inside = outside.checked_sub(first).filter(|id| *id < crate::lease::RANGE)?;
                id.copy_from_slice(&inside.to_le_bytes());
            }
        }
        Some(value)
    }

    /// File capabilities name the user namespace they are good for by its root. In the store they name none: whoever
    /// mounts it shifted is that root then.
    fn capability(self, value: &mut [u8]) -> Option<&[u8]> {
        const REVISION_2: u8 = 2;
        const REVISION_3: u8 = 3;
        match (self, &mut *value) {
            (Self::Inside(first), [_, _, _, revision @ REVISION_3, .., a, b, c, d]) => {
                let root = u32::from_le_bytes([*a, *b, *c, *d]);
                *revision = REVISION_2;
                (value.len() == 24 && root == first).then(|| &value[..20])
            }
            (Self::Inside(_), _) => None,
            (Self::Copier, _) => Some(value),
        }
    }
}

fn times(stat: &Stat) -> Timestamps {
    let of = |seconds: i64, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ };
    Timestamps {
        last_access: of(stat.st_atime, stat.st_atime_nsec),
        last_modification: of(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Files of several names: a second name of each, all in one folder, so that it need not be found again by its path.
struct HardLinks {
    folder: OwnedFd,
    name: String,
    seen: HashSet<u64>,
}

impl HardLinks {
    fn begin(top: &OwnedFd) -> Result<Self, Problem> {
        let mut bytes = [0u8; 16];
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        let name = format!(".links-{:032x}", u128::from_le_bytes(bytes));
        mkdirat(top, &name, Mode::RWXU).during("prepare the copy")?;
        let folder = openat(top, &name, FOLDER, Mode::empty()).during("prepare the copy")?;
        Ok(Self { folder, name, seen: HashSet::new() })
    }

    /// Gives a file that was copied before another name; false if it was not, or can have no more names.
    fn link(&mut self, inode: u64, to: &OwnedFd, name: &CStr) -> io::Result<bool> {
        if !self.seen.contains(&inode) {
            return Ok(false);
        }
        match linkat(&self.folder, inode.to_string(), to, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::MLINK) => {
                self.seen.remove(&inode);
                unlinkat(&self.folder, inode.to_string(), AtFlags::empty())?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn remember(&mut self, inode: u64, to: &OwnedFd, name: &CStr) -> io::Result<()> {
        linkat(to, name, &self.folder, inode.to_string(), AtFlags::empty())?;
        self.seen.insert(inode);
        Ok(())
    }

    fn end(&mut self, top: &OwnedFd) -> Result<(), Problem> {
        let remove =
            |folder: BorrowedFd<'_>, name: &str, flags| unlinkat(folder, name, flags).during("finish the copy");
        for inode in self.seen.drain() {
            remove(self.folder.as_fd(), &inode.to_string(), AtFlags::empty())?;
        }
        remove(top.as_fd(), &self.name, AtFlags::REMOVEDIR)
    }
}

/// A hostile name, for people.
fn printable(name: &CStr) -> String {
    name.to_string_lossy().escape_debug().take(100).collect()
}
