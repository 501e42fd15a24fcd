//! Saved sandboxes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sloplet_store::Document;

use super::clock::now_ms;
use super::record::{NewSandbox, Record};
use crate::driver::SnapshotReport;

/// A saved sandbox: an image that new ones start from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Letters and digits; also the name of its image.
    pub id: String,
    /// The API key it belongs to.
    pub owner: String,
    /// Unique to its owner, if it was given one.
    pub name: Option<String>,
    /// The sandbox that was saved.
    pub sandbox: String,
    /// What that sandbox's image was called.
    pub template: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// Bytes that the sandbox had changed.
    pub bytes: u64,
    /// Files that the sandbox had changed.
    pub files: u64,
    /// How long its processes stood still for it, in microseconds; 0 if they did anyway.
    pub frozen_us: u64,
    /// Anything to remember.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Patterns of what was left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<String>,
    /// Its processes with their memory, if they were saved, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

/// The saved memory of a sandbox; a folder of the snapshot's id holds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// The wall that it goes on behind.
    pub driver: String,
    /// What it takes on the host's disk.
    pub bytes: u64,
    /// What the sandbox was asked to be: what goes on from here must be the same.
    pub request: NewSandbox,
}

impl Snapshot {
    /// Of a sandbox whose files were saved, now.
    pub(super) fn of(
        sandbox: &Record,
        id: String,
        name: Option<String>,
        metadata: BTreeMap<String, String>,
        saved: &SnapshotReport,
    ) -> Self {
        Self {
            id,
            owner: sandbox.owner.clone(),
            name,
            sandbox: sandbox.id.clone(),
            template: sandbox.template().to_owned(),
            created_ms: now_ms(),
            bytes: saved.bytes,
            files: saved.files,
            frozen_us: saved.frozen_for.as_micros() as u64,
            metadata,
            excluded: Vec::new(),
            memory: None,
        }
    }

    /// The name of its image in the image store.
    pub fn image(&self) -> String {
        image_name(&self.id)
    }
}

/// The name of a snapshot's image in the image store.
pub(super) fn image_name(id: &str) -> String {
    format!("snapshot-{id}")
}

impl Document for Snapshot {
    const KIND: &'static str = "snapshot";

    fn id(&self) -> &str {
        &self.id
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn created_ms(&self) -> u64 {
        self.created_ms
    }
}
