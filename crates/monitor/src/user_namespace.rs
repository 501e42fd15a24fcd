//! Root without power over the host.
//!
//! In a user namespace of its own that maps every id to itself, root still owns the files it owned, can give files of an
//! image to their owners, and looks the same to all code. But its capabilities count there alone: it can mount nothing, load
//! no module, change no setting, trace no process of the host. Landlock then bounds which files it reaches.

use std::fs;
use std::io;

use sloplet_sys::clone::{Namespaces, SingleThreaded};

use crate::process;
use crate::task::{Done, Task, perform};

/// Every id there is.
const ALL: &str = "0 0 4294967295";

/// Maps the ids of the server: that takes privileges outside its namespace.
pub static MAP_IDS: Task = Task { name: "map-ids", run: map_ids };

/// Moves this process into a user namespace of its own, with the help of the monitor.
pub fn enter() -> io::Result<()> {
    SingleThreaded::prove()?.unshare(Namespaces::USER)?;
    perform::<()>(&MAP_IDS, &(), Vec::new()).map(drop)
}

fn map_ids(_: &[u8], _: Vec<std::os::fd::OwnedFd>) -> io::Result<Done> {
    let server = process::server().ok_or_else(|| io::Error::other("there is no server"))?.as_raw_nonzero();
    fs::write(format!("/proc/{server}/gid_map"), ALL)?;
    fs::write(format!("/proc/{server}/uid_map"), ALL)?;
    Done::with(&())
}
