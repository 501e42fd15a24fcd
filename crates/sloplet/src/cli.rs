//! What can be typed.

mod create;
mod exec;
mod git;
mod image;
mod key;
mod machine;
mod mask;
mod mcp;
mod pool;
mod record;
mod run;
mod serve;
mod snapshot;
mod ssh;
mod verify;
mod vm;
mod volume;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use sloplet_policy::Span;

pub use create::{Create, Lifetime};
pub use exec::{Exec, Verb};
pub use git::{Git, Repository};
pub use image::Image;
pub use key::Key;
pub use machine::{Machine, MachineKind, Reach, WORKSPACE};
pub use mask::Mask;
pub use mcp::Mcp;
pub use pool::{Pool, SetPool};
pub use record::{Approve, Audit, Audits, Cost, Format, Kept, Net, Which};
pub use run::Run;
pub use serve::Serve;
pub use snapshot::{Snapshot, Snapshots};
pub use ssh::{Ssh, SshKeys};
pub use verify::Verify;
pub use vm::Vm;
pub use volume::Volume;

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

    /// What all commands have.
    #[command(flatten)]
    pub common: Common,
}

/// Options of every command.
#[derive(Debug, Args)]
pub struct Common {
    /// The data folder: images, database, ledger.
    #[arg(long, global = true, value_name = "FOLDER", env = "SLOPLET_DATA", hide_env_values = true)]
    pub data: Option<PathBuf>,

    /// Do not start a server in the background if none runs.
    #[arg(long, global = true)]
    pub no_autostart: bool,
}

impl Cli {
    /// What was typed. Building the parser of all commands takes longer than anything else here, so the one that is meant to
    /// be quick is tried alone first; whatever is to be said about mistakes or help is said by the whole one.
    pub fn read() -> Result<Self, clap::Error> {
        if std::env::args_os().nth(1).is_some_and(|word| word == "run")
            && let Ok(RunAlone { command: RunCommand::Run(options), common }) = RunAlone::try_parse()
        {
            return Ok(Self { command: Command::Run(options), common });
        }
        Self::try_parse()
    }
}

/// [`Cli`] with one command.
#[derive(Debug, Parser)]
struct RunAlone {
    #[command(subcommand)]
    command: RunCommand,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Subcommand)]
enum RunCommand {
    Run(Box<Run>),
}

const EXAMPLES: &str = "\
Examples:
  sloplet run -- python3 -c \"print('hello from a sloplet')\"
  sloplet run -it -- bash
  sloplet run --mount .:/workspace:rw --workdir /workspace -- make test
  sloplet create --name my && sloplet exec my -- python3 --version && sloplet rm my
  sloplet doctor

'run' needs nothing else. 'create' and what follows it need a server: the one that SLOPLET_URL names (with
SLOPLET_API_KEY), or this user's own, which is started in the background if it does not run.";

