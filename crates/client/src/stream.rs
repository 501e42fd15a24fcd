//! One stream: what has arrived on it, who waits for it, and how much may be sent.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use sloplet_wire::{Channel, Entry, Event, Kind, MAX_PAYLOAD, ProcessInfo, SendWindow, message};

use crate::ClientError;
use crate::inbound::{Inbound, Payload};
use crate::link::{LinkOwner, lock};

/// What an event costs besides its payload, so that many tiny ones are bounded too.
const EVENT_OVERHEAD: usize = 64;

/// How much of a stream's events may wait to be taken. Events have no flow control.
#[derive(Clone, Copy)]
pub(crate) enum Backlog {
    /// More than this many bytes fail the stream.
    Fail(usize),
    /// Beyond this many bytes the oldest are dropped, and the loss is reported.
    DropOldest(usize),
}

/// For all but listings and watches: an answer is a few events.
pub(crate) const SHORT: Backlog = Backlog::Fail(1024 * 1024);

/// The receiving side of a stream, filled by the driver.
pub(crate) struct Stream(Mutex<State>);

struct State {
    output: Inbound,
    error: Inbound,
    /// Rises whenever data switches channels; orders the chunks of `output` and `error`.
    turn: u64,
    last: Channel,
    /// `OutputEnd` has been handed on.
    end_told: bool,
    /// Undecoded: decoding is left to whoever takes them.
    events: VecDeque<Bytes>,
    event_bytes: usize,
    backlog: Backlog,
    lost: bool,
    /// The first event has been taken.
    answered: bool,
    send: SendWindow,
    /// The agent takes no more input.
    input_closed: bool,
    over: Option<ClientError>,
    consumer: Option<Waker>,
    producer: Option<Waker>,
}

/// What a stream delivers, in order.
pub(crate) enum Incoming {
    /// Bytes on a channel.
    Data(Channel, Bytes),
    /// No more bytes on the output channel.
    OutputEnd,
    /// An event, after all data that came before it.
    Event(Event),
}

impl Stream {
    pub(crate) fn new(backlog: Backlog) -> Self {
        Self(Mutex::new(State {
            output: Inbound::default(),
            error: Inbound::default(),
            turn: 0,
            last: Channel::Output,
            end_told: false,
            events: VecDeque::new(),
            event_bytes: 0,
            backlog,
            lost: false,
            answered: false,
            send: SendWindow::default(),
            input_closed: false,
            over: None,
            consumer: None,
            producer: None,
        }))
    }

    /// Takes a `Data` frame.
    pub(crate) fn data(&self, channel: u8, payload: Payload<'_>) -> Result<(), ClientError> {
        let mut state = lock(&self.0);
        let channel = incoming_channel(channel)?;
        if state.last != channel {
            state.last = channel;
            state.turn += 1;
        }
        let turn = state.turn;
        let inbound = state.inbound(channel);
        if inbound.ended {
            return Err(ClientError::Unexpected("data after the end of its channel"));
        }
        inbound.push(payload, turn)?;
        wake(state, true, false);
        Ok(())
    }

    /// Takes an `End` frame.
    pub(crate) fn ended(&self, channel: u8) -> Result<(), ClientError> {
        let mut state = lock(&self.0);
        if channel == Channel::Input as u8 {
            state.input_closed = true;
            wake(state, false, true);
        } else {
            state.inbound(incoming_channel(channel)?).ended = true;
            wake(state, true, false);
        }
        Ok(())
    }

    /// Takes an `Event` frame.
    pub(crate) fn event(&self, payload: &[u8]) {
        let mut state = lock(&self.0);
        if state.over.is_some() {
            return;
        }
        state.event_bytes += payload.len() + EVENT_OVERHEAD;
        state.events.push_back(Bytes::copy_from_slice(payload));
        match state.backlog {
            Backlog::Fail(limit) if state.event_bytes > limit => {
                state.events = VecDeque::new();
                state.over = Some(ClientError::TooMuch { limit, unit: "bytes" });
            }
            Backlog::DropOldest(limit) => {
                // All but the very first, which is the answer to the request.
                let oldest = usize::from(!state.answered);
                while state.event_bytes > limit {
                    let Some(dropped) = state.events.remove(oldest) else {
                        break;
                    };
                    state.event_bytes -= dropped.len() + EVENT_OVERHEAD;
                    state.lost = true;
                }
            }
            Backlog::Fail(_) => {}
        }
        // The producer too: an event while sending is the answer to what is being sent.
        wake(state, true, true);
    }

