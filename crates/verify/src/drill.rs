//! What a probe needs that attacks with the host's hand.

use std::io;
use std::process::{Command as HostCommand, Stdio};
use std::time::Duration;

use sloplet_client::{ClientError, Output};
use sloplet_engine::outward::private::Private;
use sloplet_engine::{Command, DriverError, Engine, EngineError, Patron, Sandbox};
use sloplet_policy::{DriverReport, Feature, Spec};
use sloplet_wire::Target;

use crate::calls::Call;
use crate::canaries::Canaries;
use crate::outside::World;
use crate::probe::{Finding, Pending};
use crate::program::SUBCOMMAND;
use crate::settings::Settings;

/// Most bytes of output that are kept.
const OUTPUT: usize = 1 << 20;

/// How long something may take inside; where the processor is emulated, everything takes longer.
const PATIENCE: Duration = Duration::from_secs(20);
const PATIENCE_WITH_OWN_KERNEL: Duration = Duration::from_secs(120);

/// A drill's surroundings.
pub struct Drill<'a> {
    /// Makes sandboxes.
    pub engine: &'a Engine,
    /// What the wall claims.
    pub wall: &'a DriverReport,
    /// The sandbox that is verified, with the program for attempts mounted.
    pub spec: &'a Spec,
    /// Where that program is inside.
    pub program: &'a str,
    /// This binary.
    pub host_program: &'a std::path::Path,
    /// What was planted.
    pub canaries: &'a Canaries,
}

/// Why a drill could not be carried out: nothing can be said then.
#[derive(Debug, thiserror::Error)]
pub enum DrillError {
    /// No sandbox.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// No answer from inside.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The wall.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The host.
    #[error(transparent)]
    Host(#[from] io::Error),
    /// It took too long.
    #[error("no answer in time")]
    Late,
}

impl From<DrillError> for Finding {
    fn from(error: DrillError) -> Self {
        use DriverError::Unsupported;
        match error {
            // What cannot be asked for cannot be attacked.
            DrillError::Driver(Unsupported(what)) | DrillError::Engine(EngineError::Driver(Unsupported(what))) => {
                Self::not_applicable(what.to_string())
            }
            error => Self::inconclusive("", format!("the drill could not be carried out: {error}")),
        }
    }
}

/// A drill whose failures prove nothing.
pub fn settle<'a>(drill: impl Future<Output = Result<Finding, DrillError>> + 'a) -> Pending<'a> {
    Box::pin(async move { drill.await.unwrap_or_else(Finding::from) })
}

/// What was said inside or on the host.
#[derive(Debug, Clone)]
pub struct Said {
    /// The exit status, as a shell would have it.
    pub code: i32,
    /// Standard output, without white space around it.
    pub out: String,
}

impl Said {
    /// The number that it begins with.
    pub fn number(&self) -> u64 {
        self.out.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
    }
}

