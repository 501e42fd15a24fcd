//! Unix sockets in an owner's folder: the spawner's own, on which the next engine finds it, and one for each lasting
//! sandbox, on which its agent listens.
//!
//! The folder belongs to this user alone; both ends look at who the other is.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::net::SocketType;
use serde::{Deserialize, Serialize};
use sloplet_monitor::{Done, Task, is_confined, perform, task};
use sloplet_policy::Realm;
use sloplet_sys::private;
pub use sloplet_sys::private::is_own;

/// Connects to a socket in the run folder: a confined server makes no Unix sockets by itself, so that it reaches no other
/// program of the host.
pub static KNOCK: Task = Task {
    name: "knock",
    run: |input, _| {
        let place = Place::checked(input)?;
        Ok(Done::with_fds(vec![private::knock(&place.folder, &place.name, place.kind())?]))
    },
};

/// Makes a socket in the run folder and listens on it.
pub static OPEN_DOOR: Task = Task {
    name: "open-door",
    run: |input, _| {
        let place = Place::checked(input)?;
        Ok(Done::with_fds(vec![private::open_door(&place.folder, &place.name, place.kind())?]))
    },
};

/// A socket in a folder.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    folder: PathBuf,
    name: String,
    packets: bool,
}

impl Place {
    fn new(folder: &Path, name: &str, kind: SocketType) -> Self {
        Self { folder: folder.to_owned(), name: name.to_owned(), packets: kind == SocketType::SEQPACKET }
    }

    /// One that is in the run folder of the server that asks.
    fn checked(input: &[u8]) -> io::Result<Self> {
        let place: Self = task::input(input)?;
        if let Some(realm) = Realm::get() {
            realm.check_run(&place.folder)?;
        }
        match place.name.is_empty() || place.name.contains('/') || place.name == ".." {
            true => Err(io::Error::new(io::ErrorKind::InvalidInput, "that is no name of a socket")),
            false => Ok(place),
        }
    }

    fn kind(&self) -> SocketType {
        if self.packets { SocketType::SEQPACKET } else { SocketType::STREAM }
    }
}

/// As [`private::knock`], by way of the monitor where there is one.
pub fn knock(folder: &Path, name: &str, kind: SocketType) -> io::Result<OwnedFd> {
    ask(&KNOCK, folder, name, kind, private::knock)
}

/// As [`private::open_door`], by way of the monitor where there is one.
pub fn open_door(folder: &Path, name: &str, kind: SocketType) -> io::Result<OwnedFd> {
    ask(&OPEN_DOOR, folder, name, kind, private::open_door)
}

fn ask(
    task: &Task,
    folder: &Path,
    name: &str,
    kind: SocketType,
    here: fn(&Path, &str, SocketType) -> io::Result<OwnedFd>,
) -> io::Result<OwnedFd> {
    if !is_confined() {
        return here(folder, name, kind);
    }
    let ((), mut fds) = perform(task, &Place::new(folder, name, kind), Vec::new())?;
    fds.pop().ok_or_else(|| io::Error::from(rustix::io::Errno::MFILE))
}

/// The spawner's own socket.
pub const CONTROL: &str = "control";

/// The name of the socket of a sandbox's agent.
pub fn of_agent(id: &str) -> String {
    format!("agent-{id}")
}

/// The name of the socket of a sandbox's keeper, where it has a runtime.
pub fn of_keeper(id: &str) -> String {
    format!("keeper-{id}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    use rustix::net::SocketType;

    #[test]
    fn a_door_in_a_deep_folder_is_found() {
        let top = tempfile::tempdir().unwrap();
        let deep = top.path().join("d".repeat(100)).join("e".repeat(100));
        std::fs::create_dir_all(&deep).unwrap();
        assert_eq!(knock(&deep, CONTROL, SocketType::SEQPACKET).unwrap_err().kind(), ErrorKind::NotFound);
        let door = open_door(&deep, CONTROL, SocketType::SEQPACKET).unwrap();
        let ours = knock(&deep, CONTROL, SocketType::SEQPACKET).unwrap();
        let theirs = rustix::net::accept(&door).unwrap();
        rustix::io::write(&theirs, b"x").unwrap();
        assert_eq!(rustix::io::read(&ours, &mut [0u8; 8]).unwrap(), 1);
        // Nobody takes these, and still nobody waits.
        let agent = open_door(&deep, &of_agent("a"), SocketType::STREAM).unwrap();
        let waiting: Vec<_> = (0..200).map(|_| knock(&deep, &of_agent("a"), SocketType::STREAM)).collect();
        assert!(waiting[0].is_ok() && waiting[199].as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
        drop(agent);
        assert!(knock(&deep, &of_agent("a"), SocketType::STREAM).is_err());
    }
}
