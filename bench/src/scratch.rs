//! Folders for everything that is made here, removed at the end.

use std::path::Path;

use anyhow::{Context, Result};
use tempfile::{Builder, TempDir};

/// A folder on disk and one in memory.
pub struct Scratch {
    disk: TempDir,
    memory: TempDir,
}

impl Scratch {
    /// Makes them. Records of what is running belong into memory, as on every host whose `/run` is a tmpfs.
    pub fn make() -> Result<Self> {
        let make = |dir: &Path| Builder::new().prefix("sloplet-bench-").tempdir_in(dir).context("making a folder");
        Ok(Self { disk: make(&std::env::temp_dir())?, memory: make(Path::new("/dev/shm"))? })
    }

    /// On disk.
    pub fn disk(&self) -> &Path {
        self.disk.path()
    }

    /// In memory.
    pub fn memory(&self) -> &Path {
        self.memory.path()
    }
}
