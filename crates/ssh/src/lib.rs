//! The SSH front end: `ssh NAME@server` is a shell in a sandbox, with files (`sftp`, `scp`, `rsync`) and forwarded ports.
//!
//! No logic of its own, as the HTTP front ends: it checks who asks, translates, and streams. What it starts inside is
//! started by the engine, and all that parses what a client sends about files or connects for it runs inside, as the
//! sandbox's user (`sloplet_wire::Builtin`).
//!
//! - [`server`]: the listener, its limits, and streams that come over HTTP.
//! - [`host_key`]: made once, kept in the data folder. [`authorized`]: a file of keys of the server's own user.
//! - `login`: one connection: who it is, which channels it may open. `crowd`: how many may be there who are not let in yet;
//!   `strikes`: who failed too often.
//! - `guest`: the sandbox that a connection is for; woken, or made at the first login.
//! - `session`: shells, commands and SFTP. `uploads`: what of SFTP is written down. `forward`: connections to ports and
//!   sockets inside, and to what the sandbox may reach; `listening`: from ports and sockets inside to the client.
//!
//! # Limitations
//! - A channel whose input nobody reads is held back only after a few MiB, and then the whole connection is: the library
//!   gives no say in the windows of single channels.
//! - Modes of terminals (`stty` of the client) are not taken over; X11 and the forwarding of agents are refused.
//!
//! # Tests
//! `crates/sloplet/tests/ssh` runs OpenSSH's own clients against it.

pub mod authorized;
mod crowd;
mod forward;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod guest;
pub mod host_key;
mod listening;
mod login;
pub mod server;
mod session;
mod strikes;
mod uploads;

pub use server::{Options, Server};
