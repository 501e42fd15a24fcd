//! Unix sockets and FIFOs in what a sandbox is shown.
//!
//! A read-only mount keeps nobody from connecting to a socket in it or writing to a FIFO: the kernel asks only whether the file's
//! own permissions allow it. Whoever listens on the host is reached, whatever the network is. So a mount that has one is refused
//! unless sockets were allowed. This looks once: what the host's own programs make there later is not seen.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, statat};
use sloplet_policy::Bind;
use sloplet_policy::source::through;

use crate::engine::EngineError;

/// Files and folders that are looked at. Larger trees are looked at in part: nobody waits for minutes.
const MOST: usize = 100_000;

/// Refuses a mount that has a socket or FIFO in it.
pub(crate) fn refuse(found: &OwnedFd, mount: &Bind) -> Result<(), EngineError> {
    let unreadable = |error| EngineError::Unreadable(mount.from.clone(), error);
    match first(found, MOST).map_err(unreadable)? {
        Found::None => Ok(()),
        Found::Channel(below) => {
            let path = match below.as_os_str().is_empty() {
                true => mount.from.clone(),
                false => mount.from.join(below),
            };
            Err(EngineError::Channel(path))
        }
        Found::Unknown => {
            let path = mount.from.display();
            tracing::warn!("{path} has more than {MOST} files: sockets and FIFOs beyond them are not looked for");
            Ok(())
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    None,
    /// Where it is, below what was looked at.
    Channel(PathBuf),
    /// There was too much to look at.
    Unknown,
}

/// The first socket or FIFO in a tree. No link is followed, and what cannot be read is not shown inside either.
fn first(top: &OwnedFd, most: usize) -> io::Result<Found> {
    match FileType::from_raw_mode(fstat(top)?.st_mode) {
        FileType::Directory => {}
        FileType::Socket | FileType::Fifo => return Ok(Found::Channel(PathBuf::new())),
        _ => return Ok(Found::None),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let (mut waiting, mut seen) = (vec![PathBuf::from(".")], 0);
    // Opened for reading once: everything below is found from there.
    let top = openat(CWD, through(top), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    while let Some(path) = waiting.pop() {
        // Gone or changed meanwhile, another file system, or not readable.
        let Ok(folder) = openat2(&top, &path, flags, Mode::empty(), within) else { continue };
        for entry in Dir::read_from(&folder)?.flatten() {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            seen += 1;
            if seen > most {
                return Ok(Found::Unknown);
            }
            let kind = match entry.file_type() {
                FileType::Unknown => statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                kind => kind,
            };
            let below = || path.strip_prefix(".").unwrap_or(&path).join(Path::new(OsStr::from_bytes(name.to_bytes())));
            match kind {
                FileType::Directory => waiting.push(Path::new(".").join(below())),
                FileType::Socket | FileType::Fifo => return Ok(Found::Channel(below())),
                _ => {}
            }
        }
    }
    Ok(Found::None)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn sockets_and_fifos_are_found_however_deep_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let _listener = UnixListener::bind(outside.path().join("socket")).unwrap();
        fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
        fs::write(dir.path().join("a/b/file"), "x").unwrap();
        symlink(outside.path(), dir.path().join("a/link")).unwrap();
        let look = |path: &Path, most| first(&sloplet_policy::source::find(path).unwrap().0, most).unwrap();
        assert_eq!(look(dir.path(), 100), Found::None);
        assert_eq!(look(dir.path(), 2), Found::Unknown);
        assert_eq!(look(outside.path(), 100), Found::Channel("socket".into()));
        assert_eq!(look(&outside.path().join("socket"), 100), Found::Channel(PathBuf::new()));
        rustix::fs::mkfifoat(CWD, dir.path().join("a/b/c/pipe"), Mode::RWXU).unwrap();
        assert_eq!(look(dir.path(), 100), Found::Channel("a/b/c/pipe".into()));
    }
}
