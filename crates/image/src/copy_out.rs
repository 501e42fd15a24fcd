//! Unpacks an archive that was made inside into a folder of the host: `sloplet cp NAME:/folder ./folder`.
//!
//! Both sides are hostile. The archive is, and so is the target folder: a sandbox that has it mounted may plant symbolic
//! links in it, or swap folders for links while the copy runs. So the target is opened once, every parent is opened beneath
//! that descriptor without following a link, and every file gets its name when it is whole. Links of the archive are made,
//! never followed. Everything belongs to the caller; set-ID bits are dropped; hard links, devices and FIFOs are refused.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::beneath::{make_dirs_beneath, open_dir_beneath};
use crate::draft::{Draft, random_name};
use crate::error::{ImageError, printable};
use crate::limits::{Budget, Limits};
use crate::tarstream::{Kind, Member, TarStream};
use crate::unpack::{clean_path, split};

/// Folders get their modes at the end; their paths are remembered up to this many bytes.
const MAX_PENDING_BYTES: usize = 64 << 20;

/// Why a folder could not be brought out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyOutError {
    /// The target folder cannot be made or opened.
    #[error("cannot use {} as the target folder: {source}", path.display())]
    Target {
        /// The folder.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The target folder is a symbolic link, in a folder that a sandbox may write to.
    #[error("{} is a symbolic link: name the folder that it leads to, if you want to write there", path.display())]
    Link {
        /// The link.
        path: PathBuf,
    },
    /// The archive holds something that is not brought out.
    #[error("refused '{entry}' of the archive: {reason}")]
    Refused {
        /// The entry.
        entry: String,
        /// Why.
        reason: String,
    },
    /// This host could not write an entry.
    #[error("cannot write '{entry}': {source}")]
    Write {
        /// The entry.
        entry: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The archive is damaged or was cut off.
    #[error("{0}")]
    Archive(String),
}

impl CopyOutError {
    fn refused(entry: &[u8], reason: impl Into<String>) -> Self {
        Self::Refused { entry: printable(entry), reason: reason.into() }
    }

    fn write(entry: &[u8], source: impl Into<io::Error>) -> Self {
        Self::Write { entry: printable(entry), source: source.into() }
    }
}

impl From<ImageError> for CopyOutError {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Refused { entry, reason } => Self::Refused { entry, reason },
            other => Self::Archive(other.to_string()),
        }
    }
}

/// A folder made here, which gets its mode and time when nothing more is written into it.
struct PendingFolder {
    path: Vec<u8>,
    mode: u32,
    times: Timestamps,
}

/// A target folder that is open.
pub struct CopyOut {
    root: OwnedFd,
    pending: Vec<PendingFolder>,
    pending_bytes: usize,
    follows_links: bool,
}

