//! The life of a sandbox: the one implementation behind every front end.
//!
//! - [`engine`]: [`Engine`], which turns a [`Spec`](sloplet_policy::Spec) into a [`Sandbox`].
//! - [`sandbox`]: a running sandbox; commands, files and ports are its agent's.
//! - [`driver`]: what a wall must offer. The engine knows no wall by name.
//! - [`life`]: sandboxes that outlive the request that made them.
//! - [`places`]: where data and records are kept.
//!
//! # Limitations
//! Sandboxes live as long as the engine that made them.
//!
//! # Tests
//! The workspace's `tests/` run real sandboxes through this crate and through the binary, as root and as an ordinary
//! user.

pub mod driver;
pub mod engine;
pub mod life;
pub mod places;
pub mod sandbox;

pub use driver::{Driver, DriverError, End, Machine, Pending, Unsupported};
pub use engine::{Engine, EngineError};
pub use places::Places;
pub use sandbox::{Command, Sandbox};
