//! Objects in S3 and in what speaks like it (Spaces, MinIO, Ceph, R2): streamed up and down with bounded memory.
//!
//! - Up: in parts, several at once; each is sent with its MD5, which the other side checks, and again when it fails. What was
//!   sent before an interruption is not sent again: parts that are there are compared by their digests. At the end the
//!   object's digest is compared with that of what was sent.
//! - Down: one stream that goes on where it broke off, of the same version of the object.
//! - Presigned addresses: whoever knows one may read or write one object for a while, without any credentials.
//!
//! Credentials stay in here: they are in no error, no `Debug` and no log.
//!
//! # Map
//! `settings`: environment. `object`: `s3://bucket/key`, and which of them are allowed. `wire`: one request. `answer`: what others word otherwise. `client`: what can be
//! asked; `upload`, `download`: streams. rusty-s3 signs and reads answers; the HTTP client is the one of all other crates.
//!
//! # Tests
//! `cargo test -p sloplet-s3`; against a server, in `sloplet/tests/transfers`.

mod answer;
mod client;
mod download;
mod error;
mod object;
mod settings;
mod upload;
mod wire;

pub use client::{Client, Head, Method};
pub use download::Download;
pub use error::S3Error;
pub use object::{Object, Root};
pub use settings::Settings;
pub use upload::{PART, Part, Uploaded, part_bytes};
