//! One command from start to exit: its streams, the terminal, signals.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;

use sloplet_client::{Agent, ClientError, Process, ProcessEvent};
use sloplet_engine::{Command, Sandbox};
use sloplet_wire::{Exit, TerminalSize};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::input;
use super::output::{Captured, Sink};
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
}

/// Runs the command of `options`; `meanwhile` is done as soon as it has been started.
pub async fn conduct(sandbox: &Sandbox, options: &Run, meanwhile: impl Future<Output = ()>) -> anyhow::Result<Session> {
    let size = options.tty.then(|| terminal::size_of(std::io::stdout()).unwrap_or(TerminalSize { columns: 80, rows: 24 }));
    let forward_input = input::wanted(options);
    let command = Command {
        stdin: forward_input,
        terminal: size,
        ..Command::new(options.command.iter().map(|word| word.clone().into_vec()))
    };
    // Before the command can make anybody think that it listens.
    let mut signals = Signals::listen()?;
    let mut process = sandbox.exec(command).await?;
    let raw = if options.tty { RawMode::enter()? } else { None };
    if let (true, Some(stdin)) = (forward_input, process.take_stdin()) {
        tokio::spawn(input::forward(input::read(), stdin));
    }
    let mut sink = Sink::new(sandbox.spec().limits.output.0, options.json);
    meanwhile.await;
    let mut session = Session { exit: None, lost: None, captured: None, truncated: false, interrupted: false };
    loop {
        tokio::select! {
            event = process.next() => match pass_on(event, &mut sink, &mut session) {
                Step::GoOn => {}
                Step::Over => break,
            },
            happened = signals.next() => match happened {
                Happened::Resized => resize(sandbox.agent(), &process).await,
                Happened::Interrupt(number) if !session.interrupted => {
                    // The first one is for the command; the second is for the sandbox.
                    session.interrupted = true;
                    let _ = sandbox.agent().signal(process.pid, number, true).await;
                }
                Happened::Interrupt(_) | Happened::Terminate => {
                    session.interrupted = true;
                    break;
                }
            },
        }
    }
    drop(raw);
    session.truncated = sink.truncated;
    session.captured = sink.captured;
    Ok(session)
}

enum Step {
    GoOn,
    Over,
}

fn pass_on(event: Option<Result<ProcessEvent, ClientError>>, sink: &mut Sink, session: &mut Session) -> Step {
    let written = match event {
        Some(Ok(ProcessEvent::Stdout(bytes))) => sink.stdout(&bytes),
        Some(Ok(ProcessEvent::Stderr(bytes))) => sink.stderr(&bytes),
        Some(Ok(ProcessEvent::Exited(exit))) => {
            session.exit = Some(exit);
            return Step::Over;
        }
        Some(Err(error)) => {
            session.lost = Some(error);
            return Step::Over;
        }
        None => return Step::Over,
    };
    match written {
        Ok(()) => Step::GoOn,
        // Nobody reads our output any more: as if SIGPIPE had ended the command.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {
            session.exit = Some(Exit { signal: Some(13), ..Exit::default() });
            Step::Over
        }
        Err(_) => Step::GoOn,
    }
}

async fn resize(agent: &Agent, process: &Process) {
    if let Some(size) = terminal::size_of(std::io::stdout()) {
        let _ = agent.resize(process.pid, size).await;
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
