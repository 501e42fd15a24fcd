//! Counts what an answer came to while it streams through, and pays for it at its end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::account::{Amount, Reached, Reservation};
use crate::body::{Body, BoxError};
use crate::event::{Event, Events, LlmCall};
use crate::llm::{Endpoint, Seen, Sse};
use crate::prices::{Price, Usage};

/// Longest answer in one piece that is read. Longer ones, lists of embeddings, count as their worst case.
const LONGEST: usize = 4 << 20;

/// A call under way.
pub(crate) struct Meter {
    endpoint: Endpoint,
    reservation: Option<Reservation>,
    price: Option<Arc<Price>>,
    worst: Usage,
    event: LlmCall,
    started: Instant,
    events: Events,
    /// The client did not ask for its usage; the gateway did.
    pub usage_added: bool,
    /// Before that it has cost nothing.
    sent: bool,
    reader: Reader,
}

enum Reader {
    Whole(Vec<u8>),
    Stream(Sse, Seen),
    TooLong,
}

impl Meter {
    pub fn new(
        endpoint: Endpoint,
        reservation: Reservation,
        price: Option<Arc<Price>>,
        worst: Usage,
        event: LlmCall,
        events: Events,
    ) -> Self {
        let reader = Reader::Whole(Vec::new());
        let started = Instant::now();
        Self {
            endpoint,
            reservation: Some(reservation),
            price,
            worst,
            event,
            started,
            events,
            usage_added: false,
            sent: false,
            reader,
        }
    }

    /// The call is about to be sent.
    pub fn sent(&mut self) {
        self.sent = true;
        if let Some(reservation) = &mut self.reservation {
            reservation.sent();
        }
    }

    /// The answer begins; as a stream of events or in one piece.
    pub fn begin(&mut self, status: u16, stream: bool) {
        self.event.status = status;
        if stream {
            self.reader = Reader::Stream(Sse::default(), Seen::default());
        }
    }

    fn push(&mut self, data: &[u8]) {
        self.event.response_bytes += data.len() as u64;
        let endpoint = self.endpoint;
        match &mut self.reader {
            Reader::Whole(body) if body.len() + data.len() <= LONGEST => body.extend_from_slice(data),
            Reader::Whole(_) => self.reader = Reader::TooLong,
            Reader::Stream(sse, seen) => sse.push(data, |event| seen.event(endpoint, event)),
            Reader::TooLong => {}
        }
    }

    /// The answer is over; `ended` if its end was seen.
    fn finish(&mut self, ended: bool) {
        let Some(reservation) = self.reservation.take() else { return };
        if !self.sent {
            self.event.reason = Some("it was not sent".to_owned());
            return self.pay(reservation, Usage::default());
        }
        let endpoint = self.endpoint;
        let seen = match std::mem::replace(&mut self.reader, Reader::TooLong) {
            // One that lacks its end cannot be read; one that can is all there, whoever has left.
            Reader::Whole(body) => Seen::whole(endpoint, &body),
            Reader::Stream(mut sse, mut seen) => {
                sse.finish(|event| seen.event(endpoint, event));
                if ended {
                    seen.ended();
                }
                seen
            }
            Reader::TooLong => Seen::default(),
        };
        let usage = match (seen.complete, seen.input_known) {
            (true, _) => seen.usage,
            // How much was written before the end was lost is not known, whatever was told of it so far: the host may have
            // gone on. What was read is known.
            (false, true) => Usage { output: self.worst.output.max(seen.usage.output), ..seen.usage },
            (false, false) => self.worst,
        };
        if !seen.complete {
            let why = if ended { "the answer does not say what it came to" } else { "the answer's end was not seen" };
            self.event.reason = Some(format!("{why}: the worst case counts"));
        }
        self.event.tool_calls = seen.tools;
        self.pay(reservation, usage);
    }

    /// There is no answer that costs: it failed.
    pub fn release(mut self, status: u16) {
        self.event.status = status;
        if let Some(reservation) = self.reservation.take() {
            self.pay(reservation, Usage::default());
        }
    }

    fn pay(&mut self, reservation: Reservation, usage: Usage) {
        let cost = self.price.as_ref().map(|price| price.cost(&usage));
        let real = Amount { micro_usd: cost.unwrap_or(0), tokens: usage.tokens() };
        let mut event = std::mem::take(&mut self.event);
        event.input_tokens = usage.input;
        event.output_tokens = usage.output;
        event.cache_read = usage.cache_read;
        event.cache_write = usage.cache_write.saturating_add(usage.cache_write_1h);
        event.cost_micro_usd = cost;
        event.duration_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let reached = reservation.settle(real);
        (self.events)(Event::LlmCall(Box::new(event)));
        tell(&self.events, reached);
    }
}

/// Tells that a cap is reached, if it is.
pub(crate) fn tell(events: &Events, reached: Option<Reached>) {
    if let Some(Reached { which, at_cap, message }) = reached {
        events(Event::CapReached { which, at_cap, message });
    }
}

impl Drop for Meter {
    /// The client is gone, or the connection broke.
    fn drop(&mut self) {
        self.finish(false);
    }
}

/// A body that is counted.
pub(crate) struct Metered {
    inner: Body,
    meter: Meter,
}

impl Metered {
    pub fn new(inner: Body, meter: Meter) -> Self {
        Self { inner, meter }
    }
}

impl HttpBody for Metered {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.meter.push(data);
                }
                // Whoever reads a body of known length need not ask for its end.
                if self.inner.is_end_stream() {
                    self.meter.finish(true);
                }
            }
            Some(Err(_)) => self.meter.finish(false),
            None => self.meter.finish(true),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
