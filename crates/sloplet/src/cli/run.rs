//! What can be typed to run a command.

use clap::Args;
use sloplet_policy::{ByteSize, Span};

use super::git::Git;
use super::machine::Machine;

pub const RUN_EXAMPLES: &str = "\
The default image 'host' shows the host's own programs read-only and nothing else of the host.

Examples:
  sloplet run -- python3 -c 'print(1)'
  sloplet run --memory 512MiB --cpus 1 --pids 128 --disk 1GiB --timeout 60s -- bash -c 'make -j4'
  sloplet run --mount ./src:/workspace:ro --env TOKEN=x --workdir /workspace --json -- make test
  sloplet run --image ./rootfs.tar -- cat /etc/os-release
  sloplet run --isolation process -- python3 untrusted.py
  sloplet run --git https://example.com/team/repo.git --git-token GITHUB_TOKEN -- make test
  sloplet run -it -- bash

Exit status: the command's own; 128+N if signal N ended it; 124 if the time was over; 126 if the command cannot be
executed, 127 if it does not exist; 125 if sloplet itself failed.";

/// `sloplet run`
#[derive(Debug, Args)]
pub struct Run {
    /// What to start from: 'host', a stored image, or a path to a directory, tarball, OCI layout or docker-save archive
    /// [default: host]
    #[arg(long)]
    pub image: Option<String>,

    /// What the sandbox is.
    #[command(flatten)]
    pub machine: Machine,

    /// A repository to begin with, where the command starts.
    #[command(flatten)]
    pub git: Git,

    /// Wall-clock time, after which everything inside is killed [default: 1h]
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Span>,

    /// Output that is passed on; the rest is dropped, and that is said [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub output_limit: Option<ByteSize>,

    /// Refuse to start unless this exact configuration was verified on this host, lately and without a breach.
    #[arg(long)]
    pub verified: bool,

    /// Pass standard input on even if it is a terminal.
    #[arg(long, short = 'i')]
    pub interactive: bool,

    /// Give the command a terminal.
    #[arg(long, short = 't')]
    pub tty: bool,

    /// Capture the output and print one JSON object with it, the exit status and what was used.
    #[arg(long, conflicts_with = "tty")]
    pub json: bool,

    /// Taken for those who are used to it: a sandbox of 'run' is always removed.
    #[arg(long, hide = true)]
    #[allow(dead_code, reason = "it asks for what is done anyway")]
    pub rm: bool,

    /// The command and its arguments.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<std::ffi::OsString>,
}
