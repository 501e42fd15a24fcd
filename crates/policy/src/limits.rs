//! What bounds a sandbox. Every field always has a value: nothing is unbounded by default.

use serde::{Deserialize, Serialize};

use crate::report::Feature;
use crate::units::{ByteSize, Cpus, Span};

/// Bounds of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Memory of all its processes together, page cache and in-memory files included. Swap is not available to it.
    pub memory: ByteSize,
    /// Processor time per second of wall clock.
    pub cpus: Cpus,
    /// Processes and threads at once.
    pub pids: u32,
    /// Bytes it may write to its file system.
    pub disk: ByteSize,
    /// Files it may make; derived from `disk` (one for 16 KiB) unless given.
    pub inodes: Option<u64>,
    /// Wall-clock life; then everything in it is killed.
    pub timeout: Span,
    /// Output of one command that is passed on; the rest is dropped, and that is said.
    pub output: ByteSize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: ByteSize::gib(2),
            cpus: Cpus { millis: 2000 },
            pids: 512,
            disk: ByteSize::gib(1),
            inodes: None,
            timeout: Span(std::time::Duration::from_secs(3600)),
            output: ByteSize::gib(1),
        }
    }
}

/// The most processes that a kernel can have.
const MOST_PIDS: u32 = 4_194_304;

/// Bytes of a disk: what its file system can hold in one file.
const MOST_DISK: u64 = 16 << 40;

/// The most files that ext4 can have.
const MOST_INODES: u64 = u32::MAX as u64;

impl Limits {
    /// Files it may make. One for 16 KiB is what ext4 gives a disk of that size by default.
    pub fn inodes(&self) -> u64 {
        self.inodes.unwrap_or((self.disk.0 / 16_384).clamp(1024, MOST_INODES))
    }

    /// Whether the disk, kept in memory, could not be filled without running into the memory limit first.
    pub fn disk_outgrows_memory(&self) -> bool {
        self.disk.0 > self.memory.0 / 2
    }

    /// Refuses values with which no program could start.
    pub fn check(&self) -> Result<(), LimitError> {
        let too_small = |what, minimum| Err(LimitError::TooSmall { what, minimum });
        if self.memory < ByteSize::mib(4) {
            return too_small("memory", "4MiB");
        }
        if self.disk < ByteSize::mib(1) {
            return too_small("disk", "1MiB");
        }
        if self.disk.0 > MOST_DISK {
            return Err(LimitError::TooLarge { what: "disk", maximum: MOST_DISK });
        }
        if self.pids < 4 {
            return too_small("pids", "4");
        }
        if self.pids > MOST_PIDS {
            return Err(LimitError::TooLarge { what: "pids", maximum: MOST_PIDS.into() });
        }
        if self.inodes() < 64 {
            return too_small("inodes", "64");
        }
        if self.inodes() > MOST_INODES {
            return Err(LimitError::TooLarge { what: "inodes", maximum: MOST_INODES });
        }
        Ok(())
    }

    /// The features a wall must have for these limits to hold.
    pub fn features() -> [Feature; 6] {
        [Feature::Memory, Feature::Cpu, Feature::Pids, Feature::Disk, Feature::Timeout, Feature::Output]
    }
}

/// A limit with which no program could start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Below the minimum.
    #[error("{what} is too small for any program to start: give at least {minimum}")]
    TooSmall {
        /// Which limit.
        what: &'static str,
        /// The least it can be.
        minimum: &'static str,
    },
    /// Above what the kernel knows.
    #[error("{what} is more than can be counted: give at most {maximum}")]
    TooLarge {
        /// Which limit.
        what: &'static str,
        /// The most it can be.
        maximum: u64,
    },
}
