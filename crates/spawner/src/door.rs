//! Unix sockets in an owner's folder: the spawner's own, on which the next engine finds it, and one for each lasting
//! sandbox, on which its agent listens.
//!
//! The folder belongs to this user alone; both ends look at who the other is.

pub use sloplet_sys::private::{is_own, knock, open_door};

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
