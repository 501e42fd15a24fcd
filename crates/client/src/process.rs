//! A running process and its input.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use sloplet_wire::{Channel, Event, Exit, Held};

use crate::ClientError;
use crate::stream::{Incoming, Sender, StreamHandle};

/// A process inside. Dropping it before it has ended kills a foreground process; a background one runs on.
pub struct Process {
    /// Its pid inside.
    pub pid: u32,
    /// What follows of its output before that is new, if it was [attached](crate::Agent::attach) to.
    pub held: Option<Held>,
    stream: StreamHandle,
    stdin: Option<Stdin>,
    observer: Option<Box<dyn Observer>>,
    over: bool,
}

/// Sees everything that a process does, as its owner reads it: for the record.
pub trait Observer: Send {
    /// This happened.
    fn saw(&mut self, event: &ProcessEvent);
}

/// What a process does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// Bytes on standard output, or from its terminal.
    Stdout(Bytes),
    /// Bytes on standard error.
    Stderr(Bytes),
    /// It ended; nothing follows.
    Exited(Exit),
}

/// Everything a process wrote and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Standard output, up to the limit.
    pub stdout: Vec<u8>,
    /// Standard error, up to the limit.
    pub stderr: Vec<u8>,
    /// Whether either was cut at the limit.
    pub truncated: bool,
    /// How it ended.
    pub exit: Exit,
}

impl Process {
    pub(crate) async fn started(stream: StreamHandle, stdin: bool) -> Result<Self, ClientError> {
        let (pid, held) = match poll_fn(|cx| stream.poll_event(cx)).await? {
            Event::Started { pid, held } => (pid, held),
            event => {
                return match stream.expect::<()>(event) {
                    Err(error) => Err(error),
                    Ok(()) => Err(stream.violation("`Done` for a process")),
                };
            }
        };
        let stdin = stdin.then(|| Stdin { sender: stream.sender().clone(), ended: false });
        Ok(Self { pid, held, stream, stdin, observer: None, over: false })
    }

    /// Its standard input, once, if the request asked for it.
    pub fn take_stdin(&mut self) -> Option<Stdin> {
        self.stdin.take()
    }

    /// Gives it back.
    pub fn give_stdin(&mut self, stdin: Stdin) {
        self.stdin = Some(stdin);
    }

    /// Lets somebody see what it does from now on.
    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.observer = Some(observer);
    }

    /// What it does next; `None` after `Exited` or an error. May be dropped and called again without loss.
    pub async fn next(&mut self) -> Option<Result<ProcessEvent, ClientError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Self::next`], for use in a hand-written future.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ProcessEvent, ClientError>>> {
        if self.over {
            return Poll::Ready(None);
        }
        let result = loop {
            break match ready!(self.stream.poll_next(cx)) {
                Ok(Incoming::Data(Channel::Error, bytes)) => Ok(ProcessEvent::Stderr(bytes)),
                Ok(Incoming::Data(_, bytes)) => Ok(ProcessEvent::Stdout(bytes)),
                Ok(Incoming::OutputEnd) => continue,
                Ok(Incoming::Event(Event::Exited(exit))) => {
                    self.stream.finish();
                    Ok(ProcessEvent::Exited(exit))
                }
                Ok(Incoming::Event(event)) => match self.stream.expect::<()>(event) {
                    Err(error) => Err(error),
                    Ok(()) => Err(self.stream.violation("`Done` for a process")),
                },
                Err(error) => Err(error),
            };
        };
        self.over = matches!(result, Ok(ProcessEvent::Exited(_)) | Err(_));
        if let (Some(observer), Ok(event)) = (&mut self.observer, &result) {
            observer.saw(event);
        }
        Poll::Ready(Some(result))
    }

    /// Waits for the end, keeping at most `limit` bytes of each output. Closes standard input if it was not taken.
    pub async fn output(self, limit: usize) -> Result<Output, ClientError> {
        self.output_while(limit, |_| true).await
    }

    /// The same, but what comes is kept only if `room_for` says that there is room for so many bytes.
    pub async fn output_while(
        mut self,
        limit: usize,
        mut room_for: impl FnMut(usize) -> bool,
    ) -> Result<Output, ClientError> {
        drop(self.stdin.take());
        let (mut stdout, mut stderr, mut truncated) = (Vec::new(), Vec::new(), false);
        let mut keep = |kept: &mut Vec<u8>, bytes: Bytes| {
            let room = bytes.len().min(limit - kept.len());
            let room = if room_for(room) { room } else { 0 };
            kept.extend_from_slice(&bytes[..room]);
            truncated |= room < bytes.len();
        };
        loop {
            match self.next().await.unwrap_or(Err(ClientError::Closed))? {
                ProcessEvent::Stdout(bytes) => keep(&mut stdout, bytes),
                ProcessEvent::Stderr(bytes) => keep(&mut stderr, bytes),
                ProcessEvent::Exited(exit) => {
                    return Ok(Output { stdout, stderr, truncated, exit });
                }
            }
        }
    }

    /// Lets go of a background process, which runs on, and returns its pid. Its standard input stays open.
    pub fn detach(mut self) -> u32 {
        if let Some(stdin) = &mut self.stdin {
            stdin.ended = true;
        }
        self.pid
    }
}

/// The standard input of a process. Dropping it closes the input.
pub struct Stdin {
    sender: Sender,
    ended: bool,
}

impl Stdin {
    /// Writes all of it, at the pace of the process. If dropped midway, some of it may have been written.
    pub async fn write(&mut self, data: impl Into<Bytes>) -> Result<(), ClientError> {
        self.sender.send_all(data.into()).await
    }
}

impl Drop for Stdin {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.sender.send_end();
        }
    }
}
