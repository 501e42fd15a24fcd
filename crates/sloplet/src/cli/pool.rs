//! What can be typed about pools.

use clap::{Args, Subcommand};
use sloplet_policy::{ByteSize, Cpus, Isolation, Span};

pub const POOL_EXAMPLES: &str = "\
Examples:
  sloplet pool set ci --target 8 --max 32 && sloplet create --pool ci
  sloplet pool set node --image node --target 4 --min 0 --idle-timeout 10m
  sloplet pool ls
  sloplet pool fill ci && sloplet pool show ci";

/// `sloplet pool`
#[derive(Debug, Subcommand)]
pub enum Pool {
    /// Create or replace a pool. Options that are left out get their defaults, also in an existing pool.
    #[command(after_help = POOL_EXAMPLES)]
    Set(Box<SetPool>),
    /// List pools.
    Ls {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show a pool: ready machines, claims, and what decides its size.
    Show {
        /// Its name or id.
        name: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Fill pools, and wait until they have their target.
    Fill {
        /// Their names or ids.
        #[arg(required = true)]
        names: Vec<String>,
        /// How long that may take.
        #[arg(long, default_value = "2m", value_name = "TIME")]
        timeout: Span,
    },
    /// Destroy the machines of pools, and keep none ready until they are filled or set again.
    Drain {
        /// Their names or ids.
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Remove pools and their machines. Sandboxes that came through them stay.
    Rm {
        /// Their names or ids.
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// `sloplet pool set`
#[derive(Debug, Args)]
pub struct SetPool {
    /// Its name.
    pub name: String,

    /// What its machines start from: 'host', a stored image, a snapshot or a template [default: host]
    #[arg(long)]
    pub image: Option<String>,

    /// How strong their wall is: process, container, gvisor or vm [default: container]
    #[arg(long, value_name = "LEVEL")]
    pub isolation: Option<Isolation>,

    /// Which wall, by its driver's name (see 'sloplet doctor') [default: the first of that strength]
    #[arg(long, value_name = "NAME", conflicts_with = "isolation")]
    pub driver: Option<String>,

    /// Memory of all processes together; a claim may ask for another [default: 2GiB]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,

    /// Processors; a claim may ask for others [default: 2]
    #[arg(long, value_name = "NUMBER")]
    pub cpus: Option<Cpus>,

    /// Processes and threads at once; a claim may ask for another number [default: 512]
    #[arg(long, value_name = "NUMBER")]
    pub pids: Option<u32>,

    /// Bytes that may be written [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub disk: Option<ByteSize>,

    /// Who commands run as inside [default: user]
    #[arg(long, short = 'u')]
    pub user: Option<String>,

    /// Their host name [default: sloplet]
    #[arg(long)]
    pub hostname: Option<String>,

    /// Start even if this host cannot enforce every limit.
    #[arg(long)]
    pub best_effort: bool,

    /// Machines that are always kept ready [default: 0]
    #[arg(long, value_name = "NUMBER")]
    pub target: Option<u32>,

    /// Most machines that wait at once [default: 10, or the target]
    #[arg(long, value_name = "NUMBER")]
    pub max: Option<u32>,

    /// Machines that are kept while the pool is idle [default: the target]
    #[arg(long, value_name = "NUMBER")]
    pub min: Option<u32>,

    /// Keep the target, whatever the demand.
    #[arg(long)]
    pub fixed: bool,

    /// The pool is idle after this time without a claim [default: 1m]
    #[arg(long, value_name = "TIME")]
    pub idle_timeout: Option<Span>,

    /// Time between two removals while the pool shrinks [default: 1m]
    #[arg(long, value_name = "TIME")]
    pub scale_down_delay: Option<Span>,

    /// The pool does not shrink for this time after a claim [default: 2m]
    #[arg(long, value_name = "TIME")]
    pub cooldown: Option<Span>,

    /// Replace a machine that has waited for this time [default: 30m]
    #[arg(long, value_name = "TIME")]
    pub max_age: Option<Span>,

    /// Time between health checks of waiting machines [default: 1m]
    #[arg(long, value_name = "TIME")]
    pub health_check: Option<Span>,

    /// Refuse claims when none is ready, instead of making a sandbox.
    #[arg(long)]
    pub fail_when_empty: bool,

    /// Machines of all your pools together, those in use included.
    #[arg(long, value_name = "NUMBER")]
    pub max_total: Option<u32>,

    /// Most that waiting machines may cost in an hour.
    #[arg(long, value_name = "DOLLARS")]
    pub max_cost_per_hour: Option<f64>,

    /// Most that waiting machines may cost in a day.
    #[arg(long, value_name = "DOLLARS")]
    pub max_cost_per_day: Option<f64>,

    /// Allow claims with secrets or a budget for LLM calls.
    #[arg(long)]
    pub secrets: bool,

    /// As JSON.
    #[arg(long)]
    pub json: bool,
}
