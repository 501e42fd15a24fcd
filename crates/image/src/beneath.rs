//! Working inside one directory that holds hostile content: every path is walked relative to a descriptor,
//! beneath it, and never through a symbolic link.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Opens a trusted directory (one whose path does not come out of an image).
pub(crate) fn open_dir(path: &std::path::Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty())?)
}

/// Opens a directory by its real path: what others may have put a symlink on the way to is not opened.
pub(crate) fn open_real_dir(path: &std::path::Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(CWD, path, DIRECTORY, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Opens the directory `path` beneath `root`; no component may be a symbolic link. The empty path is `root` itself.
pub(crate) fn open_dir_beneath(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    loop {
        match rustix::fs::openat2(root, path, DIRECTORY, Mode::empty(), resolve) {
            // The kernel gives up when something on the path is renamed at the same time.
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Opens the directory `path` beneath `root`, creating what is missing. `created` hears of each new directory.
///
/// Returns ELOOP when a component is a symbolic link and ENOTDIR when it is another non-directory.
pub(crate) fn make_dirs_beneath(
    root: BorrowedFd<'_>,
    path: &[u8],
    mut created: impl FnMut(&[u8]),
) -> Result<OwnedFd, Errno> {
    match open_dir_beneath(root, path) {
        Err(Errno::NOENT) => {}
        other => return other,
    }
    let mut dir = open_dir_beneath(root, b"")?;
    let mut end = 0;
    for component in path.split(|b| *b == b'/') {
        end += component.len();
        match rustix::fs::mkdirat(&dir, component, Mode::RWXU) {
            Ok(()) => created(&path[..end]),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        dir = open_dir_beneath(dir.as_fd(), component)?;
        end += 1;
    }
    Ok(dir)
}

/// Removes `name` in `dir`, whatever it is and whatever its modes are; nothing is followed. Absent is fine.
pub(crate) fn remove_tree(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        // In a directory without write permission that the caller owns, the caller's caller has made it writable.
        Err(error) => return Err(error.into()),
    }
    let child = match open_dir_beneath(dir, name.as_bytes()) {
        Ok(child) => child,
        // An unprivileged import keeps modes such as 0000 on directories that it owns.
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(dir, name, Mode::RWXU, AtFlags::empty())?;
            open_dir_beneath(dir, name.as_bytes())?
        }
        Err(error) => return Err(error.into()),
    };
    if !rustix::process::geteuid().is_root() {
        rustix::fs::fchmod(&child, Mode::RWXU)?;
    }
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(&child)? {
        let entry = entry?;
        let bytes = entry.file_name().to_bytes();
        if bytes != b"." && bytes != b".." {
            names.push(OsStr::from_bytes(bytes).to_owned());
        }
    }
    for entry in names {
        remove_tree(child.as_fd(), &entry)?;
    }
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
