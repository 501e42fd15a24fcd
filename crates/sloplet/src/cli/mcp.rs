//! What can be typed to serve sandboxes as tools.

use std::net::SocketAddr;

use clap::Args;
use sloplet_mcp::clients::Client;
use sloplet_policy::Span;

use super::machine::Machine;

pub const MCP_EXAMPLES: &str = "\
Tools and their groups: run_code (code), exec (exec), start_process, list_processes, process_output, process_input,
stop_process (processes), read_file, write_file, edit_file, list_files, search_files (files), upload, download (share),
expose_port (ports), snapshot, restore (snapshots), network_status (network), sandbox_info (info).

Examples:
  sloplet mcp --print-config claude > .mcp.json
  sloplet mcp --image code-interpreter --allow api.github.com --allow example.com
  sloplet mcp --tools exec,files --mount .:/workspace --workdir /workspace
  sloplet mcp --read-only --sandbox my
  sloplet mcp --share ./data --tools code,share
  sloplet mcp --http 127.0.0.1:7080";

/// `sloplet mcp`
#[derive(Debug, Args)]
pub struct Mcp {
    /// Serve over HTTP on this address, at /mcp, in place of standard input and output. Every request must show a token: the
    /// variable SLOPLET_MCP_TOKEN, or else one that is made and printed.
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<SocketAddr>,

    /// Let others than this machine reach it.
    #[arg(long, requires = "http")]
    pub public: bool,

    /// Let web pages of this origin ask, such as `https://app.example.com:443`; can be repeated
    #[arg(long, value_name = "ORIGIN", requires = "http")]
    pub origin: Vec<String>,

    /// Only these tools: names and groups, with commas in between [default: all]
    #[arg(long, value_name = "TOOLS", value_delimiter = ',')]
    pub tools: Vec<String>,

    /// Of the tools, only those that change nothing.
    #[arg(long)]
    pub read_only: bool,

    /// Let files be copied from and to this folder of the host: FOLDER, or FOLDER:ro to copy only from it. Can be repeated.
    #[arg(long, value_name = "FOLDER")]
    pub share: Vec<String>,

    /// Work in this sandbox, which is there already, instead of making one for each conversation.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["name", "image", "keep", "timeout", "max_life"])]
    pub sandbox: Option<String>,

    /// Do not remove the sandbox at the end of the conversation; its time still ends it.
    #[arg(long)]
    pub keep: bool,

    /// How long a sandbox lives that nobody uses [default: 1h]
    #[arg(long, visible_alias = "ttl", value_name = "TIME")]
    pub timeout: Option<Span>,

    /// How long a sandbox lives however much it is used.
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub max_life: Span,

    /// Print what a client's configuration needs to start this, with the other options that are given here: claude,
    /// claude-desktop, codex, cursor, gemini, vscode, windsurf or zed.
    #[arg(long, value_name = "CLIENT")]
    pub print_config: Option<Client>,

    /// A name for the sandbox.
    #[arg(long, conflicts_with = "http")]
    pub name: Option<String>,

    /// What to start from: 'host', a stored image, or a snapshot [default: host]
    #[arg(long)]
    pub image: Option<String>,

    /// What the sandbox is.
    #[command(flatten)]
    pub machine: Machine,

    /// Show a volume inside: `NAME:PATH[:ro]`. Can be repeated.
    #[arg(long, value_name = "VOLUME")]
    pub volume: Vec<String>,

    /// Anything to remember: NAME=value. Can be repeated.
    #[arg(long, value_name = "METADATA")]
    pub metadata: Vec<String>,
}
