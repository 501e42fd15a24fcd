//! What can be typed to verify.

use std::path::PathBuf;

use clap::Args;
use sloplet_policy::Span;

use super::machine::Machine;

pub const VERIFY_EXAMPLES: &str = "\
Every attempt is first made on the host, unconfined, where it must take effect; then inside, where none may.

Examples:
  sloplet verify
  sloplet verify --driver all --json --junit report.xml --html report.html
  sloplet verify --isolation gvisor
  sloplet verify --changed --max-age 1d
  sloplet verify --probe mounts --probe fork-bomb --verbose
  sloplet run --verified -- my-agent

Exit status: 0 if nothing got out, 1 if something did, 125 if a wall could not be verified.";

/// `sloplet verify`
#[derive(Debug, Args)]
pub struct Verify {
    /// What the sandbox starts from [default: host]
    #[arg(long)]
    pub image: Option<String>,

    /// What the sandbox is.
    #[command(flatten)]
    pub machine: Machine,

    /// Wall-clock time of the sandbox [default: 1h]
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Span>,

    /// Only this probe; the result is not kept. Can be repeated.
    #[arg(long, value_name = "NAME")]
    pub probe: Vec<String>,

    /// Only if configuration, wall, kernel or binary have changed since the last verification, or it is too old.
    #[arg(long)]
    pub changed: bool,

    /// How old a verification may be.
    #[arg(long, default_value = "7d", value_name = "TIME")]
    pub max_age: Span,

    /// Print the results as JSON.
    #[arg(long)]
    pub json: bool,

    /// Write the results as JUnit's XML.
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,

    /// Write the results as a page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Tell every attempt.
    #[arg(long)]
    pub verbose: bool,

    /// Take a protection away, to test the probes: debug builds only.
    #[arg(long, hide = true)]
    pub weaken: Option<String>,
}
