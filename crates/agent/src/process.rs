//! A started program, from fork until its exit is told.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use sloplet_wire::flow::INITIAL_WINDOW;
use sloplet_wire::{Channel, Event, Exit};

use crate::context::Context;
use crate::poll::{Readiness, StreamKey, Token};
use crate::ring::Ring;
use crate::stream::StreamIo;

/// A program that writes this much within [`BURST_TIME`] gets a larger pipe and is read at intervals.
const BURST_BYTES: usize = 256 * 1024;

/// See [`BURST_BYTES`].
const BURST_TIME: Duration = Duration::from_millis(10);

/// Input frames smaller than this are gathered.
const GATHERED_BYTES: usize = 64 * 1024;

/// The larger pipe: fewer switches between writer and agent.
const LARGE_PIPE: usize = 1024 * 1024;

/// What a terminal takes for the end of its input.
const END_OF_TRANSMISSION: u8 = 4;

/// A started program.
#[derive(Debug)]
pub(crate) struct Process {
    /// The agent's number of it. Unlike its pid never used again.
    pub(crate) id: u32,
    pub(crate) pid: i32,
    /// Its name, for messages.
    pub(crate) program: String,
    pub(crate) cwd: String,
    pub(crate) tag: Option<String>,
    pub(crate) background: bool,
    pub(crate) terminal: Option<Rc<OwnedFd>>,
    pub(crate) phase: Phase,
    pub(crate) attached: Option<StreamKey>,
    pub(crate) output: Output,
    pub(crate) error: Output,
    /// The last that it wrote, if it is in the background.
    pub(crate) held: Ring,
    pub(crate) input: Input,
    pub(crate) timed_out: bool,
}

/// Where in its life a program is.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Forked; the descriptor tells whether exec succeeded.
    Starting(OwnedFd),
    /// Running.
    Running,
    /// Reaped; output may remain to be sent.
    Ended(Exit),
}

impl Process {
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    /// Kills it and its process group; nothing once it is reaped, because its pid may be another's by then.
    pub(crate) fn kill(&self) {
        if !matches!(self.phase, Phase::Ended(_)) {
            let _ = sloplet_sys::spawn::send_signal(-self.pid, 9);
            // It may not have got as far as having its own group.
            let _ = sloplet_sys::spawn::send_signal(self.pid, 9);
        }
    }

    /// Moves bytes to and from its stream, one slice.
    pub(crate) fn pump_attached(&mut self, io: &mut StreamIo<'_>, context: &Context) -> Next {
        self.input.pump(Some(io));
        let mut keep = self.background.then_some(&mut self.held);
        let output = self.output.pump_to_stream(Channel::Output, io, context, keep.as_deref_mut());
        output.max(self.error.pump_to_stream(Channel::Error, io, context, keep))
    }

    /// Moves bytes of a background process that nobody is attached to.
    pub(crate) fn pump_detached(&mut self, scratch: &mut [u8], context: &Context) -> Next {
        self.input.pump(None);
        let output = self.output.pump_to_ring(Channel::Output, &mut self.held, scratch, context);
        output.max(self.error.pump_to_ring(Channel::Error, &mut self.held, scratch, context))
    }

    /// How it ended, once its output is complete too.
    pub(crate) fn complete(&self) -> Option<&Exit> {
        match &self.phase {
            Phase::Ended(exit) if self.output.source.is_none() && self.error.source.is_none() => Some(exit),
            _ => None,
        }
    }

    /// Sends what is held to a newly attached stream.
    pub(crate) fn replay(&mut self, io: &mut StreamIo<'_>) {
        io.event(&Event::Started { pid: self.pid as u32, held: Some(self.held.held()) });
        for (channel, part) in self.held.parts() {
            io.send(channel, part);
        }
        (self.output.end_sent, self.error.end_sent) = (false, false);
    }
}

/// Standard output or error, or a terminal's output.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// None at the end of file.
    pub(crate) source: Option<Rc<OwnedFd>>,
    /// Pipes must be armed again before they are heard of again.
    token: Option<Token>,
    readable: bool,
    hangup: bool,
    pace: Pace,
    /// Once the program has ended: what was in the pipe then, and all that is still awaited.
    limit: Option<usize>,
    /// The pipe, given up at its limit while somebody may still write to it.
    pub(crate) leftover: Option<Rc<OwnedFd>>,
    end_sent: bool,
}

