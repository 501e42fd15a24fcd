//! The content of a volume, from the host's side.
//!
//! It was written by sandboxes and is hostile: every path is resolved by the kernel below the volume's folder, so that
//! no symlink leads out, whatever a sandbox changes meanwhile. Files come into being beside that folder, where no
//! sandbox sees them, and are moved to their place when they are complete.
//!
//! What belongs to the usual user inside belongs to the server on the host: the mount makes it the user's. Where the
//! server is root, everybody else inside has an id of his own on the host as well, so owners can be told and set. Elsewhere
//! owners that a client names are not kept, and answers tell the usual user's ids.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use axum::http::StatusCode;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;
use serde::Serialize;
use sloplet_engine::engine::new_id;
use sloplet_policy::bind::VOLUME_IDS;

use super::time;
use crate::error::ApiError;

/// Entries of one listing.
const MAX_LISTING: usize = 50_000;

/// Levels of one listing.
const MAX_DEPTH: u32 = 100;

/// What may be set on files: no set-ID bits, which could be used outside.
const MAX_MODE: u32 = 0o777;

/// The ids of `user` inside.
const USER: u32 = 1000;

/// Ids inside.
const IDS: u32 = 65_536;

/// Never out of the folder.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// A file or folder as the SDKs see it.
#[derive(Debug, Serialize)]
pub struct Entry {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    path: String,
    size: i64,
    mode: u32,
    uid: u32,
    gid: u32,
    atime: String,
    mtime: String,
    ctime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

/// What is to be set on a file. Its owner is kept where the server is root.
#[derive(Debug, Clone, Copy, Default, serde::Deserialize)]
#[serde(default)]
pub struct Attributes {
    /// Its owner.
    pub uid: Option<u32>,
    /// Its group.
    pub gid: Option<u32>,
    /// Its permission bits.
    pub mode: Option<u32>,
}

impl Attributes {
    /// Refuses what must not be set.
    pub fn check(&self) -> Result<(), ApiError> {
        if self.mode.is_some_and(|mode| mode > MAX_MODE) {
            return Err(ApiError::bad_request("the mode must be between 0 and 0o777 (511)"));
        }
        if self.uid.into_iter().chain(self.gid).any(|id| id >= IDS) {
            return Err(ApiError::bad_request("a uid or gid is too large"));
        }
        Ok(())
    }
}

/// The folder of a volume.
pub struct Tree {
    root: OwnedFd,
    /// Beside it: nothing here is seen by a sandbox.
    outside: OwnedFd,
}

/// A path within a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place(Vec<String>);

impl Place {
    /// Understands a path; it begins in the volume whether it is absolute or not, and `..` does not lead out.
    pub fn parse(path: &str) -> Result<Self, ApiError> {
        if path.len() > 4000 || path.contains('\0') {
            return Err(ApiError::bad_request("the path is too long or contains a zero byte"));
        }
        let mut parts: Vec<String> = Vec::new();
        for part in path.trim().split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part.to_owned()),
            }
        }
        Ok(Self(parts))
    }

    /// As the SDKs see it.
    pub fn shown(&self) -> String {
        format!("/{}", self.0.join("/"))
    }

    fn relative(&self) -> String {
        if self.0.is_empty() { ".".into() } else { self.0.join("/") }
    }

    /// The folder and the name in it.
    fn split(&self) -> Option<(Self, &str)> {
        let (name, folder) = self.0.split_last()?;
        Some((Self(folder.to_vec()), name))
    }

    fn failed(&self, error: Errno) -> ApiError {
        let path = self.shown();
        match error {
            Errno::NOENT => ApiError::not_found(format!("path {path} not found")),
            Errno::NOTDIR => ApiError::not_found(format!("path {path} not found: a part of it is not a directory")),
            Errno::EXIST => ApiError::conflict(format!("path {path} already exists")),
            Errno::ISDIR => ApiError::conflict(format!("path {path} is a directory")),
            Errno::XDEV | Errno::LOOP => ApiError::bad_request(format!("path {path} leads out of the volume")),
            Errno::NAMETOOLONG => ApiError::bad_request(format!("path {path} is too long")),
            Errno::ACCESS | Errno::PERM => {
                ApiError::new(StatusCode::FORBIDDEN, format!("path {path}: this server may not do that"))
            }
            Errno::NOSPC | Errno::DQUOT => ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "no space is left"),
            error => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("path {path}: {error}")),
        }
    }
}

