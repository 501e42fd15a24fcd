//! What can go wrong, each with what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MaskError {
    /// A file could not be read or written.
    #[error("cannot {what} '{path}': {source}")]
    File {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The rules make no sense.
    #[error("the rules are not right: {0}")]
    Rules(String),
    /// The key cannot be used.
    #[error("the key '{path}' cannot be used: {why}")]
    Key {
        /// Where it was looked for.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// Data for which nobody said what to do.
    #[error(
        "no rule for {list}: write one for each, or declare it safe with \"keep\"; `sloplet mask --suggest` proposes rules",
        list = listed(names)
    )]
    NoRule {
        /// Tables, columns or paths.
        names: Vec<String>,
    },
    /// The data are not what their format says.
    #[error("line {line}: {why}")]
    Malformed {
        /// Where, counted from one; for a database, the row.
        line: u64,
        /// What is wrong there.
        why: String,
    },
    /// A database refused something.
    #[error("SQLite, {what}: {source}")]
    Database {
        /// What was tried.
        what: String,
        /// Why not.
        source: rusqlite::Error,
    },
    /// Fakes are the same as real values, and that was not to be.
    #[error(
        "{count} fake values of {columns} are also real values of another row: use another key, or do without --strict",
        columns = listed(columns)
    )]
    Coincidence {
        /// How many were seen.
        count: u64,
        /// Of which rules.
        columns: Vec<String>,
    },
    /// A format that is not known.
    #[error(
        "'{0}' is of no known format: use .csv, .tsv, .json, .jsonl, .ndjson, .sqlite, .sqlite3, .db or .sql, or say it with --format"
    )]
    Format(PathBuf),
}

impl MaskError {
    /// For `map_err` on work with a file.
    pub(crate) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { what, path: path.to_owned(), source }
    }

    /// For `map_err` on work with a database.
    pub(crate) fn database(what: impl Into<String>) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Database { what: what.into(), source }
    }

    pub(crate) fn malformed(line: u64, why: impl Into<String>) -> Self {
        Self::Malformed { line, why: why.into() }
    }
}

/// Some names, and how many more there are.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 20;
    let mut text = names.iter().take(SHOWN).map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}
