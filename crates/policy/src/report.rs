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
    /// Mounts that follow none of the host's, and show the host's files without devices and set-ID programs.
    OwnMounts,
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
    /// Devices of the host (a GPU) for those that ask.
    Devices,
    /// A bound on contexts of asynchronous I/O, for those that ask for it.
    AsyncIo,
    /// The processor itself keeps its machine apart from the host.
    HardwareVirtualization,
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
            Self::OwnMounts => "own mounts",
            Self::NoNetwork => "no network",
            Self::Egress => "egress through the host",
            Self::SyscallFilter => "syscall filter",
            Self::SecondWall => "Landlock as second wall",
            Self::OwnUids => "own user ids",
            Self::RootInside => "root inside",
            Self::Pause => "pause",
            Self::OwnKernel => "own kernel",
            Self::MemorySnapshot => "memory snapshot",
            Self::Devices => "devices (--gpu)",
            Self::AsyncIo => "limit on asynchronous I/O",
            Self::HardwareVirtualization => "hardware virtualization",
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

/// A wall in a few words: what somebody chooses it by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// The driver's name.
    pub driver: String,
    /// The isolation level it provides.
    pub isolation: Isolation,
    /// Whose kernel its programs run on.
    pub kernel: Kernel,
    /// What runs its machine, if it is one.
    pub virtualization: Virtualization,
    /// Whether processes can be saved with their memory.
    pub memory_snapshot: bool,
    /// Whether what it writes is bounded.
    pub disk_bound: bool,
    /// How long a start takes, by order of magnitude.
    pub startup: Startup,
}

/// Whose kernel programs run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kernel {
    /// One of the sandbox's own.
    Own,
    /// The host's.
    Shared,
}

/// What runs a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Virtualization {
    /// The processor.
    Hardware,
    /// A program.
    Emulation,
    /// It is no machine.
    None,
}

/// How long a start takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Startup {
    /// Milliseconds, or tens of them.
    Milliseconds,
    /// Some tenths of a second.
    Tenths,
    /// Seconds.
    Seconds,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernel = match self.kernel {
            Kernel::Own => "its own kernel",
            Kernel::Shared => "the host's kernel",
        };
        let machine = match self.virtualization {
            Virtualization::Hardware => ", hardware virtualization",
            Virtualization::Emulation => ", an emulated processor",
            Virtualization::None => "",
        };
        let memory = if self.memory_snapshot { "snapshots with memory" } else { "no snapshots with memory" };
        let disk = if self.disk_bound { "a bounded disk" } else { "an unbounded disk" };
        let startup = match self.startup {
            Startup::Milliseconds => "milliseconds",
            Startup::Tenths => "tenths of a second",
            Startup::Seconds => "seconds",
        };
        write!(f, "{kernel}{machine}, {disk}, {memory}, starts in {startup}")
    }
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

    /// The same in a few words.
    pub fn summary(&self) -> Summary {
        let holds = |feature| self.claims(feature);
        let virtualization = match self.isolation {
            Isolation::Vm if holds(Feature::HardwareVirtualization) => Virtualization::Hardware,
            Isolation::Vm => Virtualization::Emulation,
            _ => Virtualization::None,
        };
        let startup = match (self.isolation, virtualization) {
            (Isolation::Process | Isolation::Container, _) => Startup::Milliseconds,
            (Isolation::Vm, Virtualization::Emulation) => Startup::Seconds,
            (Isolation::Gvisor | Isolation::Vm, _) => Startup::Tenths,
        };
        Summary {
            driver: self.driver.clone(),
            isolation: self.isolation,
            kernel: if holds(Feature::OwnKernel) { Kernel::Own } else { Kernel::Shared },
            virtualization,
            memory_snapshot: holds(Feature::MemorySnapshot),
            disk_bound: holds(Feature::Disk),
            startup,
        }
    }

    /// The features among `wanted` that do not hold.
    pub fn lacking(&self, wanted: &[Feature]) -> Vec<&Capability> {
        self.capabilities
            .iter()
            .filter(|c| wanted.contains(&c.feature) && c.enforcement == Enforcement::Missing)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_says_what_a_report_says() {
        let report =
            |isolation, capabilities| DriverReport { driver: "x".into(), isolation, unavailable: None, capabilities };
        let plain = report(Isolation::Container, vec![Capability::missing(Feature::OwnKernel, "no", None)]).summary();
        assert_eq!((plain.kernel, plain.virtualization), (Kernel::Shared, Virtualization::None));
        assert!(!plain.memory_snapshot && !plain.disk_bound);
        let mut all = vec![Capability::enforced(Feature::OwnKernel, ""), Capability::watched(Feature::Disk, "")];
        let emulated = report(Isolation::Vm, all.clone()).summary();
        assert_eq!((emulated.virtualization, emulated.startup), (Virtualization::Emulation, Startup::Seconds));
        all.push(Capability::enforced(Feature::HardwareVirtualization, ""));
        let real = report(Isolation::Vm, all).summary();
        assert_eq!(
            (real.virtualization, real.startup, real.kernel),
            (Virtualization::Hardware, Startup::Tenths, Kernel::Own)
        );
        assert!(real.to_string().contains("hardware virtualization, a bounded disk, no snapshots"), "{real}");
    }
}
