//! One build: a sandbox in which the steps of a recipe run, and whose files become an image.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sloplet_client::{ClientError, ProcessEvent};
use sloplet_image::{ImageConfig, PullOptions};
use sloplet_policy::{ByteSize, Spec};
use sloplet_wire::Exit;

use super::log::{MAX_LINE, Splitter};
use super::record::{Build, Level, Reason};
use super::registry::{Recipe, Running, Source, Templates};
use super::resolve::{Origin, pulled_name};
use super::step::{Step, absolute, expand};
use super::{cache, copy, provision};
use crate::engine::new_id;
use crate::failpoint::{Point, reach};
use crate::life::{self, Ended, LifeError, NewSandbox, Next, Quota, Reached, Tracked, builder_of};
use crate::sandbox::Command;

/// How long a build may take. Whatever happens, it is over then.
const WITHIN: Duration = Duration::from_secs(3600);

/// How long the ready command of a recipe may take to succeed.
const READY_WITHIN: Duration = Duration::from_secs(300);

/// Between two tries of the ready command.
const READY_EVERY: Duration = Duration::from_millis(500);

/// How long what was started may take to end when it is asked to.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// What a build may use at least: compilers need more than what they make.
const LEAST_MEMORY: ByteSize = ByteSize::gib(2);

/// Lines of a failed step that are told with the reason.
const TAIL: usize = 20;

/// Lines on standard error that become part of the reason's message.
const SAID: usize = 5;

/// The name of what is done before the first step, and after the last.
const BASE: &str = "base";
const FINALIZE: &str = "finalize";

/// What E2B says of a user that does not exist.
const NO_USER: &str = "invalid username";

/// Signals.
const TERMINATE: i32 = 15;
const KILL: i32 = 9;

/// Where and why a build failed.
struct Failed {
    step: String,
    message: String,
}

/// Runs a build to its end, and remembers that.
pub(super) async fn run(templates: Templates, build: Build, recipe: Recipe, quota: Quota, running: Arc<Running>) {
    let builder = builder_of(&build.owner);
    let mut work = Work {
        templates: &templates,
        build: &build,
        builder: &builder,
        quota,
        recipe: &recipe,
        running: &running,
        sandbox: None,
        image: String::new(),
        starts_something: false,
        step: BASE.to_owned(),
        root: "root".to_owned(),
        user: provision::USER.to_owned(),
        workdir: provision::HOME.to_owned(),
        env: BTreeMap::new(),
        added: Vec::new(),
    };
    let outcome = tokio::select! {
        outcome = tokio::time::timeout(WITHIN, work.carry_out()) => outcome.unwrap_or_else(|_| {
            Err(format!("the build took longer than {} minutes", WITHIN.as_secs() / 60))
        }),
        () = running.cancelled.notified() => Err("the template was deleted".into()),
    };
    let outcome = outcome.map_err(|message| Failed { step: work.step.clone(), message });
    if let Some(sandbox) = work.sandbox.take()
        && let Err(error) = templates.0.sandboxes.destroy(&builder, &sandbox).await
    {
        tracing::warn!(%error, build = build.id, "cannot remove the sandbox of a build");
    }
    let failure = outcome.err().map(|Failed { step, message }| {
        let entries = running.log.tail(&step, TAIL);
        // The SDKs show the message alone.
        let said: Vec<&str> = entries.iter().filter(|entry| entry.level == Level::Warn).map(|e| &*e.message).collect();
        let message = [&[&*message], &said[said.len().saturating_sub(SAID)..]].concat().join("\n");
        running.log.say(Level::Error, &step, &format!("Build failed: {message}"));
        Reason { message, step: Some(step), entries }
    });
    if failure.is_none() {
        running.log.say(Level::Info, FINALIZE, "Build finished");
    }
    let (id, inner) = (build.id.clone(), templates.0.clone());
    let kept = tokio::task::spawn_blocking(move || inner.finish(build, failure)).await;
    if let Ok(Err(error)) = kept {
        tracing::error!(%error, build = id, "cannot remember the end of a build");
    }
}

/// A build as far as it is.
struct Work<'a> {
    templates: &'a Templates,
    build: &'a Build,
    /// Who owns its sandbox, on behalf of the build's owner.
    builder: &'a str,
    quota: Quota,
    recipe: &'a Recipe,
    running: &'a Running,
    sandbox: Option<String>,
    /// What the sandbox started from.
    image: String,
    /// Whether that would start something by itself.
    starts_something: bool,
    step: String,
    /// Who prepares things. Where a sandbox knows one user only, that one.
    root: String,
    user: String,
    workdir: String,
    /// All variables that are known, to be used in values of others.
    env: BTreeMap<String, String>,
    /// Those that the recipe added.
    added: Vec<(String, String)>,
}