impl Drill<'_> {
    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.canaries.settings
    }

    /// Whether the wall has a kernel of its own: what the host does not see of it, it does not know.
    pub fn own_kernel(&self) -> bool {
        self.wall.claims(Feature::OwnKernel)
    }

    fn patience(&self) -> Duration {
        if self.own_kernel() { PATIENCE_WITH_OWN_KERNEL } else { PATIENCE }
    }

    /// Where a folder of the canaries is inside.
    pub fn inside(&self, name: &str) -> String {
        match self.program.strip_suffix("/probe") {
            // The same path, for a wall without a root of its own.
            Some(folder) if !folder.is_empty() => format!("{folder}/{name}"),
            _ => format!("/sloplet-{name}"),
        }
    }

    /// A sandbox like the verified one, changed in some respect.
    pub async fn sandbox(&self, change: impl FnOnce(&mut Spec)) -> Result<Sandbox, DrillError> {
        let mut spec = self.spec.clone();
        change(&mut spec);
        Ok(self.engine.create(spec, &Patron { ear: true, ..Patron::plain("verify") }).await?)
    }

    /// The description of the verified sandbox, changed in some respect.
    pub fn spec_with(&self, change: impl FnOnce(&mut Spec)) -> Spec {
        let mut spec = self.spec.clone();
        change(&mut spec);
        spec
    }

    /// A sandbox like the verified one, changed in some respect, whose way out leads to this world.
    pub async fn sandbox_with(&self, world: &World, change: impl FnOnce(&mut Spec)) -> Result<Sandbox, DrillError> {
        self.made_with(world, self.spec_with(change), Private::default()).await
    }

    /// A sandbox of this description, with these secrets, whose way out leads to this world.
    pub async fn made_with(&self, world: &World, spec: Spec, private: Private) -> Result<Sandbox, DrillError> {
        let patron = Patron { outside: world.outside(), private, ..Patron::plain("verify") };
        Ok(self.engine.create(spec, &patron).await?)
    }

    /// Makes calls from inside; what came of each.
    pub async fn call(&self, sandbox: &Sandbox, calls: &[Call]) -> Result<Vec<String>, DrillError> {
        let mut all = Vec::new();
        // A word of a command line has its bound.
        for some in calls.chunks(16) {
            let text = serde_json::to_string(some).map_err(io::Error::other)?;
            let said = self.act(sandbox, &["call", &text]).await?;
            let answers: Vec<String> = serde_json::from_str(&said.out).unwrap_or_default();
            all.extend(some.iter().enumerate().map(|(place, _)| answers.get(place).cloned().unwrap_or_default()));
        }
        Ok(all)
    }

    /// The words that make the program inside do something.
    pub fn words(&self, act: &[&str]) -> Command {
        let words = [self.program, SUBCOMMAND, "act"].into_iter().chain(act.iter().copied());
        Command { timeout: Some(self.patience()), ..Command::new(words.map(str::as_bytes)) }
    }

    /// Has something done inside, to its end.
    pub async fn act(&self, sandbox: &Sandbox, act: &[&str]) -> Result<Said, DrillError> {
        self.run(sandbox, self.words(act)).await
    }

    /// Runs a command inside, to its end.
    pub async fn run(&self, sandbox: &Sandbox, command: Command) -> Result<Said, DrillError> {
        let process = sandbox.exec(command).await?;
        let output = tokio::time::timeout(self.patience() + Duration::from_secs(5), process.output(OUTPUT)).await;
        let Output { stdout, exit, .. } = output.map_err(|_| DrillError::Late)??;
        Ok(Said { code: exit.shell_code(), out: String::from_utf8_lossy(&stdout).trim().to_owned() })
    }

    /// Has the same done on the host.
    pub async fn control(&self, act: &[&str]) -> Result<Said, DrillError> {
        let mut command = HostCommand::new(self.host_program);
        command.arg(SUBCOMMAND).arg("act").args(act).stdin(Stdio::null()).stderr(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output()).await.map_err(io::Error::other)??;
        let out = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Said { code: output.status.code().unwrap_or(128), out })
    }

    /// Whether the agent still serves: it runs something.
    pub async fn serves(&self, sandbox: &Sandbox) -> bool {
        tokio::time::timeout(Duration::from_secs(10), sandbox.agent().ping()).await.is_ok_and(|answer| answer.is_ok())
    }

    /// A place of that name that its commands can write to.
    pub fn place(&self, sandbox: &Sandbox, name: &str) -> String {
        format!("{}/{name}", sandbox.machine().home().unwrap_or("/tmp"))
    }

    /// A place for the file API, as the sandbox's user.
    pub fn target(&self, path: impl Into<Vec<u8>>) -> Target {
        Target { path: path.into().into(), user: self.spec.user.clone(), privileged: false }
    }

    /// Reads a file by the file API.
    pub async fn read(&self, sandbox: &Sandbox, path: &[u8]) -> Result<Vec<u8>, ClientError> {
        let (_, mut download) = sandbox.agent().read(self.target(path), 0, Some(OUTPUT as u64)).await?;
        let mut all = Vec::new();
        while let Some(chunk) = download.chunk().await? {
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }
}
