//! What can be typed to use one.

use clap::Args;
use sloplet_policy::Span;

pub const EXEC_EXAMPLES: &str = "\
Examples:
  sloplet exec my -- python3 --version
  sloplet exec -it my -- bash
  tar c . | sloplet exec my -- tar x -C /tmp
  sloplet exec -d my -- python3 -m http.server 3000

Exit status: the command's own; 128+N if signal N ended it; 124 if the time was over; 126 if the command cannot be
executed, 127 if it does not exist; 125 if sloplet itself failed.";

/// `sloplet exec`
#[derive(Debug, Args)]
pub struct Exec {
    /// Pass standard input on even if it is a terminal.
    #[arg(long, short = 'i')]
    pub interactive: bool,

    /// Give the command a terminal.
    #[arg(long, short = 't', conflicts_with = "detach")]
    pub tty: bool,

    /// Start it in the background and print its pid.
    #[arg(long, short = 'd')]
    pub detach: bool,

    /// A label for a background process.
    #[arg(long, requires = "detach")]
    pub tag: Option<String>,

    /// Set a variable: NAME=value, or NAME alone to pass on the host's. Can be repeated.
    #[arg(long, short = 'e', value_name = "VARIABLE")]
    pub env: Vec<String>,

    /// Where the command starts.
    #[arg(long, short = 'w', value_name = "FOLDER")]
    pub workdir: Option<String>,

    /// Who the command runs as inside: name, uid or uid:gid.
    #[arg(long, short = 'u')]
    pub user: Option<String>,

    /// Kill it after so long.
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Span>,

    /// The sandbox's name or id.
    pub name: String,

    /// The command and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

pub const CP_EXAMPLES: &str = "\
A folder is copied with all that is in it. If the destination is a folder (or ends with a slash), the copy goes into it.

Examples:
  sloplet cp ./x my:/home/user/
  sloplet cp my:/home/user/result.txt .
  sloplet cp ./src my:/workspace
  echo hi | sloplet cp - my:/tmp/hi
  sloplet cp my:/etc/os-release -
  sloplet cp my:/data/out.tar s3://bucket/out.tar
  sloplet cp s3://bucket/model.bin my:/data/";

pub const PRESIGN_EXAMPLES: &str = "\
Examples:
  curl --upload-file big.bin \"$(sloplet presign put s3://bucket/big.bin)\"
  sloplet exec my -- curl -o data \"$(sloplet presign get s3://bucket/data --expires 1h)\"";

/// What an address lets do.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum Verb {
    /// Read.
    Get,
    /// Write, as a whole.
    Put,
}
