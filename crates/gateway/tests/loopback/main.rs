//! The gateway between a client and a host, both on loopback, over TLS.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calls;
mod common;
mod passing;
mod secrets;