impl Work<'_> {
    async fn carry_out(&mut self) -> Result<(), String> {
        let room = self.templates.0.room(&self.build.owner);
        let _room = room.acquire().await.map_err(|error| error.to_string())?;
        let keys = self.begin().await?;
        let done = self.resume(&keys).await?;
        let count = self.recipe.steps.len();
        for (index, step) in self.recipe.steps.iter().enumerate() {
            self.step = (index + 1).to_string();
            let said = format!("[{}/{count}] {}", index + 1, step.describe());
            if index < done {
                self.say(Level::Info, &format!("CACHED {said}"));
                self.recall(step);
                continue;
            }
            self.say(Level::Info, &said);
            self.take(step).await?;
            if cache::is_worth_it(step) {
                self.keep(&keys[index]).await?;
            }
        }
        self.step = FINALIZE.to_owned();
        self.try_start().await?;
        self.save().await
    }

    /// Finds the image to start from, and the keys of what is made from it.
    async fn begin(&mut self) -> Result<Vec<String>, String> {
        let origin = self.origin().await?;
        let image = self.templates.0.sandboxes.engine().resolve(&origin.image).map_err(text)?;
        self.say(Level::Info, &format!("FROM {}", origin.alias.as_deref().unwrap_or(&origin.id)));
        if matches!(self.recipe.source, Source::Template(_)) {
            self.user = image.config.user.clone().unwrap_or_else(|| self.user.clone());
            self.workdir = image.config.workdir.clone().unwrap_or_else(|| self.workdir.clone());
        }
        self.env = image.config.env.iter().cloned().collect();
        self.env.entry("PATH".into()).or_insert_with(|| crate::sandbox::PATH.into());
        let keys = cache::keys(&self.build.owner, &image, self.recipe, &self.templates.0.uploads);
        self.starts_something = image.config.start.is_some();
        self.image = origin.image;
        Ok(keys)
    }

    /// Starts a sandbox from what an earlier build has made, or else from the beginning. Tells how many steps are done.
    async fn resume(&mut self, keys: &[String]) -> Result<usize, String> {
        let usable = &keys[..self.recipe.uncached_from.min(keys.len())];
        if let Some(last) = self.templates.cached(usable) {
            let base = std::mem::replace(&mut self.image, cache::image_name(&keys[last]));
            // It may have been forgotten in this very moment.
            if self.start_sandbox().await.is_ok() {
                return Ok(last + 1);
            }
            self.image = base;
        }
        self.start_sandbox().await?;
        if self.root == self.user || matches!(self.recipe.source, Source::Template(_)) {
            return Ok(0);
        }
        let ended = self.run(&self.root, "/", &["/bin/sh", "-c", provision::SCRIPT]).await?;
        expect_success(&ended, "prepare the image: it needs a shell and a user")?;
        Ok(0)
    }

    async fn start_sandbox(&mut self) -> Result<(), String> {
        let mut limits = self.build.resources.limits();
        // As much as its owner may have at all.
        let least = self.quota.memory.map_or(LEAST_MEMORY, |most| LEAST_MEMORY.min(ByteSize(most)));
        limits.memory = limits.memory.max(least);
        limits.disk = limits.disk.max(sloplet_policy::Limits::default().disk);
        let request = NewSandbox {
            spec: Spec { image: self.image.clone(), limits, ..Spec::default() },
            template: Some(self.build.template.clone()),
            // Ended by the build itself; this is for when there is no server any more.
            timeout: Some(WITHIN + Duration::from_secs(300)),
            // What the image wants started would only be in the way.
            start: self.starts_something.then(|| "true".into()),
            ready: self.starts_something.then(|| "true".into()),
            ..NewSandbox::default()
        };
        let record = self.templates.0.sandboxes.create(self.builder, request, &self.quota).await.map_err(text)?;
        self.sandbox = Some(record.id);
        let no_root = self.run(&self.root, "/", &["/bin/sh", "-c", "exit 0"]).await;
        if self.root != self.user && no_root.is_err_and(|why| why.contains(NO_USER)) {
            self.say(Level::Warn, "this host's sandboxes have one user only: nothing can be done as root");
            self.root.clone_from(&self.user);
        }
        Ok(())
    }

    /// Keeps what the steps so far have made for other builds, and goes on on top of that. What they left running ends.
    async fn keep(&mut self, key: &str) -> Result<(), String> {
        let Some(sandbox) = self.sandbox.clone() else { return Ok(()) };
        let sandboxes = &self.templates.0.sandboxes;
        let image = cache::image_name(key);
        if let Err(error) = sandboxes.save_as(self.builder, &sandbox, &image, |_| ()).await {
            // The build itself can go on without.
            tracing::warn!(%error, build = self.build.id, "cannot keep what a step has made");
            return Ok(());
        }
        let size = |image: &str| sandboxes.engine().resolve(image).map_or(0, |image| image.size_bytes);
        let bytes = size(&image).saturating_sub(size(&self.image));
        reach(Point::BeforeCacheRecord);
        self.templates.remember_cached(&self.build.owner, key, bytes).map_err(text)?;
        reach(Point::AfterCacheRecord);
        self.sandbox = None;
        sandboxes.destroy(self.builder, &sandbox).await.map_err(text)?;
        self.image = image;
        self.start_sandbox().await
    }

    /// What a step that was done before means for the next ones.
    fn recall(&mut self, step: &Step) {
        match step {
            Step::Copy { .. } | Step::Run { .. } => {}
            Step::Env(pairs) => drop(self.set_variables(pairs)),
            Step::Workdir(path) => self.workdir = absolute(&self.workdir, path),
            Step::User(user) => self.user.clone_from(user),
        }
    }

    fn set_variables(&mut self, pairs: &[(String, String)]) -> Result<(), String> {
        for (name, value) in pairs {
            let value = expand(value, &self.env);
            if value.len() > 128 * 1024 {
                return Err(format!("the value of '{name}' is too long"));
            }
            self.env.insert(name.clone(), value.clone());
            self.added.retain(|(known, _)| known != name);
            self.added.push((name.clone(), value));
        }
        Ok(())
    }

    /// The image to start from. One that is not here is pulled.
    async fn origin(&self) -> Result<Origin, String> {
        let (name, credentials, anywhere) = match &self.recipe.source {
            Source::Template(name) => {
                return self.templates.resolve(&self.build.owner, name).map_err(text);
            }
            Source::Image { name, credentials, anywhere } => (name, credentials.clone(), *anywhere),
        };
        let pulled = pulled_name(&self.build.owner, name);
        let own = || self.templates.pulled_origin(&pulled, name);
        if let Some(origin) = self.templates.image_origin(name).map_err(text)?.or(own().map_err(text)?) {
            return Ok(origin);
        }
        let vetting = if anywhere { None } else { Some(self.templates.0.registries.admit(name)?) };
        self.say(Level::Info, &format!("'{name}' is not on this host: pulling it"));
        let images = self.templates.0.sandboxes.engine().images().map_err(text)?;
        let options = PullOptions { credentials, vetting, name: Some(pulled.clone()), ..PullOptions::default() };
        images.pull(name, options, &|_| {}).await.map_err(text)?;
        own().map_err(text)?.ok_or_else(|| format!("'{name}' cannot be used as an image"))
    }

    async fn take(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Copy { source, target, user, mode, files } => {
                let owner = user.as_deref().unwrap_or(&self.user);
                // Without a group, the user's own one is meant.
                let owner = match owner {
                    _ if self.root == self.user => String::new(),
                    owner if owner.contains(':') => owner.to_owned(),
                    owner => format!("{owner}:"),
                };
                let target = absolute(&self.workdir, target);
                let folder = format!("/tmp/.sloplet-copy-{}", new_id());
                let archive = self.templates.0.uploads.path(&self.build.owner, files);
                copy::unpack(self.reach().await?.agent(), &archive, &folder, &self.root).await?;
                let mode = mode.as_deref().unwrap_or_default();
                let argv = ["/bin/sh", "-c", copy::SCRIPT, "copy", &folder, source, &target, &owner, mode];
                let ended = self.run(&self.root, "/", &argv).await?;
                expect_success(&ended, &format!("copy '{source}' to '{target}'"))
            }
            Step::Env(pairs) => self.set_variables(pairs),
            Step::Run { command, user } => {
                let user = user.clone().unwrap_or_else(|| self.user.clone());
                let workdir = self.workdir.clone();
                let ended = self.shell(&user, &workdir, command).await;
                let ended = ended.map_err(|message| format!("failed to run command '{command}': {message}"))?;
                expect_success(&ended, &format!("run command '{command}'"))
            }
            Step::Workdir(path) => {
                let path = absolute(&self.workdir, path);
                let script = r#"[ -d "$1" ] || { mkdir -p "$1" && { [ "$(id -un)" = "$2" ] || chown "$2:" "$1"; }; }"#;
                let user = self.user.split(':').next().unwrap_or_default().to_owned();
                let ended = self.run(&self.root, "/", &["/bin/sh", "-c", script, "workdir", &path, &user]).await?;
                expect_success(&ended, &format!("set the working directory '{path}'"))?;
                self.workdir = path;
                Ok(())
            }
            Step::User(user) => {
                let ended = self.run(user, "/", &["/bin/sh", "-c", "exit 0"]).await;
                let ended = ended.map_err(|message| format!("failed to set the user '{user}': {message}"))?;
                expect_success(&ended, &format!("set the user '{user}'"))?;
                self.user.clone_from(user);
                Ok(())
            }
        }
    }

    /// Starts what sandboxes of this template will start, waits until it is ready, and ends it again.
    async fn try_start(&mut self) -> Result<(), String> {
        let reached = self.reach().await?;
        let started = match &self.recipe.start {
            Some(start) => {
                self.say(Level::Info, &format!("Running start command: {start}"));
                Some(reached.start(self.command(&self.user, &self.workdir, &login(start))).await.map_err(explain)?)
            }
            None => None,
        };
        if let Some(ready) = &self.recipe.ready {
            self.say(Level::Info, &format!("Waiting for ready command: {ready}"));
            let ready = login(ready);
            let deadline = tokio::time::Instant::now() + READY_WITHIN;
            loop {
                let command =
                    Command { timeout: Some(READY_WITHIN), ..self.command(&self.user, &self.workdir, &ready) };
                let tried = reached.sandbox.exec(command).await.map_err(|error| no_user(&error, &self.user))?;
                let tried = tried.output(MAX_LINE).await.map_err(explain)?;
                if tried.exit.code == Some(0) {
                    break;
                }
                check_start(started.as_deref())?;
                if tokio::time::Instant::now() > deadline {
                    let said = [tried.stdout, tried.stderr].concat();
                    self.say(Level::Warn, String::from_utf8_lossy(&said).trim());
                    let seconds = READY_WITHIN.as_secs();
                    return Err(format!(
                        "the ready command did not succeed within {seconds} s: {}",
                        describe(&tried.exit)
                    ));
                }
                tokio::time::sleep(READY_EVERY).await;
            }
        }
        check_start(started.as_deref())?;
        let Some(started) = started else { return Ok(()) };
        // Only its files are kept: they had better be what it leaves behind, not what it is in the middle of.
        for signal in [TERMINATE, KILL] {
            if started.signal(signal, true).await.is_err() {
                break;
            }
            let _ = tokio::time::timeout(STOP_WITHIN, started.wait()).await;
        }
        self.show_output(&started);
        Ok(())
    }

    /// What was started has said, as far as that was kept.
    fn show_output(&self, started: &Tracked) {
        let (mut stdout, mut stderr) = (Splitter::default(), Splitter::default());
        let mut reader = started.read_from(0);
        while let Some(Next::Chunk(chunk)) = reader.try_next() {
            match chunk.source {
                life::Source::Stderr => self.say_all(Level::Warn, stderr.push(&chunk.bytes)),
                _ => self.say_all(Level::Info, stdout.push(&chunk.bytes)),
            }
        }
        self.say_all(Level::Info, stdout.finish());
        self.say_all(Level::Warn, stderr.finish());
    }

    async fn save(&mut self) -> Result<(), String> {
        let Some(sandbox) = self.sandbox.clone() else { return Err("there is no sandbox".into()) };
        self.say(Level::Info, "Saving the image");
        let (added, user, workdir) = (self.added.clone(), self.user.clone(), self.workdir.clone());
        let (start, ready) = (self.recipe.start.clone(), self.recipe.ready.clone());
        let adjust = move |config: &mut ImageConfig| {
            for (name, value) in added {
                config.env.retain(|(known, _)| *known != name);
                config.env.push((name, value));
            }
            (config.user, config.workdir) = (Some(user), Some(workdir));
            if start.is_some() || ready.is_some() {
                config.ready = ready.filter(|ready| !only_waits(ready));
            }
            config.start = start.or(config.start.take());
        };
        let image = self.build.image();
        self.templates.0.sandboxes.save_as(self.builder, &sandbox, &image, adjust).await.map_err(text)?;
        reach(Point::AfterBuildImage);
        Ok(())
    }

    async fn reach(&self) -> Result<Reached, String> {
        let id = self.sandbox.as_deref().unwrap_or_default();
        self.templates.0.sandboxes.reach(id).await.map_err(|error| match error {
            LifeError::NotFound { .. } => "the build's sandbox ended: it ran out of memory or disk".to_owned(),
            error => error.to_string(),
        })
    }

    fn command(&self, user: &str, workdir: &str, argv: &[impl AsRef<str>]) -> Command {
        Command {
            env: self.added.iter().map(|(name, value)| format!("{name}={value}")).collect(),
            cwd: Some(workdir.to_owned()),
            user: Some(user.to_owned()),
            ..Command::new(argv.iter().map(|argument| argument.as_ref().as_bytes()))
        }
    }

    async fn shell(&self, user: &str, workdir: &str, line: &str) -> Result<Exit, String> {
        self.run(user, workdir, &refs(&login(line))).await
    }

    /// Runs a command; what it says goes to the log.
    async fn run(&self, user: &str, workdir: &str, argv: &[&str]) -> Result<Exit, String> {
        self.follow(&self.reach().await?, self.command(user, workdir, argv)).await
    }

    async fn follow(&self, reached: &Reached, command: Command) -> Result<Exit, String> {
        let user = command.user.clone().unwrap_or_default();
        let mut process = reached.sandbox.exec(command).await.map_err(|error| no_user(&error, &user))?;
        let (mut stdout, mut stderr) = (Splitter::default(), Splitter::default());
        let exit = loop {
            match process.next().await {
                Some(Ok(ProcessEvent::Stdout(bytes))) => self.say_all(Level::Info, stdout.push(&bytes)),
                Some(Ok(ProcessEvent::Stderr(bytes))) => self.say_all(Level::Warn, stderr.push(&bytes)),
                Some(Ok(ProcessEvent::Exited(exit))) => break exit,
                Some(Err(error)) => return Err(explain(error)),
                None => return Err("the build's sandbox ended".into()),
            }
        };
        self.say_all(Level::Info, stdout.finish());
        self.say_all(Level::Warn, stderr.finish());
        Ok(exit)
    }

    fn say(&self, level: Level, message: &str) {
        self.running.log.say(level, &self.step, message);
    }

    fn say_all(&self, level: Level, lines: impl IntoIterator<Item = String>) {
        lines.into_iter().for_each(|line| self.say(level, &line));
    }
}

