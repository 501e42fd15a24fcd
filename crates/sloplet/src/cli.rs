//! What can be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use sloplet_policy::{Bind, ByteSize, Cpus, Isolation, Span};

/// Disposable, contained machines for AI agents.
///
/// Runs a command in a sandbox that starts in milliseconds, reaches only what it was allowed to reach, stops at its
/// limits, and is gone afterwards. No daemon, no root, no image download.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// Keep images here instead of the usual place.
    #[arg(long, global = true, value_name = "FOLDER", env = "SLOPLET_DATA", hide_env_values = true)]
    pub data: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  sloplet run -- python3 -c \"print('hello from a sloplet')\"
  sloplet run -it -- bash
  sloplet run --mount .:/workspace:rw --workdir /workspace -- make test
  sloplet doctor";

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command in a new sandbox and remove the sandbox afterwards.
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<Run>),
    /// Tell what this host can enforce, for each kind of wall, and how to get the rest.
    Doctor {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Serve long-lived sandboxes over HTTP: our own API, and the one that E2B's SDKs speak.
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<Serve>),
    /// Images that sandboxes start from.
    #[command(subcommand)]
    Image(Image),
    /// Remove what killed sandboxes left behind (also done at each start).
    Gc {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print a completion script for a shell.
    #[command(after_help = "Example:\n  sloplet completion bash > ~/.local/share/bash-completion/completions/sloplet")]
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

const RUN_EXAMPLES: &str = "\
The default image 'host' shows the host's own programs read-only and nothing else of the host.

Examples:
  sloplet run -- python3 -c 'print(1)'
  sloplet run --memory 512MiB --cpus 1 --pids 128 --disk 1GiB --timeout 60s -- bash -c 'make -j4'
  sloplet run --mount ./src:/workspace:ro --env TOKEN=x --workdir /workspace --json -- make test
  sloplet run --image ./rootfs.tar -- cat /etc/os-release
  sloplet run --isolation process -- python3 untrusted.py
  sloplet run -it -- bash

Exit status: the command's own; 128+N if signal N ended it; 124 if the time was over; 126 if the command cannot be
executed, 127 if it does not exist; 125 if sloplet itself failed.";

/// `sloplet run`
#[derive(Debug, Args)]
pub struct Run {
    /// What to start from: 'host', a stored image, or a path to a directory, tarball, OCI layout or docker-save archive.
    #[arg(long, default_value = "host")]
    pub image: String,

    /// How strong the wall is: process or container.
    #[arg(long, default_value_t, value_name = "LEVEL")]
    pub isolation: Isolation,

    /// Memory of all processes together, page cache included [default: 2GiB]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,

    /// Processors, also fractions [default: 2]
    #[arg(long, value_name = "NUMBER")]
    pub cpus: Option<Cpus>,

    /// Processes and threads at once [default: 512]
    #[arg(long, value_name = "NUMBER")]
    pub pids: Option<u32>,

    /// Bytes that may be written [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub disk: Option<ByteSize>,

    /// Files that may be made [default: one for 16KiB of --disk]
    #[arg(long, value_name = "NUMBER")]
    pub inodes: Option<u64>,

    /// Wall-clock time, after which everything inside is killed [default: 1h]
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Span>,

    /// Output that is passed on; the rest is dropped, and that is said [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub output_limit: Option<ByteSize>,

    /// Show a host file or folder inside: HOST:INSIDE[:ro|:rw]; read-only unless :rw. Can be repeated.
    #[arg(long, short = 'v', value_name = "MOUNT")]
    pub mount: Vec<Bind>,

    /// Set a variable: NAME=value, or NAME alone to pass on the host's. Can be repeated.
    #[arg(long, short = 'e', value_name = "VARIABLE")]
    pub env: Vec<String>,

    /// Where the command starts.
    #[arg(long, short = 'w', value_name = "FOLDER")]
    pub workdir: Option<PathBuf>,

    /// Who the command runs as inside: name, uid or uid:gid [default: user]
    #[arg(long, short = 'u')]
    pub user: Option<String>,

    /// The sandbox's host name.
    #[arg(long, default_value = "sloplet")]
    pub hostname: String,

    /// Pass standard input on even if it is a terminal.
    #[arg(long, short = 'i')]
    pub interactive: bool,

    /// Give the command a terminal.
    #[arg(long, short = 't')]
    pub tty: bool,

    /// Capture the output and print one JSON object with it, the exit status and what was used.
    #[arg(long, conflicts_with = "tty")]
    pub json: bool,

    /// Start even if this host cannot enforce every limit; says which.
    #[arg(long)]
    pub best_effort: bool,

    /// The command and its arguments.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<std::ffi::OsString>,
}

const SERVE_EXAMPLES: &str = "\
Examples:
  sloplet serve
  sloplet serve --listen 127.0.0.1:8080 --data /srv/sloplet
  sloplet serve --listen 0.0.0.0:443 --public --tls-cert chain.pem --tls-key key.pem --domain sandbox.example.com";

/// `sloplet serve`
#[derive(Debug, Args)]
pub struct Serve {
    /// Address and port.
    #[arg(long, default_value = "127.0.0.1:7070")]
    pub listen: std::net::SocketAddr,

    /// Listen on an address that others can reach.
    #[arg(long)]
    pub public: bool,

    /// Certificate chain in PEM form, for HTTPS.
    #[arg(long, requires = "tls_key", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,

    /// Its private key in PEM form.
    #[arg(long, requires = "tls_cert", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,

    /// The domain whose names PORT-ID.DOMAIN lead here: what SDKs and links are told.
    #[arg(long)]
    pub domain: Option<String>,

    /// Destroy all sandboxes when the server is asked to end, instead of leaving them for the next one.
    #[arg(long)]
    pub destroy_on_exit: bool,

    /// Log as JSON.
    #[arg(long)]
    pub log_json: bool,
}

/// `sloplet image`
#[derive(Debug, Subcommand)]
pub enum Image {
    /// Import a directory, tarball, OCI layout or docker-save archive.
    #[command(after_help = "Example:\n  sloplet image import ./rootfs.tar --name mine")]
    Import {
        /// What to import.
        source: PathBuf,
        /// Its name in the store [default: the source's own]
        #[arg(long)]
        name: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Pull an image from a registry.
    #[command(after_help = "Example:\n  sloplet image pull registry.example.com/tools/python:3.13")]
    Pull {
        /// Its reference.
        reference: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Build an image from the distribution's packages: 'base' (a small Debian with bash, python, git, curl, and a user with
    /// sudo) or 'code-interpreter' (that with Jupyter kernels, matplotlib, pandas and node).
    Build {
        /// Which.
        #[arg(default_value = sloplet_image::BASE_NAME)]
        name: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// List images.
    Ls {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove images.
    Rm {
        /// Their names.
        #[arg(required = true)]
        names: Vec<String>,
    },
}
