//! The HTTP front ends of the engine. No logic of their own: they check who asks, translate, and stream.
//!
//! - [`gate`]: one listener for everything; looks at a request and says whose it is.
//! - [`e2b`]: the API that E2B's SDKs speak: `control` (sandboxes, templates, volumes) and `envd` (processes and files of
//!   one sandbox).
//! - [`v1`]: our own API, described by an OpenAPI document.
//! - [`browser`]: web pages as clients of E2B's API.
//! - [`preview`]: HTTP to a port inside a sandbox.
//! - [`record`]: what of it is written down; [`retention`]: for how long.
//! - [`storage`]: the S3 that it may use.
//! - [`traces`]: spans for OpenTelemetry. [`metrics`]: counters for Prometheus.
//! - [`ssh`]: public keys for logins; the server for them is a crate of its own.
//! - [`auth`]: keys, scopes, quotas. [`walls`]: what keys may use. [`listen`]: sockets, TLS, time-outs.
//!
//! # Tests
//! `crates/sloplet/tests` run the server for real, with E2B's own packages as clients.

pub mod account;
pub mod app;
pub mod auth;
pub mod bodies;
pub mod browser;
pub mod e2b;
pub mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod gate;
pub mod guesses;
pub mod listen;
pub mod metrics;
mod opening;
mod places;
pub mod preview;
pub mod record;
pub mod refusals;
pub mod retention;
pub mod ssh;
pub mod storage;
pub mod traces;
pub mod v1;
pub mod walls;

pub use app::{App, Config};
pub use error::ApiError;
