//! The life of a sandbox: the one implementation behind every front end.
//!
//! - [`engine`]: [`Engine`], which turns a [`Spec`](sloplet_policy::Spec) into a [`Sandbox`].
//! - [`sandbox`]: a running sandbox; commands, files and ports are its agent's.
//! - [`driver`]: what a wall must offer. The engine knows no wall by name.
//! - [`life`]: sandboxes that outlive the request that made them.
//! - [`template`]: images that clients describe step by step.
//! - [`cdi`]: devices of the host, by name.
//! - [`data`]: files that go in masked.
//! - [`outward`]: the way out of a sandbox. [`journal`]: what is written down about it; [`origins`], [`cost`]: what that tells.
//! - [`patch`]: changes of files, for `git apply`.
//! - [`failpoint`]: where tests kill a server.
//! - [`trust`]: whose word a `sloplet.toml` is.
//! - [`allowance`]: how much memory clients may make a server hold. [`pace`]: how fast something may go on.
//! - [`places`]: where data and records are kept. [`aside`]: what takes long and nobody waits for.
//!
//! Sandboxes live as long as the engine that made them, except lasting ones: [`Engine::create_lasting`], which a later
//! engine finds with [`Engine::adopt`].
//!
//! # Tests
//! The workspace's `tests/` run real sandboxes through this crate and through the binary, as root and as an ordinary
//! user.

pub mod allowance;
pub mod aside;
pub mod cdi;
mod channels;
pub mod cost;
pub mod data;
pub mod driver;
pub mod engine;
pub mod failpoint;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod journal;
pub mod life;
pub mod origins;
pub mod outward;
pub mod pace;
pub mod patch;
pub mod places;
pub mod sandbox;
pub mod template;
pub mod trust;

pub use driver::{
    Adopted, Adoption, CheckpointReport, Driver, DriverError, End, Extras, Machine, MachineState, Outlets, Overdue,
    Pending, PutFile, SnapshotReport, Unsupported, Usage, Wanted, When,
};
pub use engine::{Engine, EngineError, SavedMemory};
pub use journal::Journal;
pub use outward::{Outside, Patron};
pub use places::Places;
pub use sandbox::{Command, Sandbox};
pub use trust::Trust;
