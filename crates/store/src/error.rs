//! What can go wrong.

use std::path::PathBuf;

/// Why something could not be remembered or found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process has it.
    #[error("{} is in use by another server ({}): end that one first, or use another folder with --data", .0.display(), .1)]
    InUse(PathBuf, String),
    /// Its folder or lock.
    #[error("cannot open {}: {}", .0.display(), .1)]
    Open(PathBuf, std::io::Error),
    /// A newer sloplet wrote it.
    #[error("{} was written by a newer sloplet (format {}): use that one", .0.display(), .1)]
    Newer(PathBuf, i64),
    /// Something is forgotten, but not yet in all files.
    #[error(
        "what was removed is still in sloplet.db-wal, because another program reads the database: close that program; \
         the next start of the server empties the file"
    )]
    LogInUse,
    /// There is no space for something new.
    #[error("no space left on device for the database: free some, for example with 'sloplet rm' or 'sloplet image rm'")]
    Full,
    /// The name is taken.
    #[error("the name '{0}' is taken")]
    Taken(String),
    /// The file.
    #[error("the database: {0}")]
    Sqlite(rusqlite::Error),
    /// A document that is not what its type expects.
    #[error("the database holds a damaged {kind} '{id}': {error}")]
    Damaged {
        /// Its kind.
        kind: &'static str,
        /// Its id.
        id: String,
        /// What is wrong with it.
        error: serde_json::Error,
    },
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => Self::Full,
            _ => Self::Sqlite(error),
        }
    }
}
