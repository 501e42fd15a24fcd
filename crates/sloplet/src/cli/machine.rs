//! What a sandbox is, as it can be typed.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use sloplet_policy::bind::BindError;
use sloplet_policy::budget::{AtCap, Tokens, Usd};
use sloplet_policy::network::Rule;
use sloplet_policy::secret::SecretRule;
use sloplet_policy::{Bind, ByteSize, Cpus, Isolation, Span};

/// What is in a virtual machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MachineKind {
    /// A sandbox, as behind other walls.
    Sandbox,
    /// An init system, whose root is root of the machine.
    Full,
}

/// What a sandbox is, whatever runs in it and however long it lives.
#[derive(Debug, Args)]
pub struct Machine {
    /// How strong the wall is: process, container, gvisor or vm [default: container]
    #[arg(long, value_name = "LEVEL")]
    pub isolation: Option<Isolation>,

    /// Which wall, by its driver's name (see 'sloplet doctor') [default: the first of that strength]
    #[arg(long, value_name = "NAME", conflicts_with = "isolation")]
    pub driver: Option<String>,

    /// With '--machine full' a virtual machine has an init system (systemd) in place of a sandbox
    #[arg(long, value_name = "KIND", conflicts_with = "driver")]
    pub machine: Option<MachineKind>,

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

    /// Show a host file or folder inside: HOST:INSIDE, and :rw if changes shall reach the host; HOST alone is /workspace, and
    /// commands start there. What configures this machine (sloplet.toml, .git/hooks …) stays read-only unless :rw,unguarded; a
    /// folder with Unix sockets or FIFOs in it needs :ro,sockets. Can be repeated.
    #[arg(long, short = 'v', value_name = "MOUNT", value_parser = mount)]
    pub mount: Vec<Bind>,

    /// Set a variable: NAME=value, or NAME alone to pass on the host's. Can be repeated.
    #[arg(long, short = 'e', value_name = "VARIABLE")]
    pub env: Vec<String>,

    /// Where commands start.
    #[arg(long, short = 'w', value_name = "FOLDER")]
    pub workdir: Option<PathBuf>,

    /// Who commands run as inside: name, uid or uid:gid [default: user]
    #[arg(long, short = 'u')]
    pub user: Option<String>,

    /// The sandbox's host name [default: sloplet]
    #[arg(long)]
    pub hostname: Option<String>,

    /// Show a host device inside, by its CDI name: vendor/class=name or a name; without a value, all devices. Can be
    /// repeated.
    #[arg(long, value_name = "DEVICE", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    pub gpu: Vec<String>,

    /// Allow asynchronous I/O of the old kind (io_setup). One number bounds it for the whole host, so it needs --best-effort.
    #[arg(long)]
    pub allow_aio: bool,

    /// Start even if this host cannot enforce every limit, and say which.
    #[arg(long)]
    pub best_effort: bool,

    /// The file that describes the sandbox; flags win over it [default: sloplet.toml, if there is one here; see 'sloplet
    /// trust']
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Ignore the sloplet.toml in this folder.
    #[arg(long, conflicts_with = "config")]
    pub no_config: bool,

    /// What it may reach and use up.
    #[command(flatten)]
    pub reach: Reach,
}

/// Where a mount goes if that is not said.
pub const WORKSPACE: &str = "/workspace";

fn mount(text: &str) -> Result<Bind, BindError> {
    let (place, mode) = match text.rsplit_once(':') {
        Some((place, mode @ ("ro" | "rw" | "rw,unguarded" | "ro,sockets" | "sockets"))) => (place, mode),
        _ => (text, "ro"),
    };
    match place.contains(':') || place.is_empty() {
        true => text.parse(),
        false => format!("{place}:{WORKSPACE}:{mode}").parse(),
    }
}

fn no_network(text: &str) -> Result<String, String> {
    match text {
        "none" => Ok(text.to_owned()),
        _ => {
            Err("only 'none' is known: say what it may reach with --allow, --allow-host-port or --allow-internet"
                .into())
        }
    }
}

/// What a sandbox may reach, and what it may use up. Nothing can be reached unless it is said here.
#[derive(Debug, Args)]
#[command(next_help_heading = "Network, secrets, budget")]
pub struct Reach {
    /// Let it reach a host: NAME, *.SUFFIX, an address or a network, perhaps with :PORT or :FROM-TO; ports 80 and 443
    /// unless said. Can be repeated.
    #[arg(long, value_name = "RULE")]
    pub allow: Vec<Rule>,

    /// Never let it reach this, whatever is allowed. Can be repeated.
    #[arg(long, value_name = "RULE")]
    pub deny: Vec<Rule>,

    /// Ask a person each time it wants to reach this. Can be repeated.
    #[arg(long, value_name = "RULE")]
    pub ask: Vec<Rule>,

    /// How long to wait for that person; no answer means no [default: 2m]
    #[arg(long, value_name = "TIME")]
    pub ask_timeout: Option<Span>,

    /// Let it reach a port of the host's loopback, as host.sloplet.internal. Can be repeated.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub allow_host_port: Vec<u16>,

    /// Taken for those who are used to it: 'none' is what holds unless something is allowed.
    #[arg(long, hide = true, value_parser = no_network, conflicts_with_all = ["allow", "ask", "allow_host_port", "allow_internet"])]
    #[allow(dead_code, reason = "it asks for what holds anyway")]
    pub network: Option<String>,

    /// Let it reach every public address; private ones stay out of reach.
    #[arg(long)]
    pub allow_internet: bool,

    /// Give names IPv6 addresses inside, too.
    #[arg(long)]
    pub ipv6: bool,

    /// Put a secret into its requests to a host, without letting it see the secret: NAME@HOST takes the host's variable
    /// NAME; also NAME=file:/PATH@HOST and NAME=cmd:PROGRAM@HOST. Can be repeated.
    #[arg(long, value_name = "SECRET")]
    pub secret: Vec<SecretRule>,

    /// Dollars that its LLM calls may cost.
    #[arg(long, value_name = "DOLLARS")]
    pub budget_usd: Option<Usd>,

    /// Tokens that its LLM calls may use, like 500k.
    #[arg(long, value_name = "TOKENS")]
    pub budget_tokens: Option<Tokens>,

    /// LLM calls in a minute.
    #[arg(long, value_name = "NUMBER")]
    pub budget_requests: Option<u32>,

    /// Commands started in a minute.
    #[arg(long, value_name = "NUMBER")]
    pub budget_execs: Option<u32>,

    /// Bytes it may send, and bytes it may receive.
    #[arg(long, value_name = "SIZE")]
    pub budget_egress: Option<ByteSize>,

    /// Share one budget with the other sandboxes of this group.
    #[arg(long, value_name = "GROUP")]
    pub budget_group: Option<String>,

    /// What happens when money or tokens are used up: deny, pause or kill [default: deny]
    #[arg(long, value_name = "ACTION")]
    pub at_cap: Option<AtCap>,
}
