//! What can be typed to mask data.

use std::path::PathBuf;

use clap::Args;

pub const MASK_EXAMPLES: &str = "\
The same value becomes the same fake in every file and every run with the same key. A column without a rule is refused.

Examples:
  sloplet mask --new-key mask.key
  sloplet mask --suggest customers.csv > customers.toml
  sloplet mask customers.csv --out fake.csv --config customers.toml --key mask.key
  sloplet mask --rows 10000 --schema customers.toml --out made.csv

Formats: CSV, TSV, JSON, JSON Lines, SQLite, SQL dumps.";

/// `sloplet mask`
#[derive(Debug, Args)]
pub struct Mask {
    /// The file with real values.
    pub source: Option<PathBuf>,

    /// Where the masked file goes.
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// The rules.
    #[arg(long, short = 'c', value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// The key; or SLOPLET_MASK_KEY has it.
    #[arg(long, value_name = "FILE", env = "SLOPLET_MASK_KEY_FILE", hide_env_values = true)]
    pub key: Option<PathBuf>,

    /// Write what was found and done to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// csv, tsv, json, jsonl, sqlite or sql [default: by the file's name]
    #[arg(long)]
    pub format: Option<String>,

    /// Whose rules a file with one table has [default: by the file's name]
    #[arg(long)]
    pub table: Option<String>,

    /// Fail if a fake is the real value of another row.
    #[arg(long)]
    pub strict: bool,

    /// Propose rules for the file, from its columns and first rows.
    #[arg(long, conflicts_with_all = ["out", "rows", "new_key"])]
    pub suggest: bool,

    /// Make a new key.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["source", "out", "rows"])]
    pub new_key: Option<PathBuf>,

    /// Generate this many rows from the rules alone.
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["source", "strict"])]
    pub rows: Option<u64>,

    /// The rules for them.
    #[arg(long, value_name = "FILE", requires = "rows")]
    pub schema: Option<PathBuf>,

    /// The same seed makes the same rows.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub seed: u64,

    /// As JSON.
    #[arg(long)]
    pub json: bool,
}
