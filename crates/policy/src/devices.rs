//! Devices of the host that a sandbox is shown, besides the few that every program expects.

use std::path::PathBuf;

/// What was found for the names that a description has. Made by the engine; part of no file and no request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Devices {
    /// Character devices.
    pub nodes: Vec<Shown>,
    /// Files and folders that go with them (libraries, tools), read-only.
    pub files: Vec<Shown>,
    /// Variables that go with them, `NAME=value`.
    pub env: Vec<String>,
}

/// Something of the host's, and where it is inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// On the host.
    pub from: PathBuf,
    /// Inside, absolute, without `..`.
    pub to: String,
}

impl Devices {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.files.is_empty()
    }
}
