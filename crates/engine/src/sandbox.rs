//! A running sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sloplet_client::{Agent, ClientError, Process};
use sloplet_gateway::Account;
use sloplet_image::{Image, Lease};
use sloplet_ledger::Event;
use sloplet_ledger::event::{DataMasked, Note, SandboxGone};
use sloplet_policy::{Capability, Radius, Spec};
use sloplet_wire::{Builtin, ErrorCode, Exec, Failure, TerminalSize};

use crate::driver::{DriverError, End, Machine};
use crate::engine::told;
use crate::failpoint::{Point, reach};
use crate::journal::{Journal, Watched};
use crate::outward::{Outward, unrouted};

/// The search path inside, unless the image or the caller gives another.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A command for a sandbox.
#[derive(Debug, Clone, Default)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<Vec<u8>>,
    /// Variables on top of the sandbox's, `NAME=value`.
    pub env: Vec<String>,
    /// Where it starts; the sandbox's working directory if absent.
    pub cwd: Option<String>,
    /// Who it runs as; the sandbox's user if absent.
    pub user: Option<String>,
    /// A terminal of this size in place of pipes.
    pub terminal: Option<TerminalSize>,
    /// Whether its standard input can be written.
    pub stdin: bool,
    /// Kill it after this long.
    pub timeout: Option<Duration>,
    /// Keep it running when its handle is dropped.
    pub background: bool,
    /// A label for people.
    pub tag: Option<String>,
    /// How long its output waits for a reader before any is dropped; only for those that are followed.
    pub patience: Option<Duration>,
    /// Something of the agent's own in place of a program.
    pub builtin: Option<Builtin>,
}

