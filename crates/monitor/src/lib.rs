//! The small privileged process beside a confined server.
//!
//! A server parses what strangers send: HTTP, TLS, SSH, registries, archives. So it gives its privileges up before the
//! first byte arrives. Before that it forks a *monitor*, which keeps them, reads nothing from strangers, and performs a
//! fixed list of [tasks](Task) for the server. OpenSSH and Firecracker divide themselves in the same way.
//!
//! ```text
//!  server (no capability on the host, Landlock, seccomp)  ── task, input, descriptors ──►  monitor (privileged, one thread)
//!                                                         ◄── output, descriptors ──       forks a child for each task
//! ```
//!
//! - [`task`]: what can be asked for, and [`perform`], which asks.
//! - [`process`]: the monitor itself.
//! - [`user_namespace`]: how root gives up its power over the host and still owns its files.
//! - [`packet`]: one message with its descriptors.
//!
//! Programs without a monitor (`sloplet run`) perform the same tasks themselves: [`perform`] is the one place that knows.
//!
//! Each task checks its own input: whoever took the server over can ask for anything. The monitor ends when the server
//! does, because its socket closes.

pub mod packet;
pub mod process;
pub mod task;
pub mod user_namespace;

pub use process::{fork, is_confined};
pub use task::{Done, Task, perform};
