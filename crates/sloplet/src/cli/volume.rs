//! What can be typed about volumes.

use clap::Subcommand;

/// `sloplet volume`
#[derive(Debug, Subcommand)]
pub enum Volume {
    /// Make an empty volume.
    #[command(
        after_help = "Examples:\n  sloplet volume create data && sloplet create --volume data:/data\n  sloplet volume create small --size 1GiB"
    )]
    Create {
        /// Its name.
        name: String,
        /// How large it can become; takes a server that is root [default: as large as the host's disk]
        #[arg(long)]
        size: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// List volumes.
    Ls {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove volumes and what is in them.
    Rm {
        /// Their names or ids.
        #[arg(required = true)]
        names: Vec<String>,
    },
}