    /// Takes a `Window` frame.
    pub(crate) fn window(&self, channel: u8, payload: &[u8]) -> Result<(), ClientError> {
        let Ok(more) = payload.try_into() else {
            return Err(ClientError::Unexpected("a window that is no number"));
        };
        if channel != Channel::Input as u8 {
            return Err(ClientError::Unexpected("a window for a channel that is not sent on"));
        }
        let mut state = lock(&self.0);
        state.send.grant(u32::from_le_bytes(more))?;
        wake(state, false, true);
        Ok(())
    }

    /// Ends the stream. What has arrived can still be taken.
    pub(crate) fn end(&self, error: ClientError) {
        let mut state = lock(&self.0);
        state.over.get_or_insert(error);
        wake(state, true, true);
    }
}

/// Wakes who waits, after letting go of the lock: they will want it.
fn wake(mut state: MutexGuard<'_, State>, consumer: bool, producer: bool) {
    let wakers =
        [if consumer { state.consumer.take() } else { None }, if producer { state.producer.take() } else { None }];
    drop(state);
    wakers.into_iter().flatten().for_each(Waker::wake);
}

fn incoming_channel(byte: u8) -> Result<Channel, ClientError> {
    match byte {
        byte if byte == Channel::Output as u8 => Ok(Channel::Output),
        byte if byte == Channel::Error as u8 => Ok(Channel::Error),
        _ => Err(ClientError::Unexpected("data on a channel that does not come from the agent")),
    }
}

impl State {
    fn inbound(&mut self, channel: Channel) -> &mut Inbound {
        match channel {
            Channel::Error => &mut self.error,
            _ => &mut self.output,
        }
    }

    fn take_event(&mut self) -> Option<Bytes> {
        let payload = self.events.pop_front()?;
        self.answered = true;
        self.event_bytes -= payload.len() + EVENT_OVERHEAD;
        Some(payload)
    }

    /// The channel whose oldest data is oldest.
    fn next_channel(&self) -> Option<Channel> {
        match (self.output.head(), self.error.head()) {
            (Some(output), Some(error)) if error < output => Some(Channel::Error),
            (Some(_), _) => Some(Channel::Output),
            (None, Some(_)) => Some(Channel::Error),
            (None, None) => None,
        }
    }
}

/// Messages that complete a request. Implemented for what requests are answered with.
pub trait Answer: Sized {
    /// Picks the answer out of an event, `None` if it is another event.
    #[doc(hidden)]
    fn from_event(event: Event) -> Option<Self>;
}

impl Answer for () {
    fn from_event(event: Event) -> Option<Self> {
        matches!(event, Event::Done).then_some(())
    }
}

impl Answer for Entry {
    fn from_event(event: Event) -> Option<Self> {
        if let Event::Entry(entry) = event { Some(entry) } else { None }
    }
}

impl Answer for u16 {
    fn from_event(event: Event) -> Option<Self> {
        if let Event::Listening { port } = event { Some(port) } else { None }
    }
}

impl Answer for Vec<ProcessInfo> {
    fn from_event(event: Event) -> Option<Self> {
        if let Event::Processes(processes) = event { Some(processes) } else { None }
    }
}

/// The sending half of a stream. Does not keep the request alive.
#[derive(Clone)]
pub(crate) struct Sender {
    id: u32,
    stream: Arc<Stream>,
    owner: Arc<LinkOwner>,
}

impl Sender {
    /// Reserves up to `want` bytes of the window, once the socket keeps up too.
    pub(crate) fn poll_reserve(&self, cx: &mut Context<'_>, want: usize) -> Poll<Result<usize, ClientError>> {
        let ready = self.owner.0.poll_ready(cx);
        let mut state = lock(&self.stream.0);
        if let Some(error) = &state.over {
            return Poll::Ready(Err(error.clone()));
        }
        if state.input_closed || !state.events.is_empty() {
            return Poll::Ready(Err(ClientError::InputClosed));
        }
        if let Poll::Ready(Err(error)) = ready {
            return Poll::Ready(Err(error));
        }
        let count = want.min(state.send.available()).min(MAX_PAYLOAD);
        if ready.is_pending() || count == 0 {
            // Also while waiting for the socket: the answer or the end of the stream must get through.
            state.producer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.send.consume(count);
        Poll::Ready(Ok(count))
    }

    /// Sends bytes that were reserved.
    pub(crate) fn send_reserved(&self, data: Bytes) -> Result<(), ClientError> {
        self.owner.0.send(Kind::Data, self.id, Channel::Input as u8, data)
    }

    /// Sends all of `data`, waiting for credit as needed.
    pub(crate) async fn send_all(&self, mut data: Bytes) -> Result<(), ClientError> {
        while !data.is_empty() {
            let count = poll_fn(|cx| self.poll_reserve(cx, data.len())).await?;
            self.send_reserved(data.split_to(count))?;
        }
        Ok(())
    }

    /// Says that no more input follows, unless the stream is over anyway.
    pub(crate) fn send_end(&self) -> Result<(), ClientError> {
        if let Some(error) = &lock(&self.stream.0).over {
            return Err(error.clone());
        }
        self.owner.0.send(Kind::End, self.id, Channel::Input as u8, Bytes::new())
    }
}

/// An open stream. Dropping it before it is over resets it.
pub(crate) struct StreamHandle {
    sender: Sender,
}

impl StreamHandle {
    pub(crate) fn new(id: u32, stream: Arc<Stream>, owner: Arc<LinkOwner>) -> Self {
        Self { sender: Sender { id, stream, owner } }
    }

