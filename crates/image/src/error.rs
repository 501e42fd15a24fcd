//! The one error of this crate: a variant per failing step, carrying the path or name.

use std::io;
use std::path::{Path, PathBuf};

use crate::limits::LimitExceeded;

/// Why an image could not be opened, imported, pulled or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The store itself could not be read or written.
    #[error("image store: cannot {action} {}: {source}", path.display())]
    Store {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The store is not private to the caller.
    #[error("image store {} belongs to uid {owner}, not to the caller (uid {caller}); use another data directory", path.display())]
    ForeignStore {
        /// The store's directory.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
        /// Who asks.
        caller: u32,
    },
    /// A record of the store does not parse.
    #[error("image store: {} is damaged ({reason}); remove it, then import the image again", path.display())]
    DamagedRecord {
        /// The record.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No image of that name.
    #[error(
        "unknown image '{name}'; there is: {known}. Get one with `sloplet image import <dir|tar|layout> --name {name}` or `sloplet image pull <reference>`{hint}"
    )]
    Unknown {
        /// The name asked for.
        name: String,
        /// What exists, comma-separated.
        known: String,
        /// A more specific hint, or nothing.
        hint: String,
    },
    /// A name that cannot name an image.
    #[error("'{name}' cannot name an image: {reason}")]
    BadName {
        /// The name.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// A layer that a record names is missing, for instance since a concurrent removal.
    #[error("image '{name}': its layer {layer} is gone from the store; import or pull the image again")]
    MissingLayer {
        /// The image.
        name: String,
        /// The layer's digest.
        layer: String,
    },
    /// The source of an import could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Source {
        /// The file or directory.
        path: PathBuf,
        /// What the kernel or the decompressor said.
        source: io::Error,
    },
    /// The source is nothing that can be imported.
    #[error("{} is no image: {reason}; expected a directory, a tar (plain, gzip, zstd, xz), an OCI layout or a docker-save archive", path.display())]
    NotAnImage {
        /// The file or directory.
        path: PathBuf,
        /// What was found instead.
        reason: String,
    },
    /// The image is malformed or hostile; nothing of it is kept.
    #[error("refused image: entry '{entry}': {reason}")]
    Refused {
        /// The offending entry.
        entry: String,
        /// Why it is refused.
        reason: String,
    },
    /// A cap was hit; nothing of the image is kept.
    #[error("refused image: it has {0}")]
    TooBig(#[from] LimitExceeded),
    /// Content does not have the digest that was announced for it.
    #[error("refused image: {what} has digest {actual}, but {expected} was announced")]
    DigestMismatch {
        /// Which blob or layer.
        what: String,
        /// The announced digest.
        expected: String,
        /// The digest of what came.
        actual: String,
    },
    /// A manifest, index or configuration does not parse or asks for what is not supported.
    #[error("refused image: {what}: {reason}")]
    BadManifest {
        /// Which document.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// An archive of a snapshot is none, or is damaged, or is not for this host; nothing of it is kept.
    #[error("refused snapshot: {reason}")]
    BadArchive {
        /// What is wrong.
        reason: String,
    },
    /// An image cannot be written as an archive.
    #[error("cannot export '{name}': {reason}")]
    NotExported {
        /// The image.
        name: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// Unpacking failed for a reason of this host (disk full, no xattr support…).
    #[error("cannot unpack '{entry}': {source}")]
    Unpack {
        /// The entry.
        entry: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The registry could not be asked or refused.
    #[error("cannot pull {reference}: {reason}")]
    Pull {
        /// What was to be pulled.
        reference: String,
        /// What went wrong.
        reason: String,
    },
    /// A program that is needed is missing or failed.
    #[error("{program}: {reason}")]
    Program {
        /// The program.
        program: &'static str,
        /// What went wrong, with a hint.
        reason: String,
    },
}

impl ImageError {
    pub(crate) fn store(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        ImageError::Store { action, path: path.to_path_buf(), source: source.into() }
    }

    pub(crate) fn source(path: &Path, source: impl Into<io::Error>) -> Self {
        ImageError::Source { path: path.to_path_buf(), source: source.into() }
    }

    pub(crate) fn refused(entry: &[u8], reason: impl Into<String>) -> Self {
        ImageError::Refused { entry: printable(entry), reason: reason.into() }
    }

    pub(crate) fn unpack(entry: &[u8], source: impl Into<io::Error>) -> Self {
        ImageError::Unpack { entry: printable(entry), source: source.into() }
    }

    pub(crate) fn manifest(what: impl Into<String>, reason: impl ToString) -> Self {
        ImageError::BadManifest { what: what.into(), reason: reason.to_string() }
    }
}

/// Names out of an image end up on a terminal: no control characters, bounded length.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let shown: String = String::from_utf8_lossy(bytes).escape_debug().take(200).collect();
    if bytes.len() > 200 { format!("{shown}…") } else { shown }
}