/// Refuses a start command that has failed; one that is done is fine.
fn check_start(started: Option<&Tracked>) -> Result<(), String> {
    match started.and_then(Tracked::ended) {
        Some(Ended::Exited(exit)) if exit.code != Some(0) => {
            Err(format!("the start command failed: {}", describe(&exit)))
        }
        Some(Ended::Lost(why)) => Err(format!("the start command was lost: {why}")),
        _ => Ok(()),
    }
}

/// A login shell, bash where there is one.
fn login(line: &str) -> [String; 5] {
    let script = r#"[ -x /bin/bash ] && exec /bin/bash -l -c "$1"; exec /bin/sh -l -c "$1""#;
    ["/bin/sh", "-c", script, "sh", line].map(str::to_owned)
}

fn refs(argv: &[String]) -> Vec<&str> {
    argv.iter().map(String::as_str).collect()
}

/// Whether a ready command is a mere pause: worth waiting for once, not at the start of every sandbox.
fn only_waits(ready: &str) -> bool {
    let mut words = ready.split_whitespace();
    let pause = words.next() == Some("sleep") && words.next().is_some_and(|time| time.parse::<f64>().is_ok());
    pause && words.next().is_none()
}

fn expect_success(exit: &Exit, what: &str) -> Result<(), String> {
    match exit.code {
        Some(0) => Ok(()),
        _ => Err(format!("failed to {what}: command failed: {}", describe(exit))),
    }
}

fn describe(exit: &Exit) -> String {
    match (exit.code, exit.signal) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "it ended".into(),
    }
}

/// As E2B's clients expect it when there is no such user.
fn no_user(error: &ClientError, user: &str) -> String {
    match error.failure() {
        Some(failure) if failure.message.starts_with("no user") => {
            format!("command failed: unauthenticated: {NO_USER}: '{user}'")
        }
        _ => format!("command failed: {error}"),
    }
}

fn explain(error: ClientError) -> String {
    format!("command failed: {error}")
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_told_from_a_check() {
        for pause in ["sleep 10", " sleep 0.5 "] {
            assert!(only_waits(pause), "{pause}");
        }
        for check in ["sleep 10 && curl localhost", "sleep", "curl localhost", "sleep x", "sleep 1 2"] {
            assert!(!only_waits(check), "{check}");
        }
    }
}
