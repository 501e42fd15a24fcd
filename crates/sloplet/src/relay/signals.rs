//! The user and the clock, watched while something else is waited for.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use super::Control;
use crate::terminal;

/// Watches the user and the clock while something else is waited for.
pub struct Guard<C> {
    control: C,
    signals: Signals,
    /// The user ended it.
    pub interrupted: bool,
    /// The clock ended it.
    pub timed_out: bool,
    deadline: Option<Instant>,
}

impl<C: Control> Guard<C> {
    /// Of a command.
    pub fn new(control: C, signals: Signals, deadline: Option<Instant>) -> Self {
        Self { control, signals, interrupted: false, timed_out: false, deadline }
    }

    /// Waits; `None` if the user or the clock has ended it all.
    pub async fn wait<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        loop {
            tokio::select! {
                biased;
                output = &mut future => return Some(output),
                happened = self.signals.next() => match happened {
                    Happened::Resized => {
                        if let Some(size) = terminal::size_of(std::io::stdout()) {
                            self.control.resize(size).await;
                        }
                    }
                    Happened::Interrupt(number) if !self.interrupted => {
                        // The first one is for the command; the second is for the sandbox.
                        self.interrupted = true;
                        self.control.signal(number).await;
                    }
                    Happened::Interrupt(_) | Happened::Terminate => {
                        self.interrupted = true;
                        return None;
                    }
                },
                () = until(self.deadline) => {
                    self.timed_out = true;
                    return None;
                }
            }
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// What the user does to us.
pub struct Signals {
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
    /// From now on.
    pub fn listen() -> std::io::Result<Self> {
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