impl Tree {
    /// Opens a volume's folder.
    pub fn open(folder: &Path) -> Result<Self, ApiError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let open = |path: &Path| {
            rustix::fs::openat(CWD, path, flags, Mode::empty())
                .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the volume: {error}")))
        };
        let outside = folder.parent().ok_or_else(|| ApiError::not_found("the volume has no folder"))?;
        Ok(Self { root: open(folder)?, outside: open(outside)? })
    }

    /// What is at a place; a symlink is not followed at its end.
    pub fn stat(&self, place: &Place) -> Result<Entry, ApiError> {
        let Some((folder, name)) = place.split() else {
            let stat = rustix::fs::statat(&self.root, "", AtFlags::EMPTY_PATH).map_err(|error| place.failed(error))?;
            return Ok(entry(&stat, "/".into(), place.shown(), None));
        };
        let folder = self.folder(&folder).map_err(|error| place.failed(error))?;
        self.look(&folder, OsStr::new(name), place.shown()).map_err(|error| place.failed(error))
    }

    fn look(&self, folder: &OwnedFd, name: &OsStr, path: String) -> Result<Entry, Errno> {
        let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let target = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => rustix::fs::readlinkat(folder, name, Vec::new()).ok(),
            _ => None,
        };
        let target = target.map(|target| target.to_string_lossy().into_owned());
        Ok(entry(&stat, name.to_string_lossy().into_owned(), path, target))
    }

    /// What is in a folder, so many levels down.
    pub fn list(&self, place: &Place, depth: u32) -> Result<Vec<Entry>, ApiError> {
        if !(1..=MAX_DEPTH).contains(&depth) {
            return Err(ApiError::bad_request(format!("the depth must be between 1 and {MAX_DEPTH}")));
        }
        let mut found = Vec::new();
        let mut folders = vec![(place.clone(), 1)];
        while let Some((place, level)) = folders.pop() {
            let opened = self.folder(&place).and_then(|folder| Ok((Dir::read_from(&folder)?, folder)));
            let (entries, folder) = match opened {
                Ok(opened) => opened,
                // Removed or replaced meanwhile.
                Err(_) if level > 1 => continue,
                Err(error) => return Err(place.failed(error)),
            };
            for listed in entries {
                let listed = listed.map_err(|error| place.failed(error))?;
                let name = OsStr::from_bytes(listed.file_name().to_bytes()).to_owned();
                if name == "." || name == ".." {
                    continue;
                }
                if found.len() >= MAX_LISTING {
                    return Err(ApiError::bad_request(format!("there are more than {MAX_LISTING} entries")));
                }
                let mut below = place.clone();
                below.0.push(name.to_string_lossy().into_owned());
                let Ok(entry) = self.look(&folder, &name, below.shown()) else { continue };
                if entry.kind == "directory" && level < depth {
                    folders.push((below, level + 1));
                }
                found.push(entry);
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    /// Makes a folder; with `force`, missing ones above it too, and it may exist.
    pub fn make_dir(&self, place: &Place, attributes: Attributes, force: bool) -> Result<Entry, ApiError> {
        let failed = |error| place.failed(error);
        let Some((above, name)) = place.split() else {
            return if force { self.stat(place) } else { Err(place.failed(Errno::EXIST)) };
        };
        let mut folder = match self.folder(&above) {
            Err(Errno::NOENT) if force => self.make_all(&above, attributes).map_err(failed)?,
            other => other.map_err(failed)?,
        };
        match rustix::fs::mkdirat(&folder, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                folder = self.folder(place).map_err(failed)?;
                set(folder.as_fd(), attributes).map_err(failed)?;
            }
            Err(Errno::EXIST) if force && self.stat(place)?.kind == "directory" => {}
            Err(error) => return Err(place.failed(error)),
        }
        self.stat(place)
    }

    fn make_all(&self, place: &Place, attributes: Attributes) -> Result<OwnedFd, Errno> {
        let mut reached = Place(Vec::new());
        let mut folder = self.folder(&reached)?;
        for part in &place.0 {
            let made = rustix::fs::mkdirat(&folder, part.as_str(), Mode::from_raw_mode(0o755));
            reached.0.push(part.clone());
            folder = self.folder(&reached)?;
            match made {
                Ok(()) => set(folder.as_fd(), attributes)?,
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(folder)
    }

    /// Opens a regular file to be read, and tells its length.
    pub fn read(&self, place: &Place) -> Result<(File, u64), ApiError> {
        // Not blocking: it may be a pipe to which nobody writes.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = open(&self.root, &place.relative(), flags).map_err(|error| place.failed(error))?;
        let stat = rustix::fs::fstat(&file).map_err(|error| place.failed(error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(ApiError::not_found(format!("path {} is not a file", place.shown())));
        }
        Ok((File::from(file), u64::try_from(stat.st_size).unwrap_or(0)))
    }

    /// Begins a file. Its folder must be there; it itself may be only with `force`.
    pub fn begin(&self, place: &Place, force: bool) -> Result<Draft, ApiError> {
        let (above, _) = place.split().ok_or_else(|| place.failed(Errno::ISDIR))?;
        self.folder(&above).map_err(|error| place.failed(error))?;
        match self.stat(place) {
            Ok(entry) if entry.kind == "directory" => return Err(place.failed(Errno::ISDIR)),
            Ok(_) if !force => return Err(place.failed(Errno::EXIST)),
            _ => {}
        }
        let name = format!("draft-{}", new_id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.outside, &name, flags, Mode::from_raw_mode(0o600))
            .map_err(|error| place.failed(error))?;
        let outside = self.outside.try_clone().map_err(|error| place.failed(errno(&error)))?;
        Ok(Draft { outside, name, file: File::from(file) })
    }

    /// Moves a complete file to its place.
    pub fn finish(&self, draft: Draft, place: &Place, attributes: Attributes, force: bool) -> Result<Entry, ApiError> {
        let failed = |error| place.failed(error);
        let (above, name) = place.split().ok_or_else(|| place.failed(Errno::ISDIR))?;
        let attributes = Attributes { mode: Some(attributes.mode.unwrap_or(0o644)), ..attributes };
        set(draft.file.as_fd(), attributes).map_err(failed)?;
        let folder = self.folder(&above).map_err(failed)?;
        let how = if force { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        rustix::fs::renameat_with(&draft.outside, &draft.name, &folder, name, how).map_err(failed)?;
        self.stat(place)
    }

    /// Changes what is set on a file or folder.
    pub fn change(&self, place: &Place, attributes: Attributes) -> Result<Entry, ApiError> {
        let failed = |error| place.failed(error);
        let kind = self.stat(place)?.kind;
        if kind == "file" || kind == "directory" {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
            set(open(&self.root, &place.relative(), flags).map_err(failed)?.as_fd(), attributes).map_err(failed)?;
            return self.stat(place);
        }
        Err(ApiError::bad_request(format!("path {} is neither a file nor a directory", place.shown())))
    }

    /// Removes a file, or a folder with all that is in it. It is out of sight at once.
    pub fn remove(&self, place: &Place) -> Result<(), ApiError> {
        let failed = |error| place.failed(error);
        let Some((above, name)) = place.split() else {
            return Err(ApiError::bad_request("the volume itself is removed with DELETE /volumes/{id}"));
        };
        let folder = self.folder(&above).map_err(failed)?;
        match rustix::fs::unlinkat(&folder, name, AtFlags::empty()) {
            Ok(()) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(place.failed(error)),
        }
        let trash = format!("trash-{}", new_id());
        rustix::fs::mkdirat(&self.outside, &trash, Mode::RWXU).map_err(failed)?;
        let removed = self.empty(&folder, name, &trash);
        let _ = rustix::fs::unlinkat(&self.outside, &trash, AtFlags::REMOVEDIR);
        removed.map_err(failed)
    }

    /// Moves a folder into the trash, and from there every folder in it, so that no depth exhausts anything.
    fn empty(&self, folder: &OwnedFd, name: &str, trash: &str) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let trash = rustix::fs::openat(&self.outside, trash, flags, Mode::empty())?;
        rustix::fs::renameat(folder, name, &trash, "0")?;
        let (mut next, mut count) = (0u64, 1u64);
        while next < count {
            let one = next.to_string();
            let opened = rustix::fs::openat(&trash, &one, flags, Mode::empty())?;
            // A sandbox may have taken the permission to write in it.
            let _ = rustix::fs::fchmod(&opened, Mode::RWXU);
            for listed in Dir::read_from(&opened)? {
                let listed = listed?;
                let name = listed.file_name();
                if name.to_bytes() == b"." || name.to_bytes() == b".." {
                    continue;
                }
                match rustix::fs::unlinkat(&opened, name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(Errno::ISDIR | Errno::PERM) => {
                        rustix::fs::renameat(&opened, name, &trash, count.to_string())?;
                        count += 1;
                    }
                    Err(error) => return Err(error),
                }
            }
            rustix::fs::unlinkat(&trash, &one, AtFlags::REMOVEDIR)?;
            next += 1;
        }
        Ok(())
    }

    fn folder(&self, place: &Place) -> Result<OwnedFd, Errno> {
        open(&self.root, &place.relative(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)
    }
}

/// A file that is not complete. Dropping it forgets it.
pub struct Draft {
    outside: OwnedFd,
    name: String,
    /// To be written.
    pub file: File,
}

impl Drop for Draft {
    fn drop(&mut self) {
        // It is not there any more if it was finished.
        let _ = rustix::fs::unlinkat(&self.outside, &self.name, AtFlags::empty());
    }
}

fn open(root: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    loop {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), BENEATH) {
            // The kernel gives up when something on the path is renamed at the same time.
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
}

/// An id inside, as it is on the host. Where the server is not root, there is no choice.
fn on_host(id: Option<u32>) -> Option<u32> {
    let id = id.filter(|_| rustix::process::geteuid().is_root())?;
    Some(if id == USER { 0 } else { VOLUME_IDS + id })
}

/// The reverse.
fn inside(id: u32) -> u32 {
    id.checked_sub(VOLUME_IDS).filter(|id| *id < IDS).unwrap_or(USER)
}

fn set(file: BorrowedFd<'_>, attributes: Attributes) -> Result<(), Errno> {
    let (user, group) = (on_host(attributes.uid), on_host(attributes.gid));
    if user.is_some() || group.is_some() {
        rustix::fs::fchown(file, user.map(Uid::from_raw), group.map(Gid::from_raw))?;
    }
    match attributes.mode {
        Some(mode) => rustix::fs::fchmod(file, Mode::from_raw_mode(mode & MAX_MODE)),
        None => Ok(()),
    }
}

fn entry(stat: &Stat, name: String, path: String, target: Option<String>) -> Entry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        _ => "unknown",
    };
    let when = |seconds: i64, nanos: u64| time::format(u64::try_from(seconds).unwrap_or(0) * 1000 + nanos / 1_000_000);
    Entry {
        name,
        kind,
        path,
        size: stat.st_size,
        mode: stat.st_mode & 0o7777,
        uid: inside(stat.st_uid),
        gid: inside(stat.st_gid),
        atime: when(stat.st_atime, stat.st_atime_nsec),
        mtime: when(stat.st_mtime, stat.st_mtime_nsec),
        ctime: when(stat.st_ctime, stat.st_ctime_nsec),
        target,
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    struct Volume {
        folder: tempfile::TempDir,
        tree: Tree,
    }

    fn volume() -> Volume {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("data")).unwrap();
        fs::write(folder.path().join("secret"), "secret").unwrap();
        let tree = Tree::open(&folder.path().join("data")).unwrap();
        Volume { folder, tree }
    }

    fn place(path: &str) -> Place {
        Place::parse(path).unwrap()
    }

    impl Volume {
        fn inside(&self, path: &str) -> std::path::PathBuf {
            self.folder.path().join("data").join(path)
        }

        fn write(&self, path: &str, content: &str, force: bool) -> Result<Entry, ApiError> {
            use std::io::Write;
            let mut draft = self.tree.begin(&place(path), force)?;
            draft.file.write_all(content.as_bytes()).unwrap();
            self.tree.finish(draft, &place(path), Attributes::default(), force)
        }
    }

    #[test]
    fn paths_stay_in_the_volume() {
        assert_eq!(place("/a/./b//c/").shown(), "/a/b/c");
        assert_eq!(place("../../a/../b").shown(), "/b");
        assert_eq!(place("").shown(), "/");
        assert!(Place::parse("a\0b").is_err() && Place::parse(&"a".repeat(5000)).is_err());
    }

    #[test]
    fn no_symlink_leads_out() {
        let volume = volume();
        symlink("../secret", volume.inside("file")).unwrap();
        symlink("..", volume.inside("up")).unwrap();
        symlink("/etc", volume.inside("etc")).unwrap();
        symlink("/proc/self/root", volume.inside("magic")).unwrap();
        for path in ["file", "up/secret", "etc/passwd", "magic/etc/passwd"] {
            assert!(volume.tree.read(&place(path)).is_err(), "read {path}");
        }
        for path in ["up/new", "etc/new", "magic/tmp/new"] {
            assert!(volume.write(path, "x", true).is_err(), "write {path}");
            assert!(volume.tree.make_dir(&place(path), Attributes::default(), true).is_err(), "mkdir {path}");
        }
        assert!(volume.tree.list(&place("up"), 1).is_err());
        assert!(volume.tree.change(&place("file"), Attributes { mode: Some(0), ..Attributes::default() }).is_err());
        volume.tree.remove(&place("up")).unwrap();
        // Replaces the link, not what it leads to.
        volume.write("file", "mine", true).unwrap();
        assert_eq!(fs::read_to_string(volume.folder.path().join("secret")).unwrap(), "secret");
        assert_eq!(volume.tree.list(&place("/"), 5).unwrap().len(), 3);
    }

    #[test]
    fn files_are_written_whole_or_not_at_all() {
        let volume = volume();
        assert_eq!(volume.write("none/a", "x", false).unwrap_err().status, StatusCode::NOT_FOUND);
        let entry = volume.write("a", "one", false).unwrap();
        assert_eq!((entry.kind, entry.size, entry.mode, entry.path.as_str()), ("file", 3, 0o644, "/a"));
        assert_eq!(volume.write("a", "two", false).unwrap_err().status, StatusCode::CONFLICT);
        volume.write("a", "two", true).unwrap();
        drop(volume.tree.begin(&place("b"), false).unwrap());
        assert!(!volume.inside("b").exists());
        assert_eq!(fs::read_to_string(volume.inside("a")).unwrap(), "two");
        let left: Vec<_> = fs::read_dir(volume.folder.path()).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn folders_are_made_and_removed_however_deep() {
        let volume = volume();
        let none = Attributes::default();
        assert_eq!(volume.tree.make_dir(&place("a/b"), none, false).unwrap_err().status, StatusCode::NOT_FOUND);
        volume.tree.make_dir(&place("a/b"), none, true).unwrap();
        assert_eq!(volume.tree.make_dir(&place("a/b"), none, false).unwrap_err().status, StatusCode::CONFLICT);
        volume.tree.make_dir(&place("a/b"), none, true).unwrap();
        let mut deep =
            rustix::fs::openat(CWD, volume.inside("a"), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&deep, "d", Mode::RWXU).unwrap();
            deep = rustix::fs::openat(&deep, "d", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        volume.tree.remove(&place("a")).unwrap();
        assert!(volume.tree.stat(&place("a")).is_err());
        assert_eq!(volume.tree.remove(&place("a")).unwrap_err().status, StatusCode::NOT_FOUND);
        assert_eq!(fs::read_dir(volume.folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn no_set_id_bits() {
        assert!(Attributes { mode: Some(0o4755), ..Attributes::default() }.check().is_err());
        assert!(Attributes { uid: Some(u32::MAX), ..Attributes::default() }.check().is_err());
        assert!(Attributes { mode: Some(0o755), uid: Some(1000), gid: Some(1000) }.check().is_ok());
    }
}
