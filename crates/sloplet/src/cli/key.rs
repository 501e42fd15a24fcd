//! What can be typed about API keys.

use clap::Subcommand;
use sloplet_policy::ByteSize;

use super::SshKeys;

/// `sloplet key`
#[derive(Debug, Subcommand)]
pub enum Key {
    /// Make a key. Its secret is shown this once.
    #[command(after_help = "Example:\n  sloplet key create ci --scope use --max-sandboxes 10")]
    Create {
        /// For people.
        label: String,
        /// What it allows: read, use or admin.
        #[arg(long, default_value = "use", value_parser = ["read", "use", "admin"])]
        scope: String,
        /// Sandboxes that it may have at once.
        #[arg(long, value_name = "NUMBER")]
        max_sandboxes: Option<u64>,
        /// Memory that they may have together.
        #[arg(long, value_name = "SIZE")]
        max_memory: Option<ByteSize>,
        /// Requests in a minute.
        #[arg(long, value_name = "NUMBER")]
        rate: Option<u32>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// List keys.
    Ls {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Public keys for logins over SSH.
    #[command(subcommand)]
    Ssh(SshKeys),
    /// Remove keys. Their sandboxes stay until their time is over.
    Rm {
        /// Their ids.
        #[arg(required = true)]
        ids: Vec<String>,
    },
}
