//! What can be typed about snapshots.

use clap::{Args, Subcommand};

/// `sloplet snapshot`
#[derive(Debug, Args)]
pub struct Snapshot {
    /// What else.
    #[command(subcommand)]
    pub command: Option<Snapshots>,

    /// The sandbox's name or id.
    #[arg(required = true)]
    pub name: Option<String>,

    /// A name for the snapshot.
    pub new_name: Option<String>,

    /// Save its processes with their memory, too, where its driver can: 'sloplet fork --from' goes on from there.
    #[arg(long)]
    pub memory: bool,

    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// `sloplet snapshot …`
#[derive(Debug, Subcommand)]
pub enum Snapshots {
    /// List snapshots.
    Ls {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove snapshots. Sandboxes made from them are not touched.
    Rm {
        /// Their names or ids.
        #[arg(required = true)]
        names: Vec<String>,
    },
}
