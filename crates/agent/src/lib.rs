//! The first process in every sandbox: starts programs, moves their bytes, reads and writes files, dials ports.
//!
//! [`serve`] runs one event loop in one thread. It is called in a process forked without exec from a small
//! single-threaded one, already behind its wall; or by a static program where the wall needs a file to start.
//!
//! # Map
//! - `server`: the loop: readiness, a fair queue of small slices of work, timers, dispatch of requests.
//! - `connection`, `stream`, `outgoing`, `poll`: the multiplexed byte stream, its flow control, the waiting.
//! - `process`, `exec`, `terminal`, `ring`, `lingering`: started programs, from fork to exit status.
//! - `builtin/*`: what it starts without a program of the image: an SFTP server, a joined socket.
//! - `users`, `context`: who a request acts as, in the sandbox's own terms.
//! - `files/*`: everything on paths, resolved by the kernel below one root (`openat2`).
//! - [`program`]: the agent as a program, for walls that start a file.
//! - `pack`, `unpack`: folders as tar streams; `watch`: changes; `dial`, `listen`: ports and sockets; `processes`: the process list.
//!
//! # Fairness
//! Work is cut into slices: one read of a pipe, a few hundred directory entries, a chunk of a file. Every runnable
//! stream gets one slice a turn, and bulk data is produced only while the stream has credit and the connection's
//! buffer has room. So a flooding process delays a file read by no more than a few slices.
//!
//! # Limitations
//! - When a program ends but something it left behind keeps its output open, `Exited` follows after
//!   [`OUTPUT_GRACE`], and what the leftover writes later is read and thrown away (so that it does not die of a closed
//!   pipe).
//! - A process has one stream at a time: attaching takes it over from the former stream.
//! - Without a root of its own (`Config::root` other than `/`), absolute symlinks are refused even if they lead to
//!   a place below the root.
//! - Regular file I/O is synchronous: a slow disk slows all streams.
//! - Sockets, FIFOs and devices are left out of archives and refused in them.
//!
//! # Tests
//! `tests/*.rs` start the `serve` example as a child and speak the protocol to it over a socket, as ordinary user and
//! with identities to switch, including hostile files, archives, floods and lost connections.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use sloplet_sys::filter::SockFilter;

mod builtin;
mod connection;
mod context;
mod dial;
pub mod door;
mod exec;
mod failure;
mod files;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod killing;
mod lingering;
mod listen;
mod long_line;
mod outgoing;
mod pack;
mod poll;
mod process;
mod processes;
pub mod program;
mod request;
mod ring;
mod server;
mod stream;
mod terminal;
mod unpack;
mod users;
mod watch;

/// How long output may stay open after its program has ended before `Exited` is sent regardless.
pub const OUTPUT_GRACE: Duration = Duration::from_millis(100);

/// What an agent needs.
#[derive(Debug)]
pub struct Config {
    /// The first connection: a connected stream socket.
    pub stream: Option<OwnedFd>,
    /// A connection over two descriptors of whatever kind: what is read from, and what is written to.
    pub pipes: Option<(OwnedFd, OwnedFd)>,
    /// A character device, such as a virtio port, that carries one connection at a time: a new one whenever the host
    /// opens its end again.
    pub device: Option<PathBuf>,
    /// A listening socket for later connections. Each is a session of its own over the same processes.
    pub listener: Option<OwnedFd>,
    /// Where the listening socket has its name, if the agent is to let go of all its sockets when it is told so (see
    /// [`door`]).
    pub door: Option<PathBuf>,
    /// Whom processes and file operations may be.
    pub identity: Identity,
    /// File requests cannot leave this folder; `/` where the wall has a root of its own.
    pub root: PathBuf,
    /// Its own `/proc/self/oom_score_adj`, opened for reading and writing while that was still allowed: the score is
    /// raised for the moment of each fork, so that the kernel's out-of-memory killer takes started processes first.
    pub oom_score: Option<File>,
    /// A seccomp filter for commands, on top of what the agent itself is under.
    pub command_filter: Option<Vec<SockFilter>>,
    /// One that [`sloplet_wire::Request::FilterCommands`] puts in force later.
    pub spare_filter: Option<Vec<SockFilter>>,
}

/// Whom processes and file operations may be.
#[derive(Debug, Clone)]
pub enum Identity {
    /// The agent is root inside and becomes whoever is asked for.
    Switch {
        /// Whom it becomes when nobody is asked for: `name`, `uid` or `uid:gid`.
        default_user: String,
    },
    /// There is one user only, the one the agent already is.
    Fixed {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Name.
        name: String,
        /// Home folder.
        home: PathBuf,
    },
}

/// Serves until the last connection is gone, or for ever if there is a listener or a device.
///
/// Changes process-wide state: ignores SIGPIPE and SIGXFSZ, blocks SIGCHLD, sets the umask to 0, becomes a child subreaper and
/// reaps every child. The calling process must have no use of its own for these, and one thread.
pub fn serve(config: Config) -> std::io::Result<()> {
    server::Server::new(config)?.run()
}
