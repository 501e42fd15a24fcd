//! The tools, a file for each group.

pub mod code;
pub mod exec;
pub mod files;
pub mod info;
mod interpreter;
pub mod network;
pub mod ports;
pub mod processes;
mod read;
pub mod search;
pub mod sharing;
pub mod snapshots;

use serde_json::Value;

pub use read::{Lines, Read, read};

/// A field of an answer as text.
fn word(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

/// No arguments.
#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}
