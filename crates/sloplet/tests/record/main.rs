//! What happened is written down where nobody inside can reach, can be read, proven, exported, priced and watched.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod local;
mod network;
mod served;
mod watching;

use serde_json::Value;

/// Records, one a line.
fn records(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Those of a kind.
fn of_kind<'a>(records: &'a [Value], kind: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["event"]["kind"] == kind).map(|record| &record["event"]).collect()
}
