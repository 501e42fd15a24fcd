//! A command's streams, its terminal and its signals, between this process and the inside of a sandbox; whether that is
//! reached directly or through a server.

pub mod input;
pub mod output;
pub mod signals;

use std::io::ErrorKind;

use sloplet_client::ProcessEvent;
use sloplet_wire::{Exit, TerminalSize};

use crate::api::Socket;

use output::{Sink, Stream};
use signals::Guard;

/// A command inside: what it does.
pub trait Far {
    /// What it does next; `None` after its end. May be dropped and called again without loss.
    fn next(&mut self) -> impl Future<Output = Option<anyhow::Result<ProcessEvent>>>;
}

/// A command inside: what can be done to it.
pub trait Control {
    /// Sends a signal to its process group.
    fn signal(&self, number: i32) -> impl Future<Output = ()>;

    /// Changes the size of its terminal.
    fn resize(&self, size: TerminalSize) -> impl Future<Output = ()>;
}

impl Far for Socket {
    async fn next(&mut self) -> Option<anyhow::Result<ProcessEvent>> {
        Socket::next(self).await
    }
}

/// What came of it.
#[derive(Default)]
pub struct Relayed {
    /// How the command ended, if that came to be known.
    pub exit: Option<Exit>,
    /// Why the connection was lost, if it was.
    pub lost: Option<anyhow::Error>,
}

/// Passes output on until the command ends, or the user or the clock ends it all.
pub async fn relay<C: Control>(far: &mut impl Far, guard: &mut Guard<C>, sink: &mut Sink) -> Relayed {
    let mut relayed = Relayed::default();
    while let Some(event) = guard.wait(far.next()).await {
        let written = match event {
            Some(Ok(ProcessEvent::Stdout(bytes))) => guard.wait(sink.write(Stream::Out, bytes)).await,
            Some(Ok(ProcessEvent::Stderr(bytes))) => guard.wait(sink.write(Stream::Err, bytes)).await,
            Some(Ok(ProcessEvent::Exited(exit))) => {
                relayed.exit = Some(exit);
                break;
            }
            Some(Err(error)) => {
                relayed.lost = Some(error);
                break;
            }
            None => break,
        };
        match written {
            Some(Ok(())) => {}
            // Nobody reads our output any more: as if SIGPIPE had ended the command.
            Some(Err(error)) if error.kind() == ErrorKind::BrokenPipe => {
                relayed.exit = Some(Exit { signal: Some(13), ..Exit::default() });
                break;
            }
            Some(Err(_)) => {}
            None => break,
        }
    }
    if relayed.exit.is_some() {
        guard.wait(sink.flush()).await;
    }
    relayed
}
