//! Sandboxes that outlive their engine, and snapshots of them. The engine is a program of its own
//! (`examples/lasting_engine.rs`) that takes orders and can be killed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod adoption;
#[path = "../common/mod.rs"]
mod common;
mod engine;
mod outlets;
mod roots;
mod snapshots;
