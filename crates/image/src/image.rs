//! What a resolved image is: directories to mount and how to start programs in them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// An image ready to be mounted. It can be written down, for a sandbox that outlives its engine.
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

impl Image {
    /// An image of folders that are there already, not in any store.
    pub fn of_folders(name: &str, layers: Vec<PathBuf>, binds: Vec<HostBind>, config: ImageConfig) -> Self {
        let (name, digest) = (name.to_owned(), String::new());
        Self { name, digest, layers, binds, config, size_bytes: 0, created: 0, skipped_entries: 0 }
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
