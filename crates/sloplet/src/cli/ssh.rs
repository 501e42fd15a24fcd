//! What can be typed about SSH.

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub const SSH_EXAMPLES: &str = "\
Examples:
  sloplet ssh my
  sloplet ssh my -- uname -a
  sloplet ssh my --config >> ~/.ssh/config     # then: ssh my, scp, sftp, rsync, VS Code's Remote - SSH";

/// `sloplet ssh`
#[derive(Debug, Args)]
pub struct Ssh {
    /// The sandbox's name or id.
    pub name: String,

    /// Print what ~/.ssh/config needs, so that 'ssh NAME' and all that uses ssh find the sandbox.
    #[arg(long, conflicts_with = "command")]
    pub config: bool,

    /// Be the connection, on standard input and output: for ssh's ProxyCommand.
    #[arg(long, conflicts_with_all = ["command", "config"])]
    pub proxy: bool,

    /// Print the server's key: for ssh's KnownHostsCommand.
    #[arg(long, hide = true, conflicts_with_all = ["command", "config", "proxy"])]
    pub host_key: bool,

    /// A command to run in place of a shell.
    #[arg(last = true)]
    pub command: Vec<String>,
}

/// `sloplet key ssh`
#[derive(Debug, Subcommand)]
pub enum SshKeys {
    /// Add a public key: whoever has its private half can log into your sandboxes.
    #[command(after_help = "Example:\n  sloplet key ssh add ~/.ssh/id_ed25519.pub")]
    Add {
        /// The file that ends with .pub; - for standard input.
        file: PathBuf,
        /// For people [default: what follows the key in its file]
        #[arg(long)]
        label: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// List public keys.
    Ls {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove public keys. Connections that they opened go on until they end.
    Rm {
        /// Their ids, fingerprints or labels.
        #[arg(required = true)]
        keys: Vec<String>,
    },
}