impl Command {
    /// A plain command.
    pub fn new<A: Into<Vec<u8>>>(argv: impl IntoIterator<Item = A>) -> Self {
        Self { argv: argv.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}

/// A running sandbox. Dropping it destroys it, too (unless it is made to last), but only [`Self::destroy`] tells when
/// nothing is left.
pub struct Sandbox {
    id: String,
    spec: Spec,
    image: Image,
    machine: Box<dyn Machine>,
    agent: Agent,
    unenforced: Vec<Capability>,
    started: Instant,
    standing: Standing,
    outward: Option<Outward>,
    radius: Arc<Radius>,
    masked: Vec<DataMasked>,
    // Held: the image's layers stay while the sandbox lives.
    _lease: Lease,
}

/// On whose behalf a sandbox acts, and what that one lets it use.
pub(crate) struct Standing {
    pub journal: Journal,
    pub account: Account,
    /// Variables of all its commands, below those of the spec.
    pub environment: Vec<(String, String)>,
}

impl Sandbox {
    #[allow(clippy::too_many_arguments, reason = "called from one place")]
    pub(crate) fn new(
        id: String,
        spec: Spec,
        image: Image,
        lease: Lease,
        machine: Box<dyn Machine>,
        agent: Agent,
        unenforced: Vec<Capability>,
        started: Instant,
        standing: Standing,
    ) -> Self {
        Self {
            id,
            spec,
            image,
            machine,
            agent,
            unenforced,
            started,
            standing,
            outward: None,
            radius: Arc::default(),
            masked: Vec::new(),
            _lease: lease,
        }
    }

    /// Keeps its commands away from what `radius` lists.
    pub(crate) fn protecting(self, radius: Arc<Radius>) -> Self {
        Self { radius, ..self }
    }

    /// Has files that were masked for it.
    pub(crate) fn with_masked(self, masked: Vec<DataMasked>) -> Self {
        Self { masked, ..self }
    }

    /// What was masked for it.
    pub fn masked(&self) -> &[DataMasked] {
        &self.masked
    }

    /// Its id: letters and digits.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What it was asked to be.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Becomes somebody's, who asked for this; the machine stays what it is.
    pub(crate) fn claimed_as(self, spec: Spec) -> Self {
        Self { spec, started: Instant::now(), ..self }
    }

    pub(crate) fn set_standing(&mut self, standing: Standing) {
        self.standing = standing;
    }

    pub(crate) fn set_outward(&mut self, outward: Outward) {
        self.outward = Some(outward);
    }

    /// Its way out, if it has one.
    pub fn outward(&self) -> Option<&Outward> {
        self.outward.as_ref()
    }

    /// How often it tried to reach an address while nothing led out. Writes it down: where to is not known. 0 for those that
    /// have a way out, and where the network is not its own.
    pub fn note_unrouted(&self) -> u64 {
        let hears = self.outward.as_ref().is_some_and(Outward::only_hears);
        let attempts = self.pid().filter(|_| hears).map_or(0, unrouted::attempts);
        if attempts > 0 {
            let text = format!("{attempts} attempts to reach addresses found no way out: nothing may be reached");
            self.journal().note_by("sandbox", Event::Note(Note { text: text.into() }));
        }
        attempts
    }

    /// What is written down about it.
    pub fn journal(&self) -> &Journal {
        &self.standing.journal
    }

    /// What it spends from.
    pub fn account(&self) -> &Account {
        &self.standing.account
    }

    /// What it started from.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Its agent: files, processes, ports.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Limits that do not hold, accepted with `best_effort`.
    pub fn unenforced(&self) -> &[Capability] {
        &self.unenforced
    }

    /// The machine it runs in: its state, its deadline, what it uses.
    pub fn machine(&self) -> &dyn Machine {
        &*self.machine
    }

    /// The host's pid of its first process.
    pub fn pid(&self) -> Option<i32> {
        self.machine.pid()
    }

    /// How long it has lived.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Starts a command. It is written down before it is started; if that is not possible, or too many were started of
    /// late, it is not.
    pub async fn exec(&self, command: Command) -> Result<Process, ClientError> {
        let refused = |code, message| ClientError::Failed(Failure { code, message });
        if !self.spec.lacks("protected-env") {
            let denied = self.radius.check_env(&command.env);
            denied.map_err(|error| refused(ErrorCode::Denied, error.to_string()))?;
        }
        self.standing.account.command().map_err(|refusal| refused(ErrorCode::Exhausted, refusal.to_string()))?;
        let workdir = match (command.cwd, self.workdir()) {
            // The agent would take it from the user's home.
            (Some(path), Some(usual)) if !path.starts_with('/') => Some(format!("{usual}/{path}")),
            (path, usual) => path.or(usual),
        };
        let exec = Exec {
            argv: command.argv.into_iter().map(Into::into).collect(),
            env: self.environment(&command.env),
            cwd: workdir.map(|path| path.into_bytes().into()),
            user: command.user.or_else(|| self.spec.user.clone()),
            terminal: command.terminal,
            stdin: command.stdin,
            timeout_ms: command.timeout.map(|timeout| timeout.as_millis() as u64),
            background: command.background,
            tag: command.tag,
            builtin: command.builtin,
        };
        let watched = Watched::begin(&self.standing.journal, &exec)
            .map_err(|error| refused(ErrorCode::Exhausted, format!("the command was not started: {error}")))?;
        // Not the arguments: they may hold secrets.
        let program = exec.argv.first().map(|word| String::from_utf8_lossy(word).into_owned()).unwrap_or_default();
        let span = tracing::debug_span!(
            "exec",
            sandbox.id = self.id,
            process.executable.path = program,
            process.pid = tracing::field::Empty,
            error = tracing::field::Empty,
        );
        reach(Point::BeforeExec);
        let mut process = told(span.clone(), self.agent.exec(exec)).await?;
        reach(Point::AfterExec);
        span.record("process.pid", process.pid);
        process.observe(Box::new(watched));
        Ok(process)
    }

    /// Where its commands start; the user's home if absent.
    pub fn workdir(&self) -> Option<String> {
        let asked = self.spec.workdir.as_ref().map(|path| path.display().to_string());
        asked.or_else(|| self.usual_workdir())
    }

    /// Where they would start if nobody had asked for another folder, which may have to be made first.
    pub(crate) fn usual_workdir(&self) -> Option<String> {
        let usual = self.machine.home().map(str::to_owned).or_else(|| self.image.config.workdir.clone());
        usual.filter(|path| !path.is_empty())
    }

    /// Freezes or thaws all its processes.
    pub async fn pause(&self, frozen: bool) -> Result<(), DriverError> {
        reach(if frozen { Point::BeforeFreeze } else { Point::BeforeThaw });
        self.machine.pause(frozen).await?;
        reach(if frozen { Point::AfterFreeze } else { Point::AfterThaw });
        Ok(())
    }

    /// Kills everything in it and removes all that it held on the host; others may still hold this.
    pub(crate) async fn tear_down(&self) -> Result<End, DriverError> {
        reach(Point::BeforeDestroy);
        let end = self.machine.destroy().await?;
        reach(Point::AfterDestroy);
        Ok(end)
    }

    /// Another connection to its agent, where the wall can; the greeting is not waited for.
    pub async fn reconnect(&self) -> Result<Agent, DriverError> {
        Ok(Agent::connect_later(self.machine.connect().await?))
    }

    /// Talks to its agent over a new connection from now on, because the old one broke.
    pub async fn renew(&self) -> Result<(), DriverError> {
        self.agent.move_to(self.machine.connect().await?);
        Ok(())
    }

    /// Kills everything in it and removes all that it held on the host.
    pub async fn destroy(self) -> Result<End, DriverError> {
        let end = self.machine.destroy().await?;
        self.note_end(&end);
        Ok(end)
    }

    /// Writes down that it is no more.
    pub(crate) fn note_end(&self, end: &End) {
        let reason = match end {
            End { timed_out: true, .. } => "its time was over",
            End { over_disk: true, .. } => "it wrote more than it may",
            End { lost: true, .. } => "whoever watched over it died",
            _ => "it was asked to end",
        };
        let lifetime_ms = self.age().as_millis() as u64;
        self.standing.journal.note(Event::SandboxGone(SandboxGone { reason: reason.into(), lifetime_ms }));
    }

    /// The image's variables, then the sandbox's, then the command's. Nothing of the host's.
    fn environment(&self, extra: &[String]) -> Vec<sloplet_wire::ByteVec> {
        let hosts: Vec<(String, String)> =
            if self.spec.lacks("environment") { std::env::vars().collect() } else { Vec::new() };
        let mut all: BTreeMap<&str, &str> = BTreeMap::from([("PATH", PATH), ("LANG", "C.UTF-8")]);
        all.extend(hosts.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        all.extend(self.image.config.env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        all.extend(self.machine.home().into_iter().flat_map(|home| [("HOME", home), ("TMPDIR", home)]));
        all.extend(self.standing.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        all.extend(self.spec.env.iter().chain(extra).filter_map(|variable| variable.split_once('=')));
        all.into_iter().map(|(name, value)| format!("{name}={value}").into_bytes().into()).collect()
    }
}
