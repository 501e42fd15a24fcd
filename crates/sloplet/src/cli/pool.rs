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
    /// Make a pool, or change the one of that name. What is not said is as usual, whatever it was before.
    #[command(after_help = POOL_EXAMPLES)]
    Set(Box<SetPool>),
    /// List pools.
    Ls {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Tell about a pool: what waits, what came of it, and why it is as large as it is.
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

    /// So many are kept ready, whatever the demand [default: 0]
    #[arg(long, value_name = "NUMBER")]
    pub target: Option<u32>,

    /// Never more than these [default: 10, or the target]
    #[arg(long, value_name = "NUMBER")]
    pub max: Option<u32>,

    /// So many are left when it is idle [default: the target]
    #[arg(long, value_name = "NUMBER")]
    pub min: Option<u32>,

    /// Keep the target, whatever the demand.
    #[arg(long)]
    pub fixed: bool,

    /// Without claims for so long, it is idle [default: 1m]
    #[arg(long, value_name = "TIME")]
    pub idle_timeout: Option<Span>,

    /// Between two machines that are given up while it shrinks [default: 1m]
    #[arg(long, value_name = "TIME")]
    pub scale_down_delay: Option<Span>,

    /// For so long after a claim it does not shrink [default: 2m]
    #[arg(long, value_name = "TIME")]
    pub cooldown: Option<Span>,

    /// One that has waited for so long is replaced [default: 30m]
    #[arg(long, value_name = "TIME")]
    pub max_age: Option<Span>,

    /// How often those that wait are asked whether they are well [default: 1m]
    #[arg(long, value_name = "TIME")]
    pub health_check: Option<Span>,

    /// Refuse claims when none is ready, instead of making a sandbox.
    #[arg(long)]
    pub fail_when_empty: bool,

    /// Machines of all your pools together, those in use included.
    #[arg(long, value_name = "NUMBER")]
    pub max_total: Option<u32>,

    /// What those that wait may cost in an hour.
    #[arg(long, value_name = "DOLLARS")]
    pub max_cost_per_hour: Option<f64>,

    /// What waiting may cost in a day.
    #[arg(long, value_name = "DOLLARS")]
    pub max_cost_per_day: Option<f64>,

    /// Let its machines be given secrets, or a budget for LLM calls.
    #[arg(long)]
    pub secrets: bool,

    /// As JSON.
    #[arg(long)]
    pub json: bool,
}
