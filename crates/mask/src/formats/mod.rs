//! How data are written down.

pub mod csv;
pub mod json;
pub mod pipeline;
pub mod sql;
pub mod sqlite;

use std::path::Path;
use std::str::FromStr;

use crate::MaskError;

/// The formats that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Rows with a delimiter, the first of which names the columns.
    Csv,
    /// The same with tabs.
    Tsv,
    /// One JSON document: a list of records, or one record.
    Json,
    /// A record on each line.
    Jsonl,
    /// A database.
    Sqlite,
    /// What pg_dump, mysqldump and sqlite3's `.dump` write.
    Sql,
}

impl Format {
    /// By the name of a file.
    pub fn of(path: &Path) -> Result<Self, MaskError> {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        extension.to_lowercase().parse().map_err(|_| MaskError::Format(path.to_owned()))
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "csv" => Self::Csv,
            "tsv" | "tab" => Self::Tsv,
            "json" => Self::Json,
            "jsonl" | "ndjson" => Self::Jsonl,
            "sqlite" | "sqlite3" | "db" => Self::Sqlite,
            "sql" => Self::Sql,
            _ => return Err(format!("'{text}' is no format: csv, tsv, json, jsonl, sqlite or sql")),
        })
    }
}