/// What can be done to a server.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum ServerCommand {
    /// Stop the server. Sandboxes stay; the next server takes them over.
    Stop,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command in a new sandbox and remove the sandbox afterwards.
    #[command(after_help = run::RUN_EXAMPLES)]
    Run(Box<Run>),
    /// Check what each driver can enforce on this host, and how to get the rest.
    Doctor {
        /// Also start a virtual machine to see whether that works; this can take minutes.
        #[arg(long)]
        probe: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Measure what each wall costs on this host: start, exec, memory, system calls, files.
    #[command(after_help = "Examples:\n  sloplet compare\n  sloplet compare --rounds 20 --svg walls.svg")]
    Compare {
        /// Sandboxes of each wall.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
        rounds: u16,
        /// Draw a picture, too.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Attack a sandbox of a configuration and report what got out.
    #[command(after_help = verify::VERIFY_EXAMPLES)]
    Verify(Box<Verify>),
    /// Write a sloplet.toml: what to protect on this machine, and how sandboxes are made.
    #[command(after_help = "Examples:\n  sloplet init\n  sloplet init --yes && sloplet verify")]
    Init {
        /// Ask nothing.
        #[arg(long, short = 'y')]
        yes: bool,
        /// Replace a file that is there.
        #[arg(long)]
        force: bool,
    },
    /// Trust a sloplet.toml as it is now. An untrusted one may only tighten.
    #[command(
        after_help = "Examples:\n  sloplet trust\n  sloplet trust project/sloplet.toml\n  sloplet trust --list\n  sloplet trust --revoke\n\nRead the file first: it may name programs that run on this machine. Once it changes, it is not trusted any more."
    )]
    Trust {
        /// The file, or its folder [default: sloplet.toml here]
        path: Option<PathBuf>,
        /// Trust it no longer.
        #[arg(long)]
        revoke: bool,
        /// List what is trusted.
        #[arg(long, conflicts_with_all = ["path", "revoke"])]
        list: bool,
    },
    /// Serve long-lived sandboxes over HTTP: sloplet's own API and E2B's.
    #[command(after_help = serve::SERVE_EXAMPLES)]
    Serve(Box<Serve>),
    /// Manage the server that commands start in the background.
    #[command(subcommand, after_help = "Example:\n  sloplet server stop")]
    Server(ServerCommand),
    /// Create a sandbox that stays.
    #[command(after_help = create::CREATE_EXAMPLES)]
    Create(Box<Create>),
    /// Run a command in a sandbox that stays.
    #[command(after_help = exec::EXEC_EXAMPLES)]
    Exec(Box<Exec>),
    /// Open a shell in a sandbox.
    #[command(after_help = "Example:\n  sloplet shell my")]
    Shell {
        /// The sandbox's name or id.
        name: String,
        /// Who the shell runs as inside.
        #[arg(long, short = 'u')]
        user: Option<String>,
    },
    /// Log into a sandbox with OpenSSH's client, or print its configuration.
    #[command(after_help = ssh::SSH_EXAMPLES)]
    Ssh(Ssh),
    /// Copy files and folders between the host and a sandbox.
    #[command(after_help = exec::CP_EXAMPLES)]
    Cp {
        /// A path, NAME:PATH, s3://BUCKET/KEY, or - for standard input.
        source: String,
        /// A path, NAME:PATH, s3://BUCKET/KEY, or - for standard output.
        destination: String,
        /// The user inside who reads and writes the files [default: the sandbox's user]
        #[arg(long, short = 'u')]
        user: Option<String>,
    },
    /// List what a sandbox has changed since it was made: A added, M modified, m mode or owner only, D deleted.
    #[command(
        after_help = "Examples:\n  sloplet diff my\n  sloplet diff my /home/user /etc\n  sloplet diff my --json | jq '.changes[].path'\n\nVolumes and mounts are not the sandbox's own files and are not compared."
    )]
    Diff {
        /// The sandbox's name or id.
        name: String,
        /// Only these files, or what is in these folders.
        #[arg(value_name = "PATH")]
        paths: Vec<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print a patch of what has changed in a folder, for 'git apply' and 'patch -p1'.
    #[command(
        after_help = "Examples:\n  sloplet patch my repo > x.patch\n  sloplet patch my repo | git apply\n  sloplet patch my /etc --baseline image | less\n\nIn a work tree of git it is what differs from the last commit, with new files and without ignored ones; elsewhere, what\ndiffers from the image. It is what somebody inside wanted it to be: read it before you apply it."
    )]
    Patch {
        /// The sandbox's name or id.
        name: String,
        /// The folder or file [default: the working folder]
        path: Option<String>,
        /// Who git runs as inside [default: the sandbox's user]
        #[arg(long, short = 'u')]
        user: Option<String>,
        /// What to compare with: 'head', the last commit, or 'image' [default: head in a work tree of git, else image]
        #[arg(long, value_parser = ["head", "image"])]
        baseline: Option<String>,
    },
    /// List sandboxes.
    #[command(visible_alias = "list", after_help = "Examples:\n  sloplet ls\n  sloplet ls --all --json")]
    Ls {
        /// Also stopped and failed sandboxes.
        #[arg(long, short = 'a')]
        all: bool,
        /// Only with these metadata: NAME=value. Can be repeated.
        #[arg(long, value_name = "METADATA")]
        metadata: Vec<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the processes of a sandbox.
    Ps {
        /// The sandbox's name or id.
        name: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show what background processes wrote.
    #[command(
        after_help = "Examples:\n  sloplet exec -d my -- python3 -m http.server\n  sloplet logs -f my\n  sloplet logs --tail 20 my 42"
    )]
    Logs {
        /// The sandbox's name or id.
        name: String,
        /// Only this process [default: all that were started through the server, each line with its pid]
        pid: Option<u32>,
        /// Go on until the process ends.
        #[arg(long, short = 'f')]
        follow: bool,
        /// Only the last lines of each.
        #[arg(long, value_name = "LINES")]
        tail: Option<usize>,
    },
    /// Print a URL that lets anybody read or write one S3 object for a limited time.
    #[command(after_help = exec::PRESIGN_EXAMPLES)]
    Presign {
        /// Read (get) or write (put).
        verb: Verb,
        /// s3://BUCKET/KEY, of those that the server may use.
        object: String,
        /// How long it is good for; seven days at most.
        #[arg(long, default_value = "15m")]
        expires: Span,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print a link to a port of a sandbox, or forward a local port to it.
    #[command(
        after_help = "Examples:\n  sloplet port my\n  sloplet port my 3000\n  sloplet port my 3000 --forward 8080"
    )]
    Port {
        /// The sandbox's name or id.
        name: String,
        /// The port inside [default: list those that something listens on]
        #[arg(value_parser = clap::value_parser!(u16).range(1..))]
        port: Option<u16>,
        /// How long the link works.
        #[arg(long, default_value = "1h", value_name = "TIME")]
        timeout: Span,
        /// Forward this local port until interrupted; 0 is any free one.
        #[arg(long, value_name = "LOCAL_PORT", requires = "port")]
        forward: Option<u16>,
        /// As JSON.
        #[arg(long, conflicts_with = "forward")]
        json: bool,
    },
    /// Freeze the processes of sandboxes in place.
    Pause {
        /// Their names or ids.
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Save the files of sandboxes and end their processes; 'resume' starts them afresh.
    #[command(after_help = "Example:\n  sloplet stop my ; sloplet resume my")]
    Stop {
        /// Their names or ids.
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Resume paused or stopped sandboxes.
    Resume {
        /// Their names or ids.
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Save the files of a sandbox, so that others can start from them.
    #[command(
        args_conflicts_with_subcommands = true,
        subcommand_negates_reqs = true,
        after_help = "Examples:\n  sloplet snapshot my before-upgrade\n  sloplet snapshot --memory my warm && sloplet fork --from warm -n 5\n  sloplet create --image before-upgrade\n  sloplet snapshot ls"
    )]
    Snapshot(Snapshot),
    /// Create copies of a sandbox from its files as they are now.
    #[command(
        after_help = "Examples:\n  sloplet fork my\n  sloplet fork my -n 8 --name try\n  sloplet fork --from warm -n 5"
    )]
    Fork {
        /// The sandbox's name or id.
        #[arg(required_unless_present = "from")]
        name: Option<String>,
        /// Start from a snapshot with memory instead: processes go on where they were.
        #[arg(long, value_name = "SNAPSHOT", conflicts_with = "name")]
        from: Option<String>,
        /// How many.
        #[arg(short = 'n', long = "count", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
        count: u16,
        /// Their name; several are called NAME-1, NAME-2 and so on.
        #[arg(long = "name", value_name = "NAME")]
        new_name: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove sandboxes and everything in them.
    #[command(visible_alias = "delete", after_help = "Examples:\n  sloplet rm my\n  sloplet rm --all")]
    Rm {
        /// Their names or ids.
        #[arg(required_unless_present = "all")]
        names: Vec<String>,
        /// All of them.
        #[arg(long, conflicts_with = "names")]
        all: bool,
    },
    /// Show what a sandbox tried to reach, and change what it may.
    #[command(after_help = record::NET_EXAMPLES)]
    Net(Net),
    /// Show and verify the record: commands, files, connections, spending, API calls.
    #[command(args_conflicts_with_subcommands = true, after_help = record::AUDIT_EXAMPLES)]
    Audit(Audit),
    /// Show what sandboxes cost: time and LLM calls, in dollars.
    #[command(after_help = record::COST_EXAMPLES)]
    Cost(Cost),
    /// Answer connections that wait for a person (--ask rules).
    #[command(after_help = record::APPROVE_EXAMPLES)]
    Approve(Approve),
    /// Live view of all sandboxes (q quits).
    #[command(after_help = "Examples:\n  sloplet watch\n  sloplet watch my\n  sloplet watch --json | jq .event")]
    Watch {
        /// Only this sandbox: its name or id.
        name: Option<String>,
        /// Print events as JSON, one per line.
        #[arg(long)]
        json: bool,
    },
    /// Change how long a sandbox lives from now on.
    #[command(after_help = "Examples:\n  sloplet timeout my 2h\n  sloplet timeout my never")]
    Timeout {
        /// The sandbox's name or id.
        name: String,
        /// A time like 2h, or 'never'.
        timeout: Lifetime,
    },
    /// Manage volumes: folders that outlive sandboxes.
    #[command(subcommand)]
    Volume(Volume),
    /// Manage pools: machines that are ready before somebody asks.
    #[command(subcommand, after_help = pool::POOL_EXAMPLES)]
    Pool(Pool),
    /// Manage API keys of the server.
    #[command(subcommand)]
    Key(Key),
    /// Show the server, or a sandbox and its wall.
    Info {
        /// The sandbox's name or id; the server if left out.
        name: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Manage images that sandboxes start from.
    #[command(subcommand)]
    Image(Image),
    /// Set up what virtual machines (`--isolation vm`) need.
    #[command(subcommand)]
    Vm(Vm),
    /// Replace real values in a file by fitting fakes, or generate rows.
    #[command(after_help = mask::MASK_EXAMPLES)]
    Mask(Box<Mask>),
    /// Serve sandboxes as tools to AI applications (Model Context Protocol).
    #[command(after_help = mcp::MCP_EXAMPLES)]
    Mcp(Box<Mcp>),
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
