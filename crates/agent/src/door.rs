//! A listening socket that the agent can do without for a while.
//!
//! A wall that saves its machine's memory cannot save sockets that lead out of it. So before that, it removes [`GATE`] beside
//! the socket and sends the agent [`LET_GO`]. The agent closes its connections and its socket, says so by [`GONE`], and waits for
//! the gate to be there again: afterwards, or where the machine goes on from what was saved. Then it listens anew.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

/// The signal that asks the agent to let go.
pub const LET_GO: i32 = 10;

/// A file beside the socket: without it, the agent does not listen.
pub const GATE: &str = "open";

/// A file beside the socket: the agent has let go.
pub const GONE: &str = "gone";

const PAUSE: Duration = Duration::from_millis(5);

/// Listens at a path, in a folder for this user only, unless it is there: then its owner has said for whom.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    // Of an agent before this one.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    // Who may come is said by the folder alone.
    std::fs::set_permissions(path, Permissions::from_mode(0o777))?;
    Ok(listener.into())
}

/// Says that all sockets are closed, waits for the gate, and listens again.
pub(crate) fn wait_and_listen(path: &Path) -> OwnedFd {
    let (gate, gone) = (path.with_file_name(GATE), path.with_file_name(GONE));
    let _ = std::fs::remove_file(path);
    let _ = std::fs::write(&gone, b"");
    loop {
        if gate.exists() {
            let _ = std::fs::remove_file(&gone);
            if let Ok(listener) = listen(path) {
                return listener;
            }
        }
        std::thread::sleep(PAUSE);
    }
}
