//! A stream: one request, its flow control, and the work it asks for.

use rustix::fd::AsFd;
use rustix::io::Errno;
use sloplet_wire::{Channel, Event, Failure, Kind, MAX_PAYLOAD, ReceiveWindow, SendWindow, WireError};

use crate::context::Context;
use crate::outgoing::Outgoing;
use crate::poll::{Readiness, StreamKey, Token};

/// What a stream is about.
pub(crate) enum Body {
    /// A process, by the agent's own number of it.
    Process(u32),
    /// Anything else.
    Job(Box<dyn Job>),
}

/// One open stream.
pub(crate) struct Stream {
    pub(crate) flow: Flow,
    pub(crate) body: Body,
}

impl Stream {
    pub(crate) fn new(body: Body) -> Self {
        Self { flow: Flow::default(), body }
    }
}

/// Work done in slices, so that none holds up the others.
pub(crate) trait Job {
    /// Does one slice.
    fn step(&mut self, io: &mut StreamIo<'_>, context: &Context) -> Result<Step, Failure>;

    /// Uses input as it comes, without its being held, and tells how much; the rest is held for a step.
    fn take(&mut self, _input: &[u8]) -> usize {
        0
    }

    /// Its registered descriptor became ready; a step follows.
    fn ready(&mut self, _readiness: Readiness) {}
}

/// What a job wants after a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Another slice.
    Again,
    /// To wait for credit, room, input or its descriptor.
    Wait,
    /// Nothing: its last event is sent and the stream is over.
    Finished,
}

/// A stream's windows and the input that has not been used yet.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    output: SendWindow,
    error: SendWindow,
    receive: ReceiveWindow,
    input: Vec<u8>,
    input_start: usize,
    pub(crate) input_ended: bool,
}

impl Flow {
    pub(crate) fn grant(&mut self, channel: u8, credit: u32) -> Result<(), WireError> {
        match channel {
            c if c == Channel::Output as u8 => self.output.grant(credit),
            c if c == Channel::Error as u8 => self.error.grant(credit),
            _ => Err(WireError::Malformed("window")),
        }
    }

    /// Accounts for input that arrived.
    pub(crate) fn receive(&mut self, len: usize) -> Result<(), WireError> {
        self.receive.receive(len)
    }

    /// Holds input for a job.
    pub(crate) fn hold(&mut self, bytes: &[u8]) {
        if self.input_start > 0 {
            self.input.drain(..self.input_start);
            self.input_start = 0;
        }
        self.input.extend_from_slice(bytes);
    }

    fn window(&mut self, channel: Channel) -> &mut SendWindow {
        match channel {
            Channel::Error => &mut self.error,
            _ => &mut self.output,
        }
    }
}

/// A stream's way to the host.
pub(crate) struct StreamIo<'a> {
    pub(crate) key: StreamKey,
    pub(crate) out: &'a mut Outgoing,
    pub(crate) flow: &'a mut Flow,
}

impl StreamIo<'_> {
    /// How much bulk data may be produced now; 0 means [`Step::Wait`].
    pub(crate) fn room(&mut self, channel: Channel) -> usize {
        if self.out.has_room() { self.flow.window(channel).available().min(MAX_PAYLOAD) } else { 0 }
    }

    /// Produces at most `max` bytes (within [`Self::room`]) in place and returns them.
    pub(crate) fn data(
        &mut self,
        channel: Channel,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<&[u8], Errno> {
        let bytes = self.out.data(self.key.stream, channel as u8, max, fill)?;
        match channel {
            Channel::Error => self.flow.error.consume(bytes.len()),
            _ => self.flow.output.consume(bytes.len()),
        }
        Ok(bytes)
    }

    /// Sends bytes that are at hand, within [`Self::room`].
    pub(crate) fn send(&mut self, channel: Channel, bytes: &[u8]) {
        self.out.frame(Kind::Data, self.key.stream, channel as u8, bytes);
        self.flow.window(channel).consume(bytes.len());
    }

    /// No more data on `channel`.
    pub(crate) fn end(&mut self, channel: Channel) {
        self.out.frame(Kind::End, self.key.stream, channel as u8, &[]);
    }

    pub(crate) fn event(&mut self, event: &Event) {
        self.out.event(self.key.stream, event);
    }

    /// The stream is over at once.
    pub(crate) fn reset(&mut self) {
        self.out.frame(Kind::Reset, self.key.stream, 0, &[]);
    }

    /// Input that has not been used yet.
    pub(crate) fn input(&self) -> &[u8] {
        &self.flow.input[self.flow.input_start..]
    }

    /// Whether all input has come and been used.
    pub(crate) fn input_is_over(&self) -> bool {
        self.flow.input_ended && self.input().is_empty()
    }

    /// Uses up the first `len` bytes of the input.
    pub(crate) fn consume_input(&mut self, len: usize) {
        self.flow.input_start += len;
        if self.flow.input_start >= self.flow.input.len() {
            self.flow.input.clear();
            self.flow.input_start = 0;
        }
        self.release(len);
    }

    /// Grants credit for input that was used elsewhere.
    pub(crate) fn release(&mut self, len: usize) {
        if let Some(credit) = self.flow.receive.release(len) {
            self.out.frame(Kind::Window, self.key.stream, Channel::Input as u8, &credit.to_le_bytes());
        }
    }

    /// Has `job.ready` called when `fd` becomes ready.
    pub(crate) fn watch(&self, context: &Context, fd: impl AsFd) -> Result<(), Errno> {
        context.poll.add(fd, Token::Stream(self.key))
    }
}
