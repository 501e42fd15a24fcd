//! Folders and Unix sockets that belong to one user alone.
//!
//! A server, its spawners and their clients meet in a *run folder*. Its name can be guessed, and it may lie in `/tmp`, so
//! another user can make it first and wait there. Whoever uses it checks its owner and mode before, and who listens behind
//! a socket before the first byte is sent.
//!
//! Every data folder has a run folder of its own, named after the data folder's identity in the file system: a folder keeps
//! that when it is moved, and has one however it is named; a copy has another.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, open};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::geteuid;

/// What the name of a run folder ends with if virtual machines are recorded in it.
pub const MACHINES: &str = "-vm";

/// Connections that may wait until they are taken: an agent takes none while it is frozen.
const BACKLOG: i32 = 64;

/// The run folder of a data folder, which is made if it is absent. `base` holds the run folders of all.
pub fn run_folder(base: &Path, data: &Path) -> io::Result<PathBuf> {
    let unusable = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot use the data folder {}: {error}", data.display()))
    };
    DirBuilder::new().mode(0o700).recursive(true).create(data).map_err(unusable)?;
    let meta = fs::metadata(data).map_err(unusable)?;
    Ok(base.join(format!("{:x}-{:x}", meta.dev(), meta.ino())))
}

/// Whether a run folder has that name.
pub fn is_run_folder(name: &str) -> bool {
    let hex = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let name = name.strip_suffix(MACHINES).unwrap_or(name);
    name.split_once('-').is_some_and(|(device, inode)| hex(device) && hex(inode))
}

/// Makes a folder that only this user can enter, or checks that the existing one is that.
pub fn make(folder: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(folder).or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Ok(()), // something else: told below
        _ => Err(error),
    })?;
    check(folder)
}

/// Whether the checks below are left out.
static CARELESS: AtomicBool = AtomicBool::new(false);

/// Leaves the checks of folders and listeners out, in this process. For tests of the verifier: release builds ignore it.
#[doc(hidden)]
pub fn trust_anybody() {
    CARELESS.store(cfg!(debug_assertions), Ordering::Relaxed);
}

/// Checks that a folder is one, and that no other user can enter it. `NotFound` if there is none.
pub fn check(folder: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(folder)?;
    let (mine, mode) = (geteuid().as_raw(), meta.mode() & 0o7777);
    let wrong = if !meta.is_dir() {
        "is not a folder".to_owned()
    } else if meta.uid() != mine {
        format!("belongs to user {}, not to you (user {mine})", meta.uid())
    } else if mode & 0o077 != 0 {
        format!("can be entered by other users (its mode is {mode:04o}, not 0700)")
    } else {
        return Ok(());
    };
    if CARELESS.load(Ordering::Relaxed) {
        return Ok(());
    }
    let advice = "nothing was sent there: remove it, or set SLOPLET_RUN to a folder of yours";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} {wrong}: {advice}", folder.display())))
}

/// Makes a socket in a folder and listens on it. The folder can lie deeper than the 108 bytes that a socket's address
/// holds, so it is named by a descriptor.
pub fn open_door(folder: &Path, name: &str, kind: SocketType) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    let (_folder, address) = address(folder, name)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to a socket in a folder without waiting for anybody; the connection does not wait either. Refuses one that
/// another user listens on.
pub fn knock(folder: &Path, name: &str, kind: SocketType) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    let (_folder, address) = address(folder, name)?;
    rustix::net::connect(&socket, &address)?;
    let listener = rustix::net::sockopt::socket_peercred(&socket)?.uid;
    if listener != geteuid() && !CARELESS.load(Ordering::Relaxed) {
        let place = folder.join(name);
        let told = format!("user {} listens on {}, not you: nothing was sent", listener.as_raw(), place.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, told));
    }
    Ok(socket)
}

/// Whether the other end of an accepted connection is this user's, or root's.
pub fn is_own(connection: &OwnedFd) -> bool {
    rustix::net::sockopt::socket_peercred(connection).is_ok_and(|peer| peer.uid == geteuid() || peer.uid.is_root())
}

/// The address is good as long as the descriptor lives.
fn address(folder: &Path, name: &str) -> rustix::io::Result<(OwnedFd, SocketAddrUnix)> {
    let folder = open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))?;
    Ok((folder, address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("sloplet-private-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn a_folder_of_another_user_or_open_to_others_or_a_link_is_refused() {
        let dir = scratch("folders");
        let folder = dir.join("run");
        assert_eq!(check(&folder).unwrap_err().kind(), io::ErrorKind::NotFound);
        make(&folder).unwrap();
        check(&folder).unwrap();
        symlink(&folder, dir.join("link")).unwrap();
        assert!(make(&dir.join("link")).unwrap_err().to_string().contains("is not a folder"));
        fs::write(dir.join("file"), "").unwrap();
        assert!(make(&dir.join("file")).unwrap_err().to_string().contains("is not a folder"));
        fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(make(&folder).unwrap_err().to_string().contains("mode is 0777"));
        fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).unwrap();
        if geteuid().is_root() {
            std::os::unix::fs::chown(&folder, Some(4321), None).unwrap();
            let error = make(&folder).unwrap_err();
            assert!(error.to_string().contains("belongs to user 4321"), "{error}");
            assert!(error.to_string().contains("SLOPLET_RUN"), "{error}");
        }
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_data_folder_has_one_run_folder_however_it_is_named_and_a_copy_has_another() {
        let dir = scratch("names");
        let (base, data) = (dir.join("base"), dir.join("data"));
        let own = run_folder(&base, &data).unwrap();
        assert!(own.parent() == Some(&base) && is_run_folder(own.file_name().unwrap().to_str().unwrap()));
        symlink(&data, dir.join("link")).unwrap();
        assert_eq!(run_folder(&base, &dir.join("link")).unwrap(), own);
        assert_ne!(run_folder(&base, &dir.join("copy")).unwrap(), own);
        fs::rename(&data, dir.join("moved")).unwrap();
        assert_eq!(run_folder(&base, &dir.join("moved")).unwrap(), own);
        assert!(is_run_folder("fd01-2a-vm"));
        for other in ["uids", "templates", "abcdefgh0123", "fd01-", "-2a", "my-folder", "fd01-2a-vm-vm", "a-b-c"] {
            assert!(!is_run_folder(other), "{other}");
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
