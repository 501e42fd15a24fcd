//! What can be typed about what happened.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use sloplet_ledger::PublicKey;
use sloplet_ledger::event::KINDS;
use sloplet_policy::Span;
use sloplet_policy::network::Rule;

pub const NET_EXAMPLES: &str = "\
Examples:
  sloplet net my
  sloplet net my -f
  sloplet net my --allow api.github.com --deny '*.example.com'
  sloplet net my --remove api.github.com

Connections that stand are cut if the new rules do not allow them.";

/// `sloplet net`
#[derive(Debug, Args)]
pub struct Net {
    /// The sandbox's name or id.
    pub name: String,

    /// Go on: show what is tried from now on.
    #[arg(long, short = 'f')]
    pub follow: bool,

    /// As JSON; with --follow, a record a line.
    #[arg(long)]
    pub json: bool,

    /// Let it reach a host from now on: NAME, *.SUFFIX, an address or a network, perhaps with :PORT. Can be repeated.
    #[arg(long, value_name = "RULE", conflicts_with = "follow")]
    pub allow: Vec<Rule>,

    /// Never let it reach this from now on. Can be repeated.
    #[arg(long, value_name = "RULE", conflicts_with = "follow")]
    pub deny: Vec<Rule>,

    /// Take a rule away, whichever list it is in. Can be repeated.
    #[arg(long, value_name = "RULE", conflicts_with = "follow")]
    pub remove: Vec<Rule>,
}

pub const AUDIT_EXAMPLES: &str = "\
Records are read from this user's data folder, so this works without a server and tells of 'sloplet run', too; with
SLOPLET_URL set, that server is asked.

Examples:
  sloplet audit my
  sloplet audit --since 24h --kind exec_started,exec_ended
  sloplet audit my -f
  sloplet audit verify
  sloplet audit head > head.json ; sloplet audit verify --head head.json
  sloplet audit export --format otel --out audit.json";

/// `sloplet audit`
#[derive(Debug, Args)]
pub struct Audit {
    /// What else.
    #[command(subcommand)]
    pub command: Option<Audits>,

    /// Which records.
    #[command(flatten)]
    pub which: Which,

    /// Go on: show what happens from now on.
    #[arg(long, short = 'f')]
    pub follow: bool,

    /// Only the last records [default with --follow: 20]
    #[arg(long, value_name = "RECORDS")]
    pub tail: Option<usize>,

    /// A record a line, exactly as it was written.
    #[arg(long)]
    pub json: bool,
}

/// Which records.
#[derive(Debug, Args)]
pub struct Which {
    /// Only about this sandbox: its id, or its name (the last that was called so). It may be gone.
    pub name: Option<String>,

    /// Only of these kinds, with commas in between.
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(KINDS),
        hide_possible_values = true)]
    pub kind: Vec<String>,

    /// Only of the last so long, like 24h.
    #[arg(long, value_name = "TIME")]
    pub since: Option<Span>,
}

/// `sloplet audit …`
#[derive(Debug, Subcommand)]
pub enum Audits {
    /// Check the whole record: whether anything was removed, altered, moved or slipped in, and where. Exits with 1 if so.
    #[command(after_help = "Example:\n  sloplet audit verify --head head.json --key 0123…")]
    Verify {
        /// A head that was kept elsewhere: what it speaks for must be there, unchanged. Can be repeated.
        #[arg(long, value_name = "FILE")]
        head: Vec<PathBuf>,
        /// The public key, as kept elsewhere [default: the one in the data folder is believed]
        #[arg(long, value_name = "HEX")]
        key: Option<PublicKey>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Sign the record so far and print the signed head. Keep it on another machine.
    #[command(after_help = "Example:\n  sloplet audit head > /elsewhere/head.json")]
    Head,
    /// Write records for other programs.
    #[command(
        after_help = "Examples:\n  sloplet audit export --format jsonl --out audit.jsonl\n  sloplet audit export my --format otel --since 24h"
    )]
    Export {
        /// Which records.
        #[command(flatten)]
        which: Which,
        /// As they were written, or as OpenTelemetry logs (OTLP/JSON, a request a line).
        #[arg(long, default_value = "jsonl")]
        format: Format,
        /// Into a file, which must not exist [default: standard output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Print what a command wrote, by the digest in its record.
    #[command(
        after_help = "Example:\n  sloplet audit output $(sloplet audit --json --kind exec_ended --tail 1 | jq -r .event.output.sha256)"
    )]
    Output {
        /// Its SHA-256.
        digest: String,
    },
    /// Remove old records (whole segments of 64 MiB) and outputs. What is removed is noted and signed.
    #[command(after_help = "Example:\n  sloplet audit prune --older-than 90d")]
    Prune {
        /// How old.
        #[arg(long, value_name = "TIME")]
        older_than: Span,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

/// How records are exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A record a line.
    Jsonl,
    /// OpenTelemetry.
    Otel,
}

pub const COST_EXAMPLES: &str = "\
Time is charged for what a sandbox may use (--cpus, --memory) while it runs. It costs nothing unless the file prices.toml in
the data folder says what it costs:

  [compute]
  cpu_hour = 0.04           # dollars for a processor and an hour
  memory_gib_hour = 0.005   # dollars for a GiB and an hour

LLM calls are counted where they go through the gateway: with --secret or a --budget.

Examples:
  sloplet cost
  sloplet cost my --since 24h";

/// `sloplet cost`
#[derive(Debug, Args)]
pub struct Cost {
    /// Only this sandbox: its id, or its name (the last that was called so). It may be gone.
    pub name: Option<String>,

    /// Only of the last so long, like 24h [default: all that is recorded]
    #[arg(long, value_name = "TIME")]
    pub since: Option<Span>,

    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

pub const APPROVE_EXAMPLES: &str = "\
Examples:
  sloplet approve
  sloplet approve 3
  sloplet approve 3 --always
  sloplet approve 3 --deny";

/// `sloplet approve`
#[derive(Debug, Args)]
pub struct Approve {
    /// What to answer for [default: list what waits]
    pub id: Option<u64>,

    /// Say no.
    #[arg(long, requires = "id")]
    pub deny: bool,

    /// Say yes, also for the next time, until the sandbox's rules change.
    #[arg(long, requires = "id", conflicts_with = "deny")]
    pub always: bool,

    /// As JSON.
    #[arg(long, conflicts_with = "id")]
    pub json: bool,
}

/// How long something is kept.
#[derive(Debug, Clone, Copy)]
pub struct Kept(pub Option<Span>);

impl std::str::FromStr for Kept {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "forever" {
            return Ok(Self(None));
        }
        text.parse().map(|span| Self(Some(span))).map_err(|error| format!("{error}, or 'forever'"))
    }
}
