//! `sloplet run`

mod ask;
mod hints;
mod json;
mod session;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use sloplet_client::ClientError;
use sloplet_engine::outward::private::Private;
use sloplet_engine::{Command, End, Engine, Patron, Sandbox};
use sloplet_policy::budget::AtCap;
use sloplet_policy::{Isolation, Spec};
use sloplet_spawner::launcher::Forked;
use sloplet_verify::record::{self, MAX_AGE, Records};
use sloplet_wire::{ErrorCode, Exit};
use tokio::sync::mpsc;

use crate::cli::Run;
use crate::clone::{self, Done, Inside};
use crate::config::{self, Rest};
use crate::progress::ProgressLine;
use crate::relay::output::Captured;
use crate::{setup, terminal};

/// The time was over.
pub const TIMED_OUT: u8 = 124;
/// The command cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The command does not exist.
pub const NOT_FOUND: u8 = 127;

/// How a run ended.
struct Outcome {
    exit: Option<Exit>,
    end: End,
    duration: Duration,
    captured: Option<Captured>,
    truncated: bool,
    interrupted: bool,
}

pub fn run(data: Option<PathBuf>, forked: Option<Forked>, mut options: Run) -> anyhow::Result<u8> {
    if options.command.is_empty() {
        bail!("no command was given: add one after '--', like 'sloplet run -- python3 -V'");
    }
    let file = config::file(&setup::places(data.clone())?.data, &options.machine)?;
    let (rule, secret) = options.git.reach()?;
    options.machine.reach.allow.extend(rule);
    options.machine.reach.secret.extend(secret);
    let rest = Rest { image: options.image.clone(), timeout: options.timeout, output: options.output_limit };
    let mut spec = config::spec(&file, &options.machine, rest)?;
    if spec.budget.at_cap == AtCap::Pause {
        bail!("--at-cap pause needs a sandbox that stays: use 'sloplet create', or deny or kill here");
    }
    let verified = options.verified.then(|| spec.clone());
    if options.tty {
        let terminal = std::env::var("TERM").unwrap_or_else(|_| "xterm-256color".into());
        spec.env.insert(0, format!("TERM={terminal}"));
    }
    // It was forked for the wall that the flags name; a file may say otherwise.
    let alike = (spec.isolation == Isolation::Process) == (options.machine.isolation == Some(Isolation::Process));
    let forked = forked.filter(|_| alike).map(|forked| (forked, spec.isolation));
    let engine = setup::engine(data, forked)?.protecting(file.protect);
    let checked = verified.map_or(Ok(()), |spec| check_verified(&engine, &spec));
    let code = checked.and_then(|()| setup::runtime()?.block_on(run_in(&engine, spec, &options)));
    engine.shut_down();
    // Nothing is left to do, and this process is about to end: taking it apart would only take time.
    std::mem::forget(engine);
    code
}

/// Refuses what was not verified like this.
fn check_verified(engine: &Engine, spec: &Spec) -> anyhow::Result<()> {
    let digest = record::digest(spec, engine.radius(), &engine.report(spec)?, Path::new(setup::PROGRAM));
    match Records::of(&engine.places().data).standing(&digest, MAX_AGE).objection() {
        Some(objection) => bail!("--verified: {objection}: run 'sloplet verify' with the same options first"),
        None => Ok(()),
    }
}

