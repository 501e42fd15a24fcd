//! System calls that no safe crate offers. The only crate of the workspace with `unsafe` code.
//!
//! Everything that [`rustix`] wraps safely is used from there directly; this crate holds the rest, one noun a file,
//! each block with the invariant that makes it sound.

pub mod caps;
pub mod clone;
pub mod fdpass;
pub mod filter;
pub mod identity;
pub mod mount;
pub mod net;
pub mod spawn;
