//! Unix sockets in an owner's folder: the spawner's own, on which the next engine finds it, and one for each lasting
//! sandbox, on which its agent listens.
//!
//! The folder belongs to this user alone, so whoever gets there may come in. It can lie deeper than the 108 bytes that a
//! socket's address holds, so it is named by a descriptor.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};

/// The spawner's own socket.
pub const CONTROL: &str = "control";

/// Connections that may wait until they are taken: an agent takes none while it is frozen.
const BACKLOG: i32 = 64;

/// The name of the socket of a sandbox's agent.
pub fn of_agent(id: &str) -> String {
    format!("agent-{id}")
}

/// The name of the socket of a sandbox's keeper, where it has a runtime.
pub fn of_keeper(id: &str) -> String {
    format!("keeper-{id}")
}

/// Makes a socket of that name and listens on it.
pub fn open_door(owner_dir: &Path, name: &str, kind: SocketType) -> rustix::io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    let (_folder, address) = address(owner_dir, name)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to a socket of that name, without waiting for anybody; the connection does not wait either.
pub fn knock(owner_dir: &Path, name: &str, kind: SocketType) -> rustix::io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    let (_folder, address) = address(owner_dir, name)?;
    connect(&socket, &address)?;
    Ok(socket)
}

/// The address is good as long as the descriptor lives.
fn address(owner_dir: &Path, name: &str) -> rustix::io::Result<(OwnedFd, SocketAddrUnix)> {
    let folder = open(owner_dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))?;
    Ok((folder, address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn a_door_in_a_deep_folder_is_found() {
        let top = tempfile::tempdir().unwrap();
        let deep = top.path().join("d".repeat(100)).join("e".repeat(100));
        std::fs::create_dir_all(&deep).unwrap();
        assert_eq!(knock(&deep, CONTROL, SocketType::SEQPACKET).unwrap_err(), Errno::NOENT);
        let door = open_door(&deep, CONTROL, SocketType::SEQPACKET).unwrap();
        let ours = knock(&deep, CONTROL, SocketType::SEQPACKET).unwrap();
        let theirs = rustix::net::accept(&door).unwrap();
        rustix::io::write(&theirs, b"x").unwrap();
        assert_eq!(rustix::io::read(&ours, &mut [0u8; 8]).unwrap(), 1);
        // Nobody takes these, and still nobody waits.
        let agent = open_door(&deep, &of_agent("a"), SocketType::STREAM).unwrap();
        let waiting: Vec<_> = (0..200).map(|_| knock(&deep, &of_agent("a"), SocketType::STREAM)).collect();
        assert!(waiting[0].is_ok() && waiting[199].as_ref().is_err_and(|error| *error == Errno::AGAIN));
        drop(agent);
        assert!(knock(&deep, &of_agent("a"), SocketType::STREAM).is_err());
    }
}
