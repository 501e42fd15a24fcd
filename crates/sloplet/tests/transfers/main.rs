//! Large things on their way: snapshots from one server to another, files to and from S3.
//!
//! - [`snapshots`]: whole, or not at all; as files, through pipes and through S3.
//! - [`objects`]: files of sandboxes in S3: in parts, cut off, killed and gone on with; presigned addresses.
//! - [`foreign`]: the same, as far as it depends on the other side, against an S3 that others wrote.
//! - [`relay`]: connections that are held up and cut.
//! - [`storage`]: an S3 on loopback that checks signatures, digests and expiry (`s3.py`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod foreign;
mod objects;
mod relay;
mod snapshots;
mod storage;
