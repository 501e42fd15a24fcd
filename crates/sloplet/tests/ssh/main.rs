//! OpenSSH's own clients against the SSH server.
//!
//! - [`doors`]: who is let in, and who is not. [`hostile`]: who wants to do harm. [`sessions`]: commands and shells. [`files`]: sftp, scp and rsync.
//! - [`documented`]: docs/ssh.md. [`ports`], [`sockets`]: forwarding. [`lives`]: sandboxes that sleep, are made by a login, or outlive a server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod client;
mod crafted;
mod documented;
mod doors;
mod files;
mod hostile;
mod lives;
mod ports;
mod sessions;
mod sockets;
