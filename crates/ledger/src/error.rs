//! What can go wrong.

use std::io;
use std::path::{Path, PathBuf};

/// Why something could not be recorded or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The system refused.
    #[error("the ledger cannot {what} {}: {error}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },

    /// The signing key is there but cannot be used.
    #[error("{} is not a signing key; restore it, or move the ledger away to start a new one", .0.display())]
    BadKey(PathBuf),

    /// Not 64 hexadecimal digits.
    #[error("not a public key: a public key is 64 hexadecimal digits, as in the file key.pub")]
    BadPublicKey,

    /// A line is not a record.
    #[error("segment {segment}, line {line} is not a record; `sloplet audit verify` says more")]
    Damaged {
        /// The segment's number.
        segment: u32,
        /// Counted from 1; from where reading began, if that was not the segment's beginning.
        line: u64,
    },

    /// A stored output is not what its name says.
    #[error("the stored output {0} is damaged")]
    DamagedOutput(String),

    /// Not a SHA-256 digest.
    #[error("not a digest: {0:?} is not 64 hexadecimal digits")]
    BadDigest(String),

    /// Whoever the export goes to does not take it.
    #[error("cannot export: {0}")]
    Export(#[source] io::Error),

    /// Records are not reaching the file.
    #[error("the ledger cannot be written: {0}")]
    Failing(String),
}

impl LedgerError {
    /// For `map_err`.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { what, path, error }
    }
}
