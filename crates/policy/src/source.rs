//! A file or folder of the host that was looked at once, and is the same one whenever it is opened.
//!
//! A path is checked, and opened again later, often by another process. Whoever can write to a folder on the way can put a
//! symlink into its place meanwhile. So a path is resolved once; what is checked is the real path of an open descriptor; and it
//! is opened again without following any link, and only if it is still the same file or folder.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::io::Errno;

/// Which file or folder it is, whatever it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Its file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

impl Identity {
    /// Of something open.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        let stat = fstat(file)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// Opened to be looked at, and nothing else.
const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Resolves a path, links included; returns what is there, opened, and its real path.
pub fn find(path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let found = open(path, LOOK, Mode::empty())?;
    let real = fs::read_link(through(&found))?;
    Ok((found, real))
}

/// Opens a real path again: no link is followed, and with an `identity` it must be the same file or folder as before.
pub fn reopen(real: &Path, identity: Option<Identity>) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let found = loop {
        match openat2(CWD, real, LOOK, Mode::empty(), resolve) {
            // The kernel gives up when something on the way is renamed at the same time.
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::LOOP) => return Err(io::Error::other("a symlink has taken its place since it was checked")),
            other => break other?,
        }
    };
    match identity {
        Some(identity) if Identity::of(&found)? != identity => {
            Err(io::Error::other("another file or folder has taken its place since it was checked: try again"))
        }
        _ => Ok(found),
    }
}

/// A path that leads to exactly what is open, for this process only.
pub fn through(file: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{RenameFlags, renameat_with};

    use super::*;

    #[test]
    fn what_was_swapped_after_it_was_checked_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let [sub, evil, target] = ["sub", "evil", "target"].map(|name| dir.path().join(name));
        fs::create_dir_all(sub.join("deep")).unwrap();
        fs::create_dir_all(target.join("deep")).unwrap();
        symlink(&target, &evil).unwrap();
        symlink(&sub, dir.path().join("link")).unwrap();

        let (found, real) = find(&dir.path().join("link/deep")).unwrap();
        let real_dir = fs::canonicalize(dir.path()).unwrap();
        assert_eq!(real, real_dir.join("sub/deep"), "links of the asker are resolved");
        let identity = Identity::of(&found).unwrap();
        assert_eq!(Identity::of(reopen(&real, Some(identity)).unwrap()).unwrap(), identity);

        let swap = || renameat_with(CWD, &sub, CWD, &evil, RenameFlags::EXCHANGE).unwrap();
        swap();
        assert!(reopen(&real, None).unwrap_err().to_string().contains("symlink"));
        swap();
        fs::rename(&sub, dir.path().join("moved")).unwrap();
        fs::rename(&target, &sub).unwrap();
        assert!(reopen(&real, Some(identity)).unwrap_err().to_string().contains("another file or folder"));
        // What is open stays what it was.
        assert_eq!(fs::read_link(through(&found)).unwrap(), real_dir.join("moved/deep"));
    }
}
