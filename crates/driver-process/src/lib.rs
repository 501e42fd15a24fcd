//! The lightest wall, isolation `process`: one confined process tree on the host's own root, without any namespace.
//!
//! For hosts on which even an ordinary user's namespaces are forbidden. Commands see the host's programs at their usual
//! paths and can write to one private folder, which is their home, their working directory and their `TMPDIR`; it is
//! removed at the end. There is no network at all, not even loopback. As root, each sandbox has a user id of its own.
//!
//! This crate is the engine's side; the walls are built by [`sloplet_spawner::process`].
//!
//! - [`driver`]: [`ProcessDriver`], the driver.
//! - [`machine`]: one running sandbox.
//! - [`planning`]: from a spec to a plan, and what a spec cannot ask of this level.
//! - [`system`]: what of the host is readable.
//! - [`usage`]: how much a sandbox has written.
//! - [`report`]: what holds here.
//!
//! # Files
//! Paths mean the same to commands, to file requests and on the host: a file written through the agent is seen by
//! commands at the same path. Landlock, not a root of its own, bounds both; relative paths start at the private folder.
//!
//! # Limitations
//! - Only the image `host`; mounts must have the same path inside as on the host.
//! - `/proc` is closed except for a few facts about the machine, so `ps` and `top` do not work; neither does what needs
//!   `/dev/shm` (Python's `multiprocessing` locks), sockets, System V IPC or a fixed path in `/tmp`.
//! - Bytes written are watched, not enforced, and files that were deleted while open are not seen. A single file cannot
//!   exceed the limit.
//! - Names and metadata of the host's files can be seen where their permissions allow it. See
//!   [`sloplet_spawner::process`] for what this means for an ordinary user, whose commands run as himself; terminals
//!   work as root only.
//!
//! # Tests
//! Unit tests here; `tests/walls.rs` runs real sandboxes with hostile commands in them.

pub mod driver;
pub mod machine;
pub mod planning;
pub mod report;
pub mod system;
pub mod usage;

pub use driver::ProcessDriver;
