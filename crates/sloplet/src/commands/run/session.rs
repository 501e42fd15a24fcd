//! One command from start to exit: its streams, the terminal, signals.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use sloplet_client::{Agent, ClientError, ProcessEvent};
use sloplet_engine::{Command, Sandbox};
use sloplet_wire::{Exit, TerminalSize};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::input;
use super::output::{Captured, Sink, Stream};
use crate::cli::Run;
use crate::terminal::{self, RawMode};

/// What came of it.
pub struct Session {
    /// How the command ended, unless the sandbox ended first.
    pub exit: Option<Exit>,
    /// Why the connection was lost, if it was.
    pub lost: Option<ClientError>,
    pub captured: Option<Captured>,
    pub truncated: bool,
    /// The user ended it.
    pub interrupted: bool,
    /// The clock ended it.
    pub timed_out: bool,
}

/// Runs the command of `options`; `meanwhile` is done as soon as it has been started.
pub async fn conduct(sandbox: &Sandbox, options: &Run, meanwhile: impl Future<Output = ()>) -> anyhow::Result<Session> {
    // Before the size is read, lest a change be missed, and before the command can make anybody think that it listens.
    let signals = Signals::listen()?;
    let size =
        options.tty.then(|| terminal::size_of(std::io::stdout()).unwrap_or(TerminalSize { columns: 80, rows: 24 }));
    let forward_input = input::wanted(options);
    let command = Command {
        stdin: forward_input,
        terminal: size,
        ..Command::new(options.command.iter().map(|word| word.clone().into_vec()))
    };
    let mut process = sandbox.exec(command).await?;
    let raw = if options.tty { RawMode::enter()? } else { None };
    if let (true, Some(stdin)) = (forward_input, process.take_stdin()) {
        tokio::spawn(input::forward(input::read(), stdin));
    }
    let mut sink = Sink::new(sandbox.spec().limits.output.0, options.json);
    meanwhile.await;
    let mut guard = Guard::new(sandbox, process.pid, signals);
    let mut session =
        Session { exit: None, lost: None, captured: None, truncated: false, interrupted: false, timed_out: false };
    while let Some(event) = guard.wait(process.next()).await {
        let written = match event {
            Some(Ok(ProcessEvent::Stdout(bytes))) => guard.wait(sink.write(Stream::Out, bytes)).await,
            Some(Ok(ProcessEvent::Stderr(bytes))) => guard.wait(sink.write(Stream::Err, bytes)).await,
            Some(Ok(ProcessEvent::Exited(exit))) => {
                session.exit = Some(exit);
                break;
            }
            Some(Err(error)) => {
                session.lost = Some(error);
                break;
            }
            None => break,
        };
        match written {
            Some(Ok(())) => {}
            // Nobody reads our output any more: as if SIGPIPE had ended the command.
            Some(Err(error)) if error.kind() == ErrorKind::BrokenPipe => {
                session.exit = Some(Exit { signal: Some(13), ..Exit::default() });
                break;
            }
            Some(Err(_)) => {}
            None => break,
        }
    }
    if session.exit.is_some() {
        guard.wait(sink.flush()).await;
    }
    drop(raw);
    session.interrupted = guard.interrupted;
    session.timed_out = guard.timed_out;
    session.truncated = sink.truncated;
    session.captured = sink.captured.take();
    Ok(session)
}

/// Watches the user and the clock while something else is waited for.
struct Guard<'a> {
    sandbox: &'a Sandbox,
    pid: u32,
    signals: Signals,
    interrupted: bool,
    timed_out: bool,
    deadline: tokio::time::Instant,
}

impl<'a> Guard<'a> {
    fn new(sandbox: &'a Sandbox, pid: u32, signals: Signals) -> Self {
        // The sandbox is killed at its deadline by somebody else; this one is for a reader of our output that never
        // reads on, while we could not even see that the command is gone.
        const GRACE: Duration = Duration::from_millis(200);
        let far = Duration::from_secs(60 * 60 * 24 * 365 * 30);
        // From now on, not from the sandbox's birth: that one's clock started before, and must be the first to ring. Its
        // age would not do either, which counts the making of its image.
        let deadline = tokio::time::Instant::now() + sandbox.spec().limits.timeout.0.min(far) + GRACE;
        Self { sandbox, pid, signals, interrupted: false, timed_out: false, deadline }
    }

    /// Waits; `None` if the user or the clock has ended it all.
    async fn wait<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        loop {
            tokio::select! {
                biased;
                output = &mut future => return Some(output),
                happened = self.signals.next() => match happened {
                    Happened::Resized => resize(self.sandbox.agent(), self.pid).await,
                    Happened::Interrupt(number) if !self.interrupted => {
                        // The first one is for the command; the second is for the sandbox.
                        self.interrupted = true;
                        let _ = self.sandbox.agent().signal(self.pid, number, true).await;
                    }
                    Happened::Interrupt(_) | Happened::Terminate => {
                        self.interrupted = true;
                        return None;
                    }
                },
                () = tokio::time::sleep_until(self.deadline) => {
                    self.timed_out = true;
                    return None;
                }
            }
        }
    }
}

async fn resize(agent: &Agent, pid: u32) {
    if let Some(size) = terminal::size_of(std::io::stdout()) {
        let _ = agent.resize(pid, size).await;
    }
}

/// What the user does to us.
struct Signals {
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
    hang_up: Signal,
    resized: Signal,
}

enum Happened {
    Interrupt(i32),
    Terminate,
    Resized,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            resized: signal(SignalKind::window_change())?,
        })
    }

    async fn next(&mut self) -> Happened {
        tokio::select! {
            _ = self.interrupt.recv() => Happened::Interrupt(SignalKind::interrupt().as_raw_value()),
            _ = self.quit.recv() => Happened::Interrupt(SignalKind::quit().as_raw_value()),
            _ = self.terminate.recv() => Happened::Terminate,
            _ = self.hang_up.recv() => Happened::Terminate,
            _ = self.resized.recv() => Happened::Resized,
        }
    }
}