    pub(crate) fn sender(&self) -> &Sender {
        &self.sender
    }

    /// The stream is over on both ends; nothing needs to be reset.
    pub(crate) fn finish(&self) {
        self.sender.owner.0.remove(self.sender.id);
        self.sender.stream.end(ClientError::InputClosed);
    }

    /// The next event, without looking at data.
    pub(crate) fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Result<Event, ClientError>> {
        let payload = {
            let mut state = lock(&self.sender.stream.0);
            match (state.take_event(), &state.over) {
                (Some(payload), _) => payload,
                (None, Some(error)) => return Poll::Ready(Err(error.clone())),
                (None, None) => {
                    state.consumer = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        };
        Poll::Ready(self.decode(&payload))
    }

    /// Whatever comes next.
    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Result<Incoming, ClientError>> {
        let Sender { id, stream, owner } = &self.sender;
        let mut state = lock(&stream.0);
        let taken = state.next_channel().and_then(|channel| Some((channel, state.inbound(channel).pop()?)));
        if let Some((channel, (bytes, grant))) = taken {
            let over = state.over.is_some();
            drop(state);
            if let Some(grant) = grant.filter(|_| !over) {
                // If this fails, so will the next read.
                let _ = owner.0.send(Kind::Window, *id, channel as u8, Bytes::copy_from_slice(&grant.to_le_bytes()));
            }
            return Poll::Ready(Ok(Incoming::Data(channel, bytes)));
        }
        if state.output.ended && !state.end_told {
            state.end_told = true;
            return Poll::Ready(Ok(Incoming::OutputEnd));
        }
        drop(state);
        self.poll_event(cx).map_ok(Incoming::Event)
    }

    /// Waits for the event that answers the request (or its first part).
    pub(crate) async fn answer<T: Answer>(&self) -> Result<T, ClientError> {
        self.expect(poll_fn(|cx| self.poll_event(cx)).await?)
    }

    /// Waits for the one event that completes the request.
    pub(crate) async fn complete<T: Answer>(self) -> Result<T, ClientError> {
        let answer = self.answer().await?;
        self.finish();
        Ok(answer)
    }

    /// Takes an event for the answer; a failure ends the stream, and any other event the connection.
    pub(crate) fn expect<T: Answer>(&self, event: Event) -> Result<T, ClientError> {
        match event {
            Event::Failed(failure) => {
                self.finish();
                Err(ClientError::Failed(failure))
            }
            event => T::from_event(event).ok_or_else(|| self.violation("an event that does not answer the request")),
        }
    }

    /// Whether events were dropped since last asked.
    pub(crate) fn take_lost(&self) -> bool {
        std::mem::take(&mut lock(&self.sender.stream.0).lost)
    }

    /// Ends the connection because of what came on this stream.
    pub(crate) fn violation(&self, what: &'static str) -> ClientError {
        let error = ClientError::Unexpected(what);
        self.sender.owner.0.fail(error.clone());
        error
    }

    fn decode(&self, payload: &[u8]) -> Result<Event, ClientError> {
        message::from_bytes(payload, "event").map_err(|error| {
            let error = ClientError::from(error);
            self.sender.owner.0.fail(error.clone());
            error
        })
    }
}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        let Sender { id, stream, owner } = &self.sender;
        if owner.0.remove(*id) {
            let _ = owner.0.send(Kind::Reset, *id, 0, Bytes::new());
            // A sender that outlives the request must not send into a stream the agent no longer knows.
            stream.end(ClientError::InputClosed);
        }
    }
}
