//! The server and what it keeps: what survives it, and what does not.
//!
//! - [`crash`]: kill -9 at any moment. [`steps`]: kill -9 at every step of an operation.
//! - [`full`]: a disk without space.
//! - [`hostile`]: clients that take all they can get.
//! - [`identity`]: which data folder a server is of.
//! - [`layers`]: what was removed is gone from the disk.
//! - [`previews`]: ports of sandboxes.
//! - [`spawners`]: spawners that are killed or hang, and too few descriptors.
//! - [`traces`]: what a collector is told.
//! - [`time`]: lifetimes, with and without a server.
//! - [`reconnect`]: E2B's package when the server is killed under it.
//! - [`clients`]: E2B's own packages, unmodified. [`domain`]: the same by the names of a domain, over TLS.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod clients;
mod crash;
mod domain;
mod full;
mod hostile;
mod identity;
mod layers;
mod previews;
mod reconnect;
mod spawners;
mod steps;
mod time;
mod traces;