/// How fast a pipe is being written.
#[derive(Debug, Default)]
struct Pace {
    since: Option<Instant>,
    bytes: usize,
    large: bool,
    /// Left alone until the pacer rings, to be read in larger pieces.
    held: bool,
}

/// What is to be done about an output after a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Next {
    /// Nothing until something happens.
    Wait,
    /// Another slice when the pacer rings.
    Pace,
    /// Another slice.
    Again,
}

impl Output {
    pub(crate) fn pipe(source: Rc<OwnedFd>, token: Token) -> Self {
        Self { source: Some(source), token: Some(token), ..Self::default() }
    }

    pub(crate) fn terminal(source: Rc<OwnedFd>) -> Self {
        Self { source: Some(source), ..Self::default() }
    }

    pub(crate) fn ready(&mut self, readiness: Readiness) {
        self.readable |= readiness.read;
        self.hangup |= readiness.hangup;
    }

    /// The pacer rang.
    pub(crate) fn release(&mut self) {
        self.pace.held = false;
    }

    /// Awaits no more than what is in the pipe now.
    pub(crate) fn limit_to_present(&mut self) {
        if let Some(source) = &self.source {
            self.limit = Some(rustix::io::ioctl_fionread(source).map_or(0, |bytes| bytes as usize));
            self.readable = true;
            self.pace.held = false;
        }
    }

    fn is_over(&mut self) -> bool {
        if self.limit == Some(0) && self.source.is_some() {
            self.leftover = self.source.take();
        }
        self.source.is_none()
    }

    fn next(&self) -> Next {
        match (&self.source, self.readable, self.pace.held) {
            (Some(_), true, false) => Next::Again,
            (Some(_), true, true) => Next::Pace,
            _ => Next::Wait,
        }
    }

    fn pump_to_stream(
        &mut self,
        channel: Channel,
        io: &mut StreamIo<'_>,
        context: &Context,
        keep: Option<&mut Ring>,
    ) -> Next {
        if !self.is_over() && self.next() == Next::Again {
            let max = io.room(channel).min(self.limit.unwrap_or(usize::MAX));
            if max == 0 {
                // The next window frame continues it; for room there is a queue.
                return if io.out.has_room() { Next::Wait } else { Next::Again };
            }
            if let Some(source) = self.source.clone() {
                let result = io.data(channel, max, |place| rustix::io::read(&*source, place));
                if let (Some(ring), Ok(bytes)) = (keep, &result) {
                    ring.record(channel, bytes);
                }
                let result = result.map(<[u8]>::len);
                self.after_read(result, max, context);
            }
        }
        if self.is_over() && !self.end_sent {
            io.end(channel);
            self.end_sent = true;
        }
        self.next()
    }

    fn pump_to_ring(&mut self, channel: Channel, ring: &mut Ring, scratch: &mut [u8], context: &Context) -> Next {
        if !self.is_over() && self.next() == Next::Again {
            let max = scratch.len().min(self.limit.unwrap_or(usize::MAX));
            if let Some(source) = self.source.clone() {
                let result = rustix::io::read(&*source, &mut scratch[..max]);
                if let Ok(len) = result {
                    ring.record(channel, &scratch[..len]);
                }
                self.after_read(result, max, context);
            }
        }
        self.is_over();
        self.next()
    }

