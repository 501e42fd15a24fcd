//! What can be typed to make a sandbox that stays.

use clap::Args;
use sloplet_policy::Span;

use super::git::Git;
use super::machine::Machine;

pub const CREATE_EXAMPLES: &str = "\
Examples:
  sloplet create --name my --timeout 1h
  sloplet create --memory 512MiB --cpus 1 --volume data:/data --metadata team=a
  sloplet pool set ci --target 8 && sloplet create --pool ci
  sloplet create --name my --git https://example.com/team/repo.git#main --git-token GITHUB_TOKEN
  id=$(sloplet create)";

/// `sloplet create`
#[derive(Debug, Args)]
pub struct Create {
    /// A name to find it by.
    #[arg(long)]
    pub name: Option<String>,

    /// What to start from: 'host', a stored image, or a snapshot [default: host]
    #[arg(long)]
    pub image: Option<String>,

    /// Claim it from this pool, with the pool's values for options that are left out [default: a pool that fits, if there is
    /// one]
    #[arg(long)]
    pub pool: Option<String>,

    /// What the sandbox is.
    #[command(flatten)]
    pub machine: Machine,

    /// A repository to begin with.
    #[command(flatten)]
    pub git: Git,

    /// How long it lives, or 'never' [default: 1h]
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Lifetime>,

    /// Pause it when its time is over, instead of removing it.
    #[arg(long)]
    pub pause_on_timeout: bool,

    /// Pause it when nobody used it for so long.
    #[arg(long, value_name = "TIME")]
    pub idle_timeout: Option<Span>,

    /// Resume it by itself when somebody uses it while it is paused.
    #[arg(long)]
    pub auto_resume: bool,

    /// Show a volume inside: `NAME:PATH[:ro]`. Can be repeated.
    #[arg(long, value_name = "VOLUME")]
    pub volume: Vec<String>,

    /// Anything to remember: NAME=value. Can be repeated.
    #[arg(long, value_name = "METADATA")]
    pub metadata: Vec<String>,

    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// How long a sandbox lives.
#[derive(Debug, Clone, Copy)]
pub struct Lifetime(pub Option<Span>);

impl std::str::FromStr for Lifetime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "never" {
            return Ok(Self(None));
        }
        text.parse().map(|span| Self(Some(span))).map_err(|error| format!("{error}, or 'never'"))
    }
}
