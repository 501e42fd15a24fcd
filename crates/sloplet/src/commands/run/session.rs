//! One command from start to exit: its streams, the terminal, signals.

use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use sloplet_client::{Process, ProcessEvent, Stdin};
use sloplet_engine::{Command, Sandbox};
use sloplet_wire::{Exit, TerminalSize};
use tokio::sync::mpsc;

use crate::cli::Run;
use crate::progress::ProgressLine;
use crate::relay::output::{Captured, Sink};
use crate::relay::signals::{Guard, Signals};
use crate::relay::{self, Control, Far, input};
use crate::terminal::{self, RawMode};

/// What came of it.
pub struct Session {
    /// How the command ended, unless the sandbox ended first.
    pub exit: Option<Exit>,
    /// Why the connection was lost, if it was.
    pub lost: Option<anyhow::Error>,
    pub captured: Option<Captured>,
    pub truncated: bool,
    /// The user ended it.
    pub interrupted: bool,
    /// The clock ended it.
    pub timed_out: bool,
}

/// Runs the command of `options` in `folder`, or where all commands start; `line` is shown until then, and `meanwhile` is done
/// as soon as it has been started.
pub async fn conduct(
    sandbox: &Sandbox,
    options: &Run,
    folder: Option<String>,
    line: Option<ProgressLine>,
    meanwhile: impl Future<Output = ()>,
) -> anyhow::Result<Session> {
    // Before the size is read, lest a change be missed, and before the command can make anybody think that it listens.
    let signals = Signals::listen()?;
    let size = options.tty.then(terminal::size);
    let forward_input = input::wanted(options.interactive || options.tty);
    let command = Command {
        cwd: folder,
        stdin: forward_input,
        terminal: size,
        ..Command::new(options.command.iter().map(|word| word.clone().into_vec()))
    };
    let mut process = sandbox.exec(command).await?;
    drop(line);
    let raw = if options.tty { RawMode::enter()? } else { None };
    if let (true, Some(stdin)) = (forward_input, process.take_stdin()) {
        tokio::spawn(forward(input::read(), stdin));
    }
    let mut sink = Sink::new(sandbox.spec().limits.output.0, options.json);
    meanwhile.await;
    let mut guard = Guard::new(Direct { sandbox, pid: process.pid }, signals, Some(deadline(sandbox)));
    let relayed = relay::relay(&mut process, &mut guard, &mut sink).await;
    drop(raw);
    Ok(Session {
        exit: relayed.exit,
        lost: relayed.lost,
        captured: sink.captured.take(),
        truncated: sink.truncated,
        interrupted: guard.interrupted,
        timed_out: guard.timed_out,
    })
}

/// The sandbox is killed at its deadline by somebody else; this one is for a reader of our output that never reads on,
/// while we could not even see that the command is gone.
fn deadline(sandbox: &Sandbox) -> tokio::time::Instant {
    const GRACE: Duration = Duration::from_millis(200);
    let far = Duration::from_secs(60 * 60 * 24 * 365 * 30);
    // From now on, not from the sandbox's birth: that one's clock started before, and must be the first to ring. Its
    // age would not do either, which counts the making of its image.
    tokio::time::Instant::now() + sandbox.spec().limits.timeout.0.min(far) + GRACE
}

/// Passes everything on; dropping `stdin` closes it. Ends early when the command takes no more.
async fn forward(mut input: mpsc::Receiver<Vec<u8>>, mut stdin: Stdin) {
    while let Some(bytes) = input.recv().await {
        if stdin.write(bytes).await.is_err() {
            return;
        }
    }
}

impl Far for Process {
    async fn next(&mut self) -> Option<anyhow::Result<ProcessEvent>> {
        Process::next(self).await.map(|event| event.map_err(Into::into))
    }
}

/// A command in a sandbox of this process.
struct Direct<'a> {
    sandbox: &'a Sandbox,
    pid: u32,
}

impl Control for Direct<'_> {
    async fn signal(&self, number: i32) {
        let _ = self.sandbox.agent().signal(self.pid, number, true).await;
    }

    async fn resize(&self, size: TerminalSize) {
        let _ = self.sandbox.agent().resize(self.pid, size).await;
    }
}