impl CopyOut {
    /// Opens the folder `to`, and makes it if it is missing. Its own name may not be a link; the way to it may lead over links.
    pub fn into(to: &Path) -> Result<Self, CopyOutError> {
        let fail = |source: io::Error| CopyOutError::Target { path: to.to_owned(), source };
        let name = to.file_name().ok_or_else(|| fail(io::Error::other("it has no name of its own")))?;
        let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent).map_err(fail)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::openat(CWD, parent, flags, Mode::empty()).map_err(|error| fail(error.into()))?;
        match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(fail(error.into())),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::openat(&parent, name, flags, Mode::empty()).map_err(|error| {
            // O_DIRECTORY makes a link ENOTDIR.
            let is_link = std::fs::symlink_metadata(to).is_ok_and(|found| found.is_symlink());
            if is_link { CopyOutError::Link { path: to.to_owned() } } else { fail(error.into()) }
        })?;
        Ok(Self { root, pending: Vec::new(), pending_bytes: 0, follows_links: false })
    }

    /// Follows links of the target, as a careless program would. For tests of the verifier: release builds ignore it.
    #[doc(hidden)]
    pub fn carelessly(mut self) -> Self {
        self.follows_links = cfg!(debug_assertions);
        self
    }

    /// Unpacks a tar stream. After an error, what was whole by then is there.
    pub fn unpack(mut self, source: impl Read) -> Result<(), CopyOutError> {
        let mut stream = TarStream::new(source);
        let limits = Limits { total_bytes: u64::MAX, entries: u64::MAX, ..Limits::default() };
        let budget = Budget::new(limits);
        let mut buffer = vec![0; 256 << 10];
        while let Some(member) = stream.next()? {
            let path = clean_path(&budget, &member.path, &member.path)?;
            self.member(&member, &path, &mut stream, &mut buffer)?;
        }
        stream.finish()?;
        self.settle()
    }

    fn member<R: Read>(
        &mut self,
        member: &Member,
        path: &[u8],
        stream: &mut TarStream<R>,
        buffer: &mut [u8],
    ) -> Result<(), CopyOutError> {
        let (parent, name) = split(path);
        if name.is_empty() {
            return match member.kind {
                // The target itself, which is there.
                Kind::Directory => Ok(()),
                _ => Err(CopyOutError::refused(&member.path, "it has no name")),
            };
        }
        match member.kind {
            Kind::Directory => self.folder(path, Some(member)).map(drop),
            Kind::File if member.sparse.is_some() => Err(CopyOutError::refused(&member.path, "a sparse entry")),
            Kind::File => {
                let parent = self.folder(parent, None)?;
                let fail = |error: io::Error| CopyOutError::write(&member.path, error);
                let mut draft = Draft::within(parent, OsStr::from_bytes(name).to_owned()).map_err(fail)?;
                loop {
                    let count = stream.read_body(buffer).map_err(crate::tarstream::stream_error)?;
                    if count == 0 {
                        break;
                    }
                    draft.file().write_all(&buffer[..count]).map_err(fail)?;
                }
                let file = draft.file();
                rustix::fs::fchmod(&*file, mode(member)).map_err(|error| fail(error.into()))?;
                rustix::fs::futimens(&*file, &times(member)).map_err(|error| fail(error.into()))?;
                draft.keep().map_err(fail)
            }
            Kind::Symlink => {
                if member.link.is_empty() || member.link.contains(&0) {
                    return Err(CopyOutError::refused(&member.path, "a symbolic link without a usable target"));
                }
                let parent = self.folder(parent, None)?;
                symlink(parent.as_fd(), name, member).map_err(|error| CopyOutError::write(&member.path, error))
            }
            Kind::Hardlink => Err(CopyOutError::refused(&member.path, "hard links are not copied out")),
            Kind::Fifo => Err(CopyOutError::refused(&member.path, "FIFOs are not copied out")),
            Kind::Device | Kind::Removed => Err(CopyOutError::refused(&member.path, "devices are not copied out")),
        }
    }

    /// Opens a folder beneath the target, making what is missing. `member` says what it is to be like, if it says so.
    fn folder(&mut self, path: &[u8], member: Option<&Member>) -> Result<OwnedFd, CopyOutError> {
        if self.follows_links {
            return self.any_folder(path).map_err(|error| CopyOutError::write(path, error));
        }
        let mut made = Vec::new();
        let opened = if path.is_empty() {
            open_dir_beneath(self.root.as_fd(), path)
        } else {
            make_dirs_beneath(self.root.as_fd(), path, |folder| made.push(folder.to_vec()))
        };
        for folder in made {
            self.pending_bytes += folder.len() + size_of::<PendingFolder>();
            if self.pending_bytes > MAX_PENDING_BYTES {
                return Err(CopyOutError::refused(path, "the archive has too many folders"));
            }
            let (mode, times) = match member {
                Some(member) if folder == path => (mode(member).as_raw_mode(), times(member)),
                _ => (0o755, times_now()),
            };
            self.pending.push(PendingFolder { path: folder, mode, times });
        }
        opened.map_err(|error| match error {
            Errno::LOOP => CopyOutError::refused(path, "a symbolic link is in the way, and is not followed"),
            Errno::NOTDIR => CopyOutError::refused(path, "something that is no folder is in the way"),
            Errno::XDEV => CopyOutError::refused(path, "it leads out of the target, or to another file system"),
            error => CopyOutError::write(path, error),
        })
    }

    fn any_folder(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        match rustix::fs::mkdirat(&self.root, path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        rustix::fs::openat(&self.root, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    }

    /// Gives folders their modes and times, deepest first: a parent's mode may shut its children off.
    fn settle(self) -> Result<(), CopyOutError> {
        let mut pending = self.pending;
        pending.sort_by(|one, other| other.path.cmp(&one.path));
        for folder in pending {
            let fail = |error: Errno| CopyOutError::write(&folder.path, error);
            let open = match open_dir_beneath(self.root.as_fd(), &folder.path) {
                Ok(open) => open,
                // Replaced meanwhile: by a later entry, or by somebody else.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(error) => return Err(fail(error)),
            };
            rustix::fs::fchmod(&open, Mode::from_raw_mode(folder.mode)).map_err(fail)?;
            rustix::fs::futimens(&open, &folder.times).map_err(fail)?;
        }
        Ok(())
    }
}

/// Makes a link, which takes the place of what is there.
fn symlink(parent: BorrowedFd<'_>, name: &[u8], member: &Member) -> io::Result<()> {
    let passing = random_name()?;
    rustix::fs::symlinkat(OsStr::from_bytes(&member.link), parent, &passing)?;
    let _ = rustix::fs::utimensat(parent, &passing, &times(member), AtFlags::SYMLINK_NOFOLLOW);
    rustix::fs::renameat(parent, &passing, parent, name).map_err(|error| {
        let _ = rustix::fs::unlinkat(parent, &passing, AtFlags::empty());
        error.into()
    })
}

/// Without set-ID bits.
fn mode(member: &Member) -> Mode {
    Mode::from_raw_mode(member.mode & 0o777)
}

fn times(member: &Member) -> Timestamps {
    let tv_sec = if (0..1 << 40).contains(&member.mtime) { member.mtime } else { 0 };
    let changed = Timespec { tv_sec, tv_nsec: i64::from(member.mtime_nanos) };
    Timestamps { last_access: changed, last_modification: changed }
}

fn times_now() -> Timestamps {
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    Timestamps { last_access: now, last_modification: now }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use tar::{EntryType, Header};

    use super::*;

    /// Entries: kind, path, content or link target, mode.
    fn archive(entries: &[(EntryType, &str, &str, u32)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (kind, path, content, mode) in entries {
            let mut header = Header::new_gnu();
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(1_000_000);
            let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
            if is_link {
                header.set_link_name_literal(content).unwrap();
            }
            let body = if is_link { &[] } else { content.as_bytes() };
            header.set_size(body.len() as u64);
            header.set_cksum();
            builder.append(&header, body).unwrap();
        }
        builder.into_inner().unwrap()
    }

    const FILE: EntryType = EntryType::Regular;

    #[test]
    fn files_folders_and_links_come_out_without_set_id_bits() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("new/target");
        let entries = [
            (EntryType::Directory, "./", "", 0o700),
            (EntryType::Directory, "closed", "", 0o555),
            (FILE, "closed/file", "content", 0o6755),
            (EntryType::Symlink, "link", "/etc/passwd", 0o777),
            (FILE, "left/out/parents", "x", 0o600),
        ];
        for _ in 0..2 {
            CopyOut::into(&to).unwrap().unpack(&archive(&entries)[..]).unwrap();
        }
        assert_eq!(fs::read_to_string(to.join("closed/file")).unwrap(), "content");
        let mode = |path: &str| fs::metadata(to.join(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!([mode("closed"), mode("closed/file"), mode("left/out")], [0o555, 0o755, 0o755]);
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("/etc/passwd"));
        assert_eq!(fs::metadata(to.join("closed/file")).unwrap().mtime(), 1_000_000);
        assert_eq!(fs::read_dir(&to).unwrap().count(), 3, "drafts were left");
    }

    #[test]
    fn links_in_the_target_or_the_archive_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (precious, to) = (dir.path().join("precious"), dir.path().join("target"));
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("file"), "precious").unwrap();
        fs::create_dir(&to).unwrap();
        symlink(&precious, to.join("planted")).unwrap();
        symlink(precious.join("file"), to.join("single")).unwrap();
        let unpack = |entries: &[_]| CopyOut::into(&to).unwrap().unpack(&archive(entries)[..]);
        let away = precious.to_str().unwrap();
        let refused: [&[(EntryType, &str, &str, u32)]; 6] = [
            &[(FILE, "planted/file", "evil", 0o644)],
            &[(EntryType::Directory, "planted/sub", "", 0o755)],
            &[(EntryType::Directory, "planted", "", 0o777)],
            &[(EntryType::Symlink, "own", away, 0o777), (FILE, "own/file", "evil", 0o644)],
            &[(FILE, "../precious/file", "evil", 0o644)],
            &[(EntryType::Link, "hard", "single", 0o644)],
        ];
        for entries in refused {
            let error = unpack(entries).unwrap_err();
            assert!(matches!(error, CopyOutError::Refused { .. }), "{entries:?}: {error}");
        }
        unpack(&[(FILE, "single", "new", 0o644)]).unwrap();
        assert!(fs::symlink_metadata(to.join("single")).unwrap().is_file());
        assert_eq!(fs::read_to_string(precious.join("file")).unwrap(), "precious");
        assert_eq!(fs::read_dir(&precious).unwrap().count(), 1);
        // The target itself.
        assert!(matches!(CopyOut::into(&to.join("planted")), Err(CopyOutError::Link { .. })));
        // The control: a careless copy is led astray.
        let planted = [(FILE, "planted/file", "evil", 0o644)];
        CopyOut::into(&to).unwrap().carelessly().unpack(&archive(&planted)[..]).unwrap();
        assert_eq!(fs::read_to_string(precious.join("file")).unwrap(), "evil");
    }

    #[test]
    fn devices_fifos_and_hard_links_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        for kind in [EntryType::Fifo, EntryType::Char, EntryType::Block, EntryType::Link] {
            let entries = [(FILE, "a", "x", 0o644), (kind, "thing", "a", 0o644)];
            let error = CopyOut::into(&dir.path().join("t")).unwrap().unpack(&archive(&entries)[..]).unwrap_err();
            assert!(error.to_string().contains("'thing'"), "{error}");
        }
        assert_eq!(fs::read_dir(dir.path().join("t")).unwrap().count(), 1);
    }
}
