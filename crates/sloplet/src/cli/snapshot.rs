//! What can be typed about snapshots.

use clap::{Args, Subcommand};

const EXPORT_EXAMPLES: &str = "\
Examples:
  sloplet snapshot export mine
  sloplet snapshot export mine - | ssh elsewhere sloplet snapshot import -
  sloplet snapshot export --thin mine mine.sloplet
  sloplet snapshot export mine s3://bucket/mine.sloplet";

const IMPORT_EXAMPLES: &str = "\
Examples:
  sloplet snapshot import mine.sloplet
  sloplet snapshot import mine.sloplet --name yours && sloplet create --image yours";

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

    /// Leave out what fits: '*.log' anywhere, 'build/' folders, '/var/cache' from the root. The snapshot tells. Can be repeated.
    #[arg(long, value_name = "PATTERN", conflicts_with = "memory")]
    pub exclude: Vec<String>,

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
    /// Write a snapshot as one file that another server takes in: everything that it needs, compressed, with its digest.
    #[command(after_help = EXPORT_EXAMPLES)]
    Export {
        /// Its name or id.
        name: String,
        /// A file, - for standard output, or s3://BUCKET/KEY with the server's credentials [default: NAME.sloplet]
        to: Option<String>,
        /// Leave out the layers of the image that it was made on: the other server must have them. Of what was made on the image
        /// 'host', leave out the host's programs.
        #[arg(long)]
        thin: bool,
        /// Leave out its memory. Without this, a snapshot with memory is refused.
        #[arg(long)]
        files_only: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Take a snapshot in that was exported. Nothing of it is kept unless it is whole.
    #[command(after_help = IMPORT_EXAMPLES)]
    Import {
        /// A file, - for standard input, or s3://BUCKET/KEY with the server's credentials.
        from: String,
        /// A name for it [default: the one that it had]
        #[arg(long)]
        name: Option<String>,
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
