//! What can be typed.

mod record;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use sloplet_policy::budget::{AtCap, Tokens, Usd};
use sloplet_policy::network::Rule;
use sloplet_policy::secret::SecretRule;
use sloplet_policy::{Bind, ByteSize, Cpus, Isolation, Span};

pub use record::{Approve, Audit, Audits, Cost, Format, Kept, Net, Which};

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
    /// Keep images here instead of the usual place.
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
    /// Attack a sandbox of a configuration and tell what came of it.
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(Box<Verify>),
    /// Write a sloplet.toml: what to protect on this machine, and what a sandbox is.
    #[command(after_help = "Examples:\n  sloplet init\n  sloplet init --yes && sloplet verify")]
    Init {
        /// Ask nothing.
        #[arg(long, short = 'y')]
        yes: bool,
        /// Replace a file that is there.
        #[arg(long)]
        force: bool,
    },
    /// Serve long-lived sandboxes over HTTP: our own API, and the one that E2B's SDKs speak.
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<Serve>),
    /// Make a sandbox that stays.
    #[command(after_help = CREATE_EXAMPLES)]
    Create(Box<Create>),
    /// Run a command in a sandbox that stays.
    #[command(after_help = EXEC_EXAMPLES)]
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
    /// Copy files and folders between the host and a sandbox.
    #[command(after_help = CP_EXAMPLES)]
    Cp {
        /// A path, NAME:PATH, or - for standard input.
        source: String,
        /// A path, NAME:PATH, or - for standard output.
        destination: String,
        /// On whose behalf inside [default: the sandbox's user]
        #[arg(long, short = 'u')]
        user: Option<String>,
    },
    /// List sandboxes.
    #[command(after_help = "Examples:\n  sloplet ls\n  sloplet ls --all --json")]
    Ls {
        /// In any state, not only those that run or are paused.
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
    /// Let paused or stopped sandboxes go on.
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
    /// Make sandboxes that start from another's files as they are now.
    #[command(
        after_help = "Examples:\n  sloplet fork my\n  sloplet fork my -n 8 --name try\n  sloplet fork --from warm -n 5"
    )]
    Fork {
        /// The sandbox's name or id.
        #[arg(required_unless_present = "from")]
        name: Option<String>,
        /// A snapshot with memory, in place of a sandbox: they go on where that was.
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
    #[command(after_help = "Examples:\n  sloplet rm my\n  sloplet rm --all")]
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
    /// Show what happened: commands, files, connections, spending, API calls. And prove it.
    #[command(args_conflicts_with_subcommands = true, after_help = record::AUDIT_EXAMPLES)]
    Audit(Audit),
    /// Tell what sandboxes cost: time and LLM calls, in dollars.
    #[command(after_help = record::COST_EXAMPLES)]
    Cost(Cost),
    /// Answer for connections that wait for a person (rules of --ask).
    #[command(after_help = record::APPROVE_EXAMPLES)]
    Approve(Approve),
    /// Watch what agents do now: a screen that lives. Press q to leave it.
    #[command(after_help = "Examples:\n  sloplet watch\n  sloplet watch my\n  sloplet watch --json | jq .event")]
    Watch {
        /// Only this sandbox: its name or id.
        name: Option<String>,
        /// Print what happens as JSON, a record a line.
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
    /// Folders that outlive sandboxes.
    #[command(subcommand)]
    Volume(Volume),
    /// API keys of the server.
    #[command(subcommand)]
    Key(Key),
    /// Tell about the server.
    Info {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Images that sandboxes start from.
    #[command(subcommand)]
    Image(Image),
    /// What virtual machines (`--isolation vm`) need.
    #[command(subcommand)]
    Vm(Vm),
    /// Replace real values in a file by fakes that fit, or make rows from nothing.
    #[command(after_help = MASK_EXAMPLES)]
    Mask(Box<Mask>),
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

/// Virtual machines.
#[derive(Debug, Subcommand)]
pub enum Vm {
    /// Download the distribution's cloud kernel into the data folder; it is not installed.
    #[command(after_help = "Example:\n  sloplet vm setup && sloplet run --isolation vm --image base -- uname -a")]
    Setup {
        /// A kernel's package that is here already (.deb).
        package: Option<PathBuf>,
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

/// What a sandbox is, whatever runs in it and however long it lives.
#[derive(Debug, Args)]
pub struct Machine {
    /// How strong the wall is: process, container, gvisor or vm [default: container]
    #[arg(long, value_name = "LEVEL")]
    pub isolation: Option<Isolation>,

    /// Which wall, by its driver's name (see 'sloplet doctor') [default: the first of that strength]
    #[arg(long, value_name = "NAME", conflicts_with = "isolation")]
    pub driver: Option<String>,

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

    /// Show a host file or folder inside: HOST:INSIDE[:ro|:rw]; read-only unless :rw. Can be repeated.
    #[arg(long, short = 'v', value_name = "MOUNT")]
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

    /// Start even if this host cannot enforce every limit; says which.
    #[arg(long)]
    pub best_effort: bool,

    /// The file that describes the sandbox; flags win over it [default: sloplet.toml, if there is one here]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// What it may reach and use up.
    #[command(flatten)]
    pub reach: Reach,
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

    /// How long that person may take; without an answer it is no [default: 2m]
    #[arg(long, value_name = "TIME")]
    pub ask_timeout: Option<Span>,

    /// Let it reach a port of the host's loopback, as host.sloplet.internal. Can be repeated.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub allow_host_port: Vec<u16>,

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

    /// Spend from one pot together with other sandboxes of this group.
    #[arg(long, value_name = "GROUP")]
    pub budget_group: Option<String>,

    /// What happens when money or tokens are used up: deny, pause or kill [default: deny]
    #[arg(long, value_name = "ACTION")]
    pub at_cap: Option<AtCap>,
}

/// `sloplet run`
#[derive(Debug, Args)]
pub struct Run {
    /// What to start from: 'host', a stored image, or a path to a directory, tarball, OCI layout or docker-save archive
    /// [default: host]
    #[arg(long)]
    pub image: Option<String>,

    /// What the sandbox is.
    #[command(flatten)]
    pub machine: Machine,

    /// Wall-clock time, after which everything inside is killed [default: 1h]
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Span>,

    /// Output that is passed on; the rest is dropped, and that is said [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub output_limit: Option<ByteSize>,

    /// Refuse to start unless this exact configuration was verified on this host, lately and without a breach.
    #[arg(long)]
    pub verified: bool,

    /// Pass standard input on even if it is a terminal.
    #[arg(long, short = 'i')]
    pub interactive: bool,

    /// Give the command a terminal.
    #[arg(long, short = 't')]
    pub tty: bool,

    /// Capture the output and print one JSON object with it, the exit status and what was used.
    #[arg(long, conflicts_with = "tty")]
    pub json: bool,

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

    /// Give sandboxes of E2B's SDKs, which ask for internet access unless told otherwise, what they ask for. Private
    /// addresses stay out of reach.
    #[arg(long)]
    pub allow_internet: bool,

    /// Open ports of sandboxes to everybody who knows their address, as E2B does, unless a sandbox says otherwise.
    #[arg(long)]
    pub public_previews: bool,

    /// Keep machines ready: IMAGE=NUMBER, of the usual size. Can be repeated.
    #[arg(long, value_name = "IMAGE=NUMBER", value_parser = parse_warm)]
    pub warm: Vec<(String, usize)>,

    /// A file whose `[protect]` holds for every sandbox of this server.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Verify the walls again and again, so often.
    #[arg(long, value_name = "TIME")]
    pub verify_every: Option<Span>,

    /// Destroy all sandboxes when the server is asked to end, instead of leaving them for the next one.
    #[arg(long)]
    pub destroy_on_exit: bool,

    /// Remove records that are older, once a day and in whole segments of 64 MiB; or 'forever'.
    #[arg(long, value_name = "TIME", default_value = "90d")]
    pub keep_records: Kept,

    /// Remove what commands printed after so long; or 'forever'. Its digest stays in the records.
    #[arg(long, value_name = "TIME", default_value = "30d")]
    pub keep_outputs: Kept,

    /// Log as JSON.
    #[arg(long)]
    pub log_json: bool,

    /// In a session of its own: started by another command, to go on without it.
    #[arg(long, hide = true)]
    pub detached: bool,

    /// Print the OpenAPI document and end.
    #[arg(long, hide = true)]
    pub print_openapi: bool,
}

const VERIFY_EXAMPLES: &str = "\
Every attempt is first made on the host, unconfined, where it must take effect; then inside, where none may.

Examples:
  sloplet verify
  sloplet verify --driver all --json --junit report.xml --html report.html
  sloplet verify --changed --max-age 1d
  sloplet verify --probe mounts --probe fork-bomb --verbose
  sloplet run --verified -- my-agent

Exit status: 0 if nothing got out, 1 if something did, 125 if nothing could be verified.";

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

const CREATE_EXAMPLES: &str = "\
Examples:
  sloplet create --name my --timeout 1h
  sloplet create --memory 512MiB --cpus 1 --volume data:/data --metadata team=a
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

    /// What the sandbox is.
    #[command(flatten)]
    pub machine: Machine,

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

const EXEC_EXAMPLES: &str = "\
Examples:
  sloplet exec my -- python3 --version
  sloplet exec -it my -- bash
  tar c . | sloplet exec my -- tar x -C /tmp
  sloplet exec -d my -- python3 -m http.server 3000

Exit status: the command's own; 128+N if signal N ended it; 124 if the time was over; 126 if the command cannot be
executed, 127 if it does not exist; 125 if sloplet itself failed.";

/// `sloplet exec`
#[derive(Debug, Args)]
pub struct Exec {
    /// Pass standard input on even if it is a terminal.
    #[arg(long, short = 'i')]
    pub interactive: bool,

    /// Give the command a terminal.
    #[arg(long, short = 't', conflicts_with = "detach")]
    pub tty: bool,

    /// Start it in the background and print its pid.
    #[arg(long, short = 'd')]
    pub detach: bool,

    /// A label for a background process.
    #[arg(long, requires = "detach")]
    pub tag: Option<String>,

    /// Set a variable: NAME=value, or NAME alone to pass on the host's. Can be repeated.
    #[arg(long, short = 'e', value_name = "VARIABLE")]
    pub env: Vec<String>,

    /// Where the command starts.
    #[arg(long, short = 'w', value_name = "FOLDER")]
    pub workdir: Option<String>,

    /// Who the command runs as inside: name, uid or uid:gid.
    #[arg(long, short = 'u')]
    pub user: Option<String>,

    /// Kill it after so long.
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Span>,

    /// The sandbox's name or id.
    pub name: String,

    /// The command and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

const CP_EXAMPLES: &str = "\
A folder is copied with all that is in it. If the destination is a folder (or ends with a slash), the copy goes into it.

Examples:
  sloplet cp ./x my:/home/user/
  sloplet cp my:/home/user/result.txt .
  sloplet cp ./src my:/workspace
  echo hi | sloplet cp - my:/tmp/hi
  sloplet cp my:/etc/os-release -";

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

/// `sloplet snapshot`
#[derive(Debug, Args)]
pub struct Snapshot {
    /// What else.
    #[command(subcommand)]
    pub command: Option<Snapshots>,

    /// The sandbox's name or id.
    #[arg(required = true)]
    pub name: Option<String>,

    /// A name for the snapshot.
    pub new_name: Option<String>,

    /// Save its processes with their memory, too, where its driver can: 'sloplet fork --from' goes on from there.
    #[arg(long)]
    pub memory: bool,

    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// `sloplet snapshot …`
#[derive(Debug, Subcommand)]
pub enum Snapshots {
    /// List snapshots.
    Ls {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove snapshots. Sandboxes made from them are not touched.
    Rm {
        /// Their names or ids.
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// `sloplet volume`
#[derive(Debug, Subcommand)]
pub enum Volume {
    /// Make an empty volume.
    #[command(
        after_help = "Examples:\n  sloplet volume create data && sloplet create --volume data:/data\n  sloplet volume create small --size 1GiB"
    )]
    Create {
        /// Its name.
        name: String,
        /// How large it can become; takes a server that is root [default: as large as the host's disk]
        #[arg(long)]
        size: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// List volumes.
    Ls {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove volumes and what is in them.
    Rm {
        /// Their names or ids.
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// `sloplet key`
#[derive(Debug, Subcommand)]
pub enum Key {
    /// Make a key. Its secret is shown this once.
    #[command(after_help = "Example:\n  sloplet key create ci --scope use --max-sandboxes 10")]
    Create {
        /// For people.
        label: String,
        /// What it allows: read, use or admin.
        #[arg(long, default_value = "use", value_parser = ["read", "use", "admin"])]
        scope: String,
        /// Sandboxes that it may have at once.
        #[arg(long, value_name = "NUMBER")]
        max_sandboxes: Option<u64>,
        /// Memory that they may have together.
        #[arg(long, value_name = "SIZE")]
        max_memory: Option<ByteSize>,
        /// Requests in a minute.
        #[arg(long, value_name = "NUMBER")]
        rate: Option<u32>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// List keys.
    Ls {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove keys. Their sandboxes stay until their time is over.
    Rm {
        /// Their ids.
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

fn parse_warm(text: &str) -> Result<(String, usize), String> {
    let form = || format!("'{text}' is not of the form IMAGE=NUMBER, like host=4");
    let (image, count) = text.split_once('=').ok_or_else(form)?;
    Ok((image.to_owned(), count.parse().map_err(|_| form())?))
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

const MASK_EXAMPLES: &str = "\
The same value becomes the same fake in every file and every run with the same key. A column without a rule is refused.

Examples:
  sloplet mask --new-key mask.key
  sloplet mask --suggest customers.csv > customers.toml
  sloplet mask customers.csv --out fake.csv --config customers.toml --key mask.key
  sloplet mask --rows 10000 --schema customers.toml --out made.csv

Formats: CSV, TSV, JSON, JSON Lines, SQLite, SQL dumps.";

/// `sloplet mask`
#[derive(Debug, Args)]
pub struct Mask {
    /// The file with real values.
    pub source: Option<PathBuf>,

    /// Where the masked file goes.
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// The rules.
    #[arg(long, short = 'c', value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// The key; or SLOPLET_MASK_KEY has it.
    #[arg(long, value_name = "FILE", env = "SLOPLET_MASK_KEY_FILE", hide_env_values = true)]
    pub key: Option<PathBuf>,

    /// Write what was found and done to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// csv, tsv, json, jsonl, sqlite or sql [default: by the file's name]
    #[arg(long)]
    pub format: Option<String>,

    /// Whose rules a file with one table has [default: by the file's name]
    #[arg(long)]
    pub table: Option<String>,

    /// Fail if a fake is the real value of another row.
    #[arg(long)]
    pub strict: bool,

    /// Propose rules for the file, from its columns and first rows.
    #[arg(long, conflicts_with_all = ["out", "rows", "new_key"])]
    pub suggest: bool,

    /// Make a new key.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["source", "out", "rows"])]
    pub new_key: Option<PathBuf>,

    /// Make so many rows from nothing but rules.
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["source", "strict"])]
    pub rows: Option<u64>,

    /// The rules for them.
    #[arg(long, value_name = "FILE", requires = "rows")]
    pub schema: Option<PathBuf>,

    /// The same seed makes the same rows.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub seed: u64,

    /// As JSON.
    #[arg(long)]
    pub json: bool,
}
