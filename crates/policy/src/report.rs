//! What a wall really enforces on this host.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::spec::Isolation;

/// Something a sandbox can be asked to guarantee.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Feature {
    /// A bound on memory.
    Memory,
    /// A bound on processor time.
    Cpu,
    /// A bound on processes.
    Pids,
    /// A bound on bytes and files written.
    Disk,
    /// Everything dies at the deadline.
    Timeout,
    /// A bound on output.
    Output,
    /// A root file system of its own.
    OwnRoot,
    /// No network but its own loopback.
    NoNetwork,
    /// Connections to the outside that the host decides on and makes.
    Egress,
    /// A filter on system calls.
    SyscallFilter,
    /// A second, independent wall around files (Landlock).
    SecondWall,
    /// User ids that exist nowhere else on the host.
    OwnUids,
    /// Root inside (sudo works) that is nobody outside.
    RootInside,
    /// Freezing all processes in place.
    Pause,
    /// A kernel of its own.
    OwnKernel,
    /// Snapshots with memory.
    MemorySnapshot,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory limit",
            Self::Cpu => "CPU limit",
            Self::Pids => "process limit",
            Self::Disk => "disk limit",
            Self::Timeout => "timeout",
            Self::Output => "output limit",
            Self::OwnRoot => "own root file system",
            Self::NoNetwork => "no network",
            Self::Egress => "egress through the host",
            Self::SyscallFilter => "syscall filter",
            Self::SecondWall => "Landlock as second wall",
            Self::OwnUids => "own user ids",
            Self::RootInside => "root inside",
            Self::Pause => "pause",
            Self::OwnKernel => "own kernel",
            Self::MemorySnapshot => "memory snapshot",
        })
    }
}

/// How well a feature holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// The kernel (or the host outside the sandbox's reach) enforces it at every instant.
    Enforced,
    /// It is checked at short intervals and answered by killing: it can be exceeded for a moment.
    Watched,
    /// It does not hold.
    Missing,
}

/// One line of a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    /// What.
    pub feature: Feature,
    /// How well.
    pub enforcement: Enforcement,
    /// By what means, or why not.
    pub detail: String,
    /// What to do to get it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Capability {
    /// A feature that holds.
    pub fn enforced(feature: Feature, detail: impl Into<String>) -> Self {
        Self { feature, enforcement: Enforcement::Enforced, detail: detail.into(), remedy: None }
    }

    /// A feature that is checked at intervals.
    pub fn watched(feature: Feature, detail: impl Into<String>) -> Self {
        Self { feature, enforcement: Enforcement::Watched, detail: detail.into(), remedy: None }
    }

    /// A feature that does not hold.
    pub fn missing(feature: Feature, detail: impl Into<String>, remedy: Option<&str>) -> Self {
        Self { feature, enforcement: Enforcement::Missing, detail: detail.into(), remedy: remedy.map(Into::into) }
    }
}

/// What one driver does on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverReport {
    /// The driver's name.
    pub driver: String,
    /// The isolation level it provides.
    pub isolation: Isolation,
    /// Why it cannot be used here at all, if it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// What holds and what does not.
    pub capabilities: Vec<Capability>,
}

impl DriverReport {
    /// The features that hold, enforced or watched.
    pub fn claimed(&self) -> Vec<Feature> {
        let held = self.capabilities.iter().filter(|known| known.enforcement != Enforcement::Missing);
        held.map(|known| known.feature).collect()
    }

    /// Whether a feature holds, enforced or watched.
    pub fn claims(&self, feature: Feature) -> bool {
        self.claimed().contains(&feature)
    }

    /// The features among `wanted` that do not hold.
    pub fn lacking(&self, wanted: &[Feature]) -> Vec<&Capability> {
        self.capabilities
            .iter()
            .filter(|c| wanted.contains(&c.feature) && c.enforcement == Enforcement::Missing)
            .collect()
    }
}
