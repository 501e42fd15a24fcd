//! Fake data that fit: real values out, invented ones in, so that nobody would care if a copy got out.
//!
//! The same value becomes the same fake in every file and every run, as long as the key is the same, so joins still
//! match; formats, check digits and uniqueness stay. A column for which nobody said what to do is refused.
//!
//! - [`config`], [`rule`]: what is done with each column, read from TOML.
//! - [`key`], [`prf`], [`permute`], [`shape`]: from a value to its fake: HMAC-SHA-256, and permutations of all values of a
//!   shape.
//! - [`fakes`], [`words`]: e-mail addresses, cards, names and the rest.
//! - [`detect`], [`text`]: personal data and secrets in free text.
//! - [`table`], [`check`], [`report`]: rows, and what is told about them.
//! - [`formats`]: CSV, JSON, JSON Lines, SQLite, SQL dumps. [`run`]: a file in, a file out.
//! - [`mod@suggest`]: rules for a file, from looking at it. [`mod@generate`]: rows from nothing.
//!
//! # Limitations
//! Free text can hold what no detector knows. Numbers beyond 64 bits lose digits in JSON. A JSON document that is one object
//! is held in memory; everything else is streamed. Column names, the schema of a database and the number of rows stay.
//! Parquet is not read.
//!
//! # Tests
//! `cargo test -p sloplet-mask`. `cargo run --release -p sloplet-mask --example speed` measures.

pub mod check;
mod column;
pub mod config;
pub mod detect;
mod error;
pub mod fakes;
pub mod formats;
pub mod generate;
mod hash;
pub mod key;
pub mod output;
pub mod permute;
pub mod prf;
pub mod report;
pub mod rule;
pub mod run;
pub mod shape;
pub mod suggest;
pub mod table;
pub mod text;
pub mod words;

pub use config::Config;
pub use error::MaskError;
pub use formats::Format;
pub use generate::generate;
pub use key::Key;
pub use report::Report;
pub use run::{Options, mask_file, mask_file_with};
pub use suggest::{Suggestion, suggest};
