//! Our own API, over HTTP, as clients speak it: well, badly, slowly, and not at all.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod access;
mod bad_input;
mod files;
mod processes;
mod sandboxes;
mod sessions;
mod signatures;
mod tenants;
mod tokens;
mod values;
