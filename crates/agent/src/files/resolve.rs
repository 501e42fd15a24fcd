//! Paths, resolved by the kernel and never out of the root.
//!
//! Nothing here trusts a path it has looked at: programs inside rename folders and swap symlinks while the agent works.
//! So every path goes to `openat2(2)` below a descriptor of the root, and what follows is done relative to the
//! descriptor that came back. Kernels without that call (gVisor) have [`stepwise`].

use std::ffi::{CStr, CString};
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use sloplet_wire::{ErrorCode, Failure};

use crate::context::{Actor, path_bytes};
use crate::failure::{self, fail, shown};

use super::stepwise;

/// The kernel answers EAGAIN when a rename elsewhere raced with a resolution that contained `..`, or when a lease is
/// held on the file; a hostile program can keep that up, so there is an end to trying.
const ATTEMPTS: usize = 64;

/// The folder that requests cannot leave.
#[derive(Debug)]
pub(crate) struct Root {
    fd: OwnedFd,
    /// Its own path without a trailing slash: empty for `/`.
    prefix: Vec<u8>,
}

/// A name in a folder.
#[derive(Debug)]
pub(crate) struct Place {
    /// The folder (an `O_PATH` descriptor).
    pub(crate) folder: OwnedFd,
    /// The name; neither `.` nor `..`.
    pub(crate) name: CString,
}

impl Root {
    pub(crate) fn new(path: &Path) -> Result<Self, Errno> {
        let fd = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut prefix = path_bytes(path).to_vec();
        while prefix.last() == Some(&b'/') {
            prefix.pop();
        }
        Ok(Self { fd, prefix })
    }

    /// Whether the wall has a root of its own.
    pub(crate) fn is_whole(&self) -> bool {
        self.prefix.is_empty()
    }

    /// Opens an absolute path. New descriptors are close-on-exec.
    pub(crate) fn open_below(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC;
        if self.is_whole() {
            let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
            return open_at(&self.fd, path, flags, mode, resolve);
        }
        // Files of the surrounding system (such as /etc/passwd) are outside.
        let below = path.strip_prefix(&*self.prefix).ok_or(Errno::XDEV)?;
        let below: &[u8] = match below {
            [] => b".",
            [b'/', rest @ ..] if rest.iter().all(|byte| *byte == b'/') => b".",
            [b'/', ..] => &below[below.iter().take_while(|byte| **byte == b'/').count()..],
            _ => return Err(Errno::XDEV),
        };
        open_at(&self.fd, below, flags, mode, ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS)
    }

    /// As [`Self::open_below`], with a failure that names the path.
    pub(crate) fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Failure> {
        self.open_below(path, flags, Mode::empty()).map_err(|error| failure::errno(error, shown(path)))
    }

    /// The place that a path names: its last component is not resolved.
    pub(crate) fn place(&self, path: &[u8]) -> Result<Place, Failure> {
        let (parent, name) = split(path)?;
        let folder = self.open(parent, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(Place { folder, name })
    }

    /// As [`Self::place`], making missing folders on the way.
    pub(crate) fn place_with_parents(&self, path: &[u8], actor: &Actor) -> Result<Place, Failure> {
        let (parent, name) = split(path)?;
        let folder = self.make_folders(parent, actor)?;
        Ok(Place { folder, name })
    }

    /// Opens a folder, making it and its parents if missing.
    pub(crate) fn make_folders(&self, path: &[u8], actor: &Actor) -> Result<OwnedFd, Failure> {
        const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);
        match self.open_below(path, FOLDER, Mode::empty()) {
            Err(Errno::NOENT) => {}
            other => return other.map_err(|error| failure::errno(error, shown(path))),
        }
        // Upwards to what exists, then down again.
        let mut missing = vec![path];
        let mut folder = loop {
            let (parent, _) = split(missing[missing.len() - 1])?;
            match self.open_below(parent, FOLDER, Mode::empty()) {
                Ok(folder) => break folder,
                Err(Errno::NOENT) => missing.push(parent),
                Err(error) => return Err(failure::errno(error, shown(parent))),
            }
        };
        while let Some(path) = missing.pop() {
            let (_, name) = split(path)?;
            match make_folder(&folder, &name, 0o755, actor) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(failure::errno(error, format_args!("making {}", shown(path)))),
            }
            folder = self.open(path, FOLDER)?;
        }
        Ok(folder)
    }
}

/// Makes a folder, which belongs to whom it is made for.
pub(crate) fn make_folder(parent: &OwnedFd, name: &CStr, mode: u32, actor: &Actor) -> Result<(), Errno> {
    rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode & 0o1777))?;
    match actor.owner() {
        Some((uid, gid)) => rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW),
        None => Ok(()),
    }
}

/// `openat2` with the retries it asks for.
pub(crate) fn open_at(
    folder: &OwnedFd,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let mut result = Err(Errno::AGAIN);
    for _ in 0..ATTEMPTS {
        result = rustix::fs::openat2(folder, path, flags, mode, resolve);
        if matches!(result, Err(Errno::NOSYS)) {
            return stepwise::open(folder, path, flags, mode, resolve);
        }
        if !matches!(result, Err(Errno::AGAIN | Errno::INTR)) {
            break;
        }
    }
    result
}

/// The magic path of an open descriptor, for calls that take no descriptor. The descriptor is the agent's own and the
/// entry is made by the kernel, so nobody inside can bend it.
pub(crate) fn by_descriptor(fd: &impl std::os::fd::AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Makes a path absolute: relative ones start at `home`.
pub(crate) fn absolute(path: &[u8], home: &[u8]) -> Result<Vec<u8>, Failure> {
    if path.is_empty() || path.contains(&0) {
        return Err(fail(ErrorCode::Invalid, "a path is empty or contains a NUL byte"));
    }
    if path.starts_with(b"/") {
        return Ok(path.to_vec());
    }
    let mut whole = home.to_vec();
    if whole.last() != Some(&b'/') {
        whole.push(b'/');
    }
    whole.extend_from_slice(path);
    Ok(whole)
}

/// Cuts off the last component.
fn split(path: &[u8]) -> Result<(&[u8], CString), Failure> {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    let trimmed = &path[..end];
    let cut = trimmed.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let (parent, name) = trimmed.split_at(cut);
    if matches!(name, b"" | b"." | b"..") {
        return Err(fail(ErrorCode::Invalid, format!("{} names no entry of a folder", shown(path))));
    }
    let name = CString::new(name).map_err(|_| fail(ErrorCode::Invalid, "a path contains a NUL byte"))?;
    Ok((parent, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_component_is_cut_off() {
        let cut = |path: &str| split(path.as_bytes()).map(|(p, n)| (String::from_utf8_lossy(p).into_owned(), n));
        assert_eq!(cut("/a/b").unwrap(), ("/a/".into(), c"b".into()));
        assert_eq!(cut("/a//b//").unwrap(), ("/a//".into(), c"b".into()));
        assert_eq!(cut("/a").unwrap(), ("/".into(), c"a".into()));
        for bad in ["/", "//", "/a/..", "/.", "/a/./"] {
            assert_eq!(cut(bad).unwrap_err().code, ErrorCode::Invalid, "{bad}");
        }
    }
}