async fn run_in(engine: &Engine, spec: sloplet_policy::Spec, options: &Run) -> anyhow::Result<u8> {
    let (used_up, mut told) = mpsc::unbounded_channel();
    let refusals = hints::Refusals::default();
    let alone = spec.mounts.is_empty();
    let patron = Patron {
        private: Private::prepare(&spec, &BTreeMap::new())?,
        // With a terminal of its own, the command hears all that is typed.
        ask: if options.tty { Arc::new(ask::Silent) } else { Arc::new(ask::Terminal) },
        denied: refusals.listener(),
        ear: true,
        at_cap: Arc::new(move |reached| drop(used_up.send(reached.message.clone()))),
        ..Patron::plain("cli")
    };
    let kill_at_cap = spec.budget.at_cap == AtCap::Kill;
    // A clone shows a line of its own.
    let line = (is_slow(&spec) && options.git.repository.is_none()).then(|| ProgressLine::of("starting the sandbox"));
    let sandbox = engine.begin(spec, &patron).await?;
    for missing in sandbox.unenforced() {
        complain!("sloplet: warning: {} is not enforced: {}", missing.feature, missing.detail);
    }
    // Leftovers of others are nobody's hurry: look for them while the command starts.
    let sweep = async {
        if let Err(error) = engine.collect() {
            complain!("sloplet: warning: {error}");
        }
    };
    let folder = match clone::clone(&Here(&sandbox), &options.git).await {
        Ok(folder) => folder,
        Err(error) => return refused(sandbox, error, &options.command[0]).await,
    };
    let id = sandbox.id().to_owned();
    let limits = sandbox.spec().limits.clone();
    let session = {
        let mut session = std::pin::pin!(session::conduct(&sandbox, options, folder, line, sweep));
        loop {
            tokio::select! {
                session = &mut session => break session,
                Some(message) = told.recv() => {
                    let then = if kill_at_cap { ": everything inside is killed (--at-cap kill)" } else { "" };
                    complain!("sloplet: {message}{then}");
                    if kill_at_cap {
                        sandbox.machine().destroy().await?;
                    }
                }
            }
        }
    };
    let unrouted = sandbox.note_unrouted();
    let outcome = match session {
        Ok(session) => conclude(sandbox, session).await?,
        Err(error) => {
            let code = refused(sandbox, error, &options.command[0]).await;
            if alone && code.is_ok() {
                tell_unseen(options);
            }
            return code;
        }
    };
    if let Some(captured) = &outcome.captured {
        say!("{}", json::json(&id, &outcome, captured));
    }
    let code = exit_code(&outcome);
    if outcome.truncated {
        complain!("sloplet: warning: output beyond {} was dropped (--output-limit)", limits.output);
    }
    if outcome.end.timed_out {
        complain!("sloplet: the time of {} was over: everything inside was killed (--timeout)", limits.timeout);
    } else if outcome.end.over_disk {
        complain!("sloplet: the disk limit of {} was exceeded: everything inside was killed (--disk)", limits.disk);
    } else if outcome.end.oom_kills > 0 && code != 0 {
        complain!(
            "sloplet: the memory limit of {} was reached: the kernel killed a process inside (--memory)",
            limits.memory
        );
    } else if code != 0 && alone {
        tell_unseen(options);
    }
    if let Some(line) = refusals.line() {
        complain!("sloplet: {line}");
    }
    if unrouted > 0 {
        let times = if unrouted == 1 { "once".to_owned() } else { format!("{unrouted} times") };
        complain!(
            "sloplet: it tried {times} to reach an address, and nothing may be reached: with any --allow, such attempts are \
             recorded one by one"
        );
    }
    Ok(code)
}

/// Whether a start may take seconds: a machine with a kernel of its own boots, an image may have to be made of a file first.
fn is_slow(spec: &Spec) -> bool {
    spec.driver.is_some() || spec.isolation > Isolation::Container || spec.image != Spec::default().image
}

fn tell_unseen(options: &Run) {
    let here = std::env::current_dir().unwrap_or_default();
    if let Some(line) = hints::unseen(&options.command, &here) {
        complain!("sloplet: {line}");
    }
}

/// A sandbox of this process.
struct Here<'a>(&'a Sandbox);

impl Inside for Here<'_> {
    async fn run(&self, words: Vec<String>) -> anyhow::Result<Done> {
        const SAID: usize = 64 * 1024;
        let (name, value) = clone::VARIABLE;
        let command = Command { env: vec![format!("{name}={value}")], ..Command::new(words) };
        let done = self.0.exec(command).await?.output(SAID).await?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Done { good: done.exit.code == Some(0), stdout: text(&done.stdout), stderr: text(&done.stderr) })
    }
}

/// Destroys the sandbox and puts together what happened.
async fn conclude(sandbox: Sandbox, session: session::Session) -> anyhow::Result<Outcome> {
    let duration = sandbox.age();
    let mut end = sandbox.destroy().await?;
    end.timed_out |= session.timed_out;
    if session.exit.is_none() && !end.timed_out && !end.over_disk && !session.interrupted {
        match session.lost {
            Some(error) if end.oom_kills == 0 => return Err(error),
            _ => {}
        }
    }
    Ok(Outcome {
        exit: session.exit,
        end,
        duration,
        captured: session.captured,
        truncated: session.truncated,
        interrupted: session.interrupted,
    })
}

/// The command never started.
async fn refused(sandbox: Sandbox, error: anyhow::Error, program: &OsStr) -> anyhow::Result<u8> {
    let end = sandbox.destroy().await?;
    if end.timed_out {
        complain!("sloplet: the time was over before the command started (--timeout)");
        return Ok(TIMED_OUT);
    }
    let code = match error.downcast_ref::<ClientError>().and_then(ClientError::failure) {
        // About the program, and not, say, about its user or its working directory.
        Some(failure) if failure.message.starts_with(&format!("{}: ", program.display())) => match failure.code {
            ErrorCode::NotFound => NOT_FOUND,
            _ => NOT_EXECUTABLE,
        },
        _ => return Err(error),
    };
    complain!("sloplet: {}", terminal::harmless(&error.to_string()));
    Ok(code)
}

fn exit_code(outcome: &Outcome) -> u8 {
    if outcome.end.timed_out {
        return TIMED_OUT;
    }
    match &outcome.exit {
        Some(exit) => exit.shell_code() as u8,
        None if outcome.interrupted => 130,
        None => 137, // its first process was killed, for want of memory or disk
    }
}
