//! What is remembered of templates and their builds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sloplet_policy::Limits;
use sloplet_policy::units::{ByteSize, Cpus};
use sloplet_store::Document;

/// What sandboxes of a template may use; the usual limits where absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// Processors.
    pub cpus: Option<u32>,
    /// Memory in MiB.
    pub memory_mib: Option<u64>,
    /// Disk in MiB.
    pub disk_mib: Option<u64>,
}

impl Resources {
    /// Limits with these in place of the usual ones.
    pub fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        if let Some(cpus) = self.cpus {
            limits.cpus = Cpus { millis: cpus.saturating_mul(1000) };
        }
        if let Some(memory) = self.memory_mib {
            limits.memory = ByteSize::mib(memory);
            // What is written lives in memory unless it cannot: a larger disk must be asked for.
            limits.disk = limits.disk.min(ByteSize::mib(memory / 2));
        }
        if let Some(disk) = self.disk_mib {
            limits.disk = limits.disk.max(ByteSize::mib(disk));
        }
        limits
    }
}

/// A named, built image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// Letters and digits.
    pub id: String,
    /// The API key it belongs to.
    pub owner: String,
    /// Unique to its owner.
    pub name: String,
    /// Whether others may use it, if they know its id.
    pub public: bool,
    /// Which finished build each tag means.
    pub tags: BTreeMap<String, Tag>,
    /// Builds asked for so far.
    pub build_count: u64,
    /// Sandboxes made from it so far.
    pub spawn_count: u64,
    /// When the last of them was made, in milliseconds since 1970.
    pub last_spawned_ms: Option<u64>,
    /// When it was made.
    pub created_ms: u64,
    /// When it was last changed.
    pub updated_ms: u64,
}

/// A name for one build of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    /// That build.
    pub build: String,
    /// Since when, in milliseconds since 1970.
    pub assigned_ms: u64,
}

impl Document for Template {
    const KIND: &'static str = "template";

    fn id(&self) -> &str {
        &self.id
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    fn name(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn created_ms(&self) -> u64 {
        self.created_ms
    }
}

/// How far a build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Asked for.
    Waiting,
    /// Its steps run.
    Building,
    /// There is an image.
    Ready,
    /// There is none.
    Error,
}

/// Why a build failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// For people.
    pub message: String,
    /// `base`, the number of a step from 1, or `finalize`.
    pub step: Option<String>,
    /// What was said last.
    pub entries: Vec<LogEntry>,
}

/// One build of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// A UUID.
    pub id: String,
    /// The API key it belongs to.
    pub owner: String,
    /// Its template's id.
    pub template: String,
    /// How far it is.
    pub status: Status,
    /// Why it failed.
    pub reason: Option<Reason>,
    /// What sandboxes made from it may use.
    pub resources: Resources,
    /// Tags that it gets when it is ready.
    pub tags: Vec<String>,
    /// When it was asked for, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it last changed.
    pub updated_ms: u64,
    /// When it was over.
    pub finished_ms: Option<u64>,
}

impl Build {
    /// The name of its image in the image store.
    pub fn image(&self) -> String {
        image_name(&self.template, &self.id)
    }
}

/// The name of a build's image in the image store.
pub(super) fn image_name(template: &str, build: &str) -> String {
    format!("{IMAGES}{template}:{build}")
}

/// How the names of all templates' images begin.
pub(super) const IMAGES: &str = "template-";

impl Document for Build {
    const KIND: &'static str = "build";

    fn id(&self) -> &str {
        &self.id
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    fn created_ms(&self) -> u64 {
        self.created_ms
    }
}

/// How much a line of a log matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// For those who look for a mistake.
    Debug,
    /// Standard output, and what the builder does.
    Info,
    /// Standard error.
    Warn,
    /// Why the build failed.
    Error,
}

/// A line of a build's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// In milliseconds since 1970.
    pub at_ms: u64,
    /// How much it matters.
    pub level: Level,
    /// The line.
    pub message: String,
    /// `base`, the number of a step from 1, or `finalize`.
    pub step: Option<String>,
}

/// The log of a build that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptLog {
    /// The build's id.
    pub id: String,
    /// The build's owner.
    pub owner: String,
    /// When it was over.
    pub created_ms: u64,
    /// Its lines.
    pub entries: Vec<LogEntry>,
}

impl Document for KeptLog {
    const KIND: &'static str = "build-log";

    fn id(&self) -> &str {
        &self.id
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    fn created_ms(&self) -> u64 {
        self.created_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_memory_has_a_disk_that_fits_into_it_unless_more_is_asked_for() {
        let limits = |memory_mib, disk_mib| Resources { cpus: Some(1), memory_mib, disk_mib }.limits();
        assert_eq!(limits(Some(1024), None).disk, ByteSize::mib(512));
        assert_eq!(limits(Some(4096), None).disk, Limits::default().disk);
        assert_eq!(limits(Some(1024), Some(3000)).disk, ByteSize::mib(3000));
        assert_eq!(limits(None, None).cpus, Cpus { millis: 1000 });
    }
}
