//! What a resolved image is: directories to mount and how to start programs in them.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::error::ImageError;

/// An image ready to be mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Image {
    /// `host`, a stored name with its tag, or the path it was imported from.
    pub name: String,
    /// What identifies the content: `sha256:…` of the manifest, of the tar, or of the tree.
    pub digest: String,
    /// Unpacked directories, top first, to be mounted as read-only overlay lowers with `userxattr`.
    pub layers: Vec<PathBuf>,
    /// Host paths to be mounted read-only over the layers; only `host` has some.
    pub binds: Vec<HostBind>,
    /// How the image wants programs started.
    pub config: ImageConfig,
    /// Bytes of all files in its layers.
    pub size_bytes: u64,
    /// When it was imported, in seconds since 1970.
    pub created: u64,
    /// Devices, sockets and FIFOs (and other things that do not belong into an image) left out at import.
    pub skipped_entries: u64,
}

/// One host directory that the `host` image shows inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostBind {
    /// Directory on the host.
    pub source: PathBuf,
    /// Where it belongs inside; the layers hold an empty directory there.
    pub target: PathBuf,
}

/// How an image wants programs started. All of it is the image's wish: hostile, merely well-formed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    /// Environment variables.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub workdir: Option<String>,
    /// `user`, `uid`, `user:group` or `uid:gid`, to be looked up inside.
    pub user: Option<String>,
    /// Start of the command line.
    pub entrypoint: Vec<String>,
    /// Rest of the command line, when the caller gives none.
    pub cmd: Vec<String>,
    /// A shell command line that is run in the background after the start of a long-lived sandbox.
    pub start: Option<String>,
    /// A shell command line that succeeds once that is ready.
    pub ready: Option<String>,
}

/// While it lives, `gc` leaves the image's layers alone, in this and in any other process.
#[derive(Debug)]
pub struct Lease {
    _locks: Vec<OwnedFd>,
}

impl Image {
    /// Keeps the layers from being removed as long as the lease lives. Costs one open and one flock per layer.
    ///
    /// Sandboxes that outlive their engine are protected by handing their layers to [`crate::Store::gc_keeping`].
    pub fn lease(&self) -> Result<Lease, ImageError> {
        let mut locks = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let gone = || ImageError::MissingLayer { name: self.name.clone(), layer: layer.display().to_string() };
            let dir = File::open(layer).map_err(|_| gone())?;
            rustix::fs::flock(&dir, FlockOperation::NonBlockingLockShared).map_err(|_| gone())?;
            // A removal may have moved the directory away between the open and the lock.
            let held = dir.metadata().map_err(|_| gone())?;
            let there = std::fs::symlink_metadata(layer).map_err(|_| gone())?;
            if (held.dev(), held.ino()) != (there.dev(), there.ino()) {
                return Err(gone());
            }
            locks.push(dir.into());
        }
        Ok(Lease { _locks: locks })
    }
}

/// What an import or a pull is doing, for a progress line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// A blob is being fetched from a registry.
    Fetching {
        /// Its digest.
        digest: String,
        /// Its announced size.
        bytes: u64,
    },
    /// A layer is being unpacked.
    Unpacking {
        /// The layer, counted from 1.
        layer: usize,
        /// How many there are.
        of: usize,
        /// Bytes written so far.
        bytes: u64,
    },
    /// A layer was in the store already.
    Present {
        /// The layer, counted from 1.
        layer: usize,
        /// How many there are.
        of: usize,
    },
    /// An outside program said something.
    Message(String),
}

/// Hears of progress; called often, so it should be cheap.
pub type ProgressFn<'a> = &'a (dyn Fn(Progress) + Send + Sync);

/// For callers that want to hear nothing.
pub fn silent(_: Progress) {}
