//! What sloplet remembers: documents in one SQLite file.
//!
//! A document is a Rust value kept as JSON, with the few columns by which it is found: its id, the key that owns it, a
//! name that is unique among its owner's, and when it was made. What a document means is its type's business
//! ([`Document`]); a new kind needs no new table.
//!
//! One process at a time has a file open: [`Store::open`] takes a lock beside it.
//!
//! A full disk keeps nobody from changing or forgetting what is remembered: some space is reserved for that beside the file.
//!
//! # Limitations
//! Writes reach the disk at the kernel's leisure: a killed process loses nothing, a power cut may lose the last second.
//!
//! # Tests
//! `cargo test -p sloplet-store`.

mod collection;
mod error;
mod file;
mod reserve;

pub use collection::{Collection, Document};
pub use error::StoreError;
pub use file::Store;