    fn after_read(&mut self, result: Result<usize, Errno>, asked: usize, context: &Context) {
        match result {
            // A terminal whose last program is gone says EIO.
            Ok(0) | Err(Errno::IO) => self.source = None,
            Ok(len) if self.limit.is_some() => self.limit = self.limit.map(|limit| limit - len),
            Ok(len) => {
                self.meter(len);
                if len < asked {
                    self.emptied(context);
                }
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if self.limit.is_some() => self.limit = Some(0),
            Err(Errno::AGAIN) => {
                self.pace = Pace { large: self.pace.large, ..Pace::default() };
                self.emptied(context);
            }
            Err(_) => self.source = None,
        }
    }

    fn meter(&mut self, len: usize) {
        let now = Instant::now();
        if self.pace.since.is_none_or(|since| now - since > BURST_TIME) {
            self.pace.since = Some(now);
            self.pace.bytes = 0;
        }
        self.pace.bytes += len;
        if self.pace.bytes >= BURST_BYTES && !self.pace.large {
            self.pace.large = true;
            if let (Some(source), Some(_)) = (&self.source, self.token) {
                // Refused beyond a user's share of pipe memory.
                let _ = rustix::pipe::fcntl_setpipe_size(source, LARGE_PIPE);
            }
        }
    }

    /// A short read emptied it: arranges to learn of more.
    fn emptied(&mut self, context: &Context) {
        match (self.token, &self.source) {
            // In a burst the next bytes are on their way: let them gather.
            (Some(_), _) if self.pace.bytes >= BURST_BYTES && !self.hangup => self.pace.held = true,
            (Some(token), Some(source)) => {
                self.readable = context.poll.rearm(&**source, token).is_err();
            }
            // What comes later makes a new edge, but an announced hangup does not.
            _ => self.readable = self.hangup,
        }
    }
}

/// Standard input, or a terminal's input.
#[derive(Debug, Default)]
pub(crate) struct Input {
    pipe: Option<Rc<OwnedFd>>,
    terminal: bool,
    writable: bool,
    chunks: VecDeque<Chunk>,
    queued: usize,
    end: bool,
}

#[derive(Debug)]
struct Chunk {
    bytes: Vec<u8>,
    start: usize,
    /// The stream that gets credit back for it; none for [`sloplet_wire::Request::SendInput`].
    from: Option<StreamKey>,
}

impl Input {
    pub(crate) fn new(pipe: Rc<OwnedFd>, terminal: bool) -> Self {
        Self { pipe: Some(pipe), terminal, writable: true, ..Self::default() }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.pipe.is_some() && !self.end
    }

    pub(crate) fn has_space(&self, more: usize) -> bool {
        self.queued + more <= 2 * INITIAL_WINDOW as usize
    }

    pub(crate) fn ready(&mut self, readiness: Readiness) {
        self.writable |= readiness.write;
    }

    pub(crate) fn push(&mut self, bytes: &[u8], from: Option<StreamKey>) {
        self.queued += bytes.len();
        match self.chunks.back_mut() {
            // Many small frames must not cost many allocations.
            Some(last) if last.from == from && last.bytes.len() < GATHERED_BYTES => last.bytes.extend_from_slice(bytes),
            _ => self.chunks.push_back(Chunk { bytes: bytes.to_vec(), start: 0, from }),
        }
    }

    /// No more after what is queued.
    pub(crate) fn end(&mut self) {
        self.end = true;
    }

    /// The program is gone.
    pub(crate) fn close(&mut self) {
        self.pipe = None;
    }

    pub(crate) fn pump(&mut self, mut io: Option<&mut StreamIo<'_>>) {
        while let Some(chunk) = self.chunks.front_mut() {
            let rest = &chunk.bytes[chunk.start..];
            let used = match &self.pipe {
                // Nobody reads it: swallowed, so that the sender is not stuck.
                None => rest.len(),
                Some(_) if !self.writable => return,
                Some(pipe) => match rustix::io::write(&**pipe, rest) {
                    Ok(len) => len,
                    Err(Errno::INTR) => 0,
                    Err(Errno::AGAIN) => {
                        self.writable = false;
                        return;
                    }
                    Err(_) => {
                        self.pipe = None;
                        0
                    }
                },
            };
            chunk.start += used;
            self.queued -= used;
            if let (Some(io), Some(from)) = (&mut io, chunk.from)
                && io.key == from
            {
                io.release(used);
            }
            if chunk.start == chunk.bytes.len() {
                self.chunks.pop_front();
            }
        }
        if self.end && self.pipe.is_some() {
            if self.terminal {
                // A terminal has no end of its own; this is what a person would type.
                self.end = false;
                self.push(&[END_OF_TRANSMISSION], None);
                self.pump(io);
            } else {
                self.pipe = None;
            }
        }
    }
}
