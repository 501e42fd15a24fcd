//! Frames on their way to the agent.
//!
//! Whoever sends writes to the socket itself. Only when the socket is full does the rest wait here, for the driver:
//! each write is polled with the driver's waker, so the runtime wakes the driver as soon as there is room again.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes, BytesMut};
use sloplet_wire::{Header, Kind};
use tokio::io::AsyncWrite;

use crate::ClientError;

/// Payloads below this are copied next to their header; larger ones are written from where they are.
const COPY_BELOW: usize = 8 * 1024;

/// Bulk data waits while more than this is queued, so that an agent that grants credit but does not read cannot make
/// the queue grow.
const HIGH_WATER: usize = 512 * 1024;

/// Pings are not answered while more than this is queued: their sender does not read.
const PONG_LIMIT: usize = 64 * 1024;

/// Buffers offered to the kernel at once.
const MAX_SLICES: usize = 64;

/// The write half of a connection and what waits for it.
pub(crate) struct Outgoing {
    /// Gone once writing is over: a socket is closed only when both its halves are.
    writer: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    /// Whole buffers, oldest first; then `tail`, into which small frames are gathered.
    queue: VecDeque<Bytes>,
    tail: BytesMut,
    queued: usize,
    unflushed: bool,
    driver: Waker,
    /// Bulk senders waiting for the queue to drain.
    waiting: Vec<Waker>,
    /// Set once writing has failed. Reading goes on: the agent's last words may still be in the socket.
    dead: Option<ClientError>,
}

impl Outgoing {
    pub(crate) fn new(writer: Box<dyn AsyncWrite + Send + Unpin>) -> Self {
        Self {
            writer: Some(writer),
            queue: VecDeque::new(),
            tail: BytesMut::new(),
            queued: 0,
            unflushed: false,
            // Until the driver has been polled once; its first poll flushes.
            driver: Waker::noop().clone(),
            waiting: Vec::new(),
            dead: None,
        }
    }

    /// Queues a frame and writes as much as the socket takes.
    pub(crate) fn send(&mut self, kind: Kind, stream: u32, channel: u8, payload: Bytes) -> Result<(), ClientError> {
        if let Some(error) = &self.dead {
            return Err(error.clone());
        }
        self.tail.extend_from_slice(&Header::new(kind, stream, channel, payload.len()).to_bytes());
        self.queued += sloplet_wire::HEADER_LEN + payload.len();
        if payload.len() < COPY_BELOW {
            self.tail.extend_from_slice(&payload);
        } else {
            self.queue.push_back(self.tail.split().freeze());
            self.queue.push_back(payload);
        }
        self.flush();
        self.dead.clone().map_or(Ok(()), Err)
    }

    /// Answers a ping, unless its sender does not read.
    pub(crate) fn pong(&mut self, payload: &[u8]) {
        if self.queued <= PONG_LIMIT {
            // A failing write is noticed by whoever writes something that matters.
            let _ = self.send(Kind::Pong, 0, 0, Bytes::copy_from_slice(payload));
        }
    }

    /// Whether bulk data may be queued.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        if let Some(error) = &self.dead {
            return Poll::Ready(Err(error.clone()));
        }
        if self.queued < HIGH_WATER {
            return Poll::Ready(Ok(()));
        }
        if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// The driver's turn: remembers its waker and writes.
    pub(crate) fn drive(&mut self, driver: &Waker) {
        self.driver.clone_from(driver);
        self.flush();
    }

    /// Makes the driver look again.
    pub(crate) fn wake_driver(&self) {
        self.driver.wake_by_ref();
    }

    fn flush(&mut self) {
        let mut cx = Context::from_waker(&self.driver);
        let Some(writer) = &mut self.writer else { return };
        let mut writer = Pin::new(&mut **writer);
        let failed: Option<io::Error> = loop {
            if self.queued == 0 {
                if !self.unflushed {
                    break None;
                }
                match writer.as_mut().poll_flush(&mut cx) {
                    Poll::Pending => break None,
                    Poll::Ready(Ok(())) => self.unflushed = false,
                    Poll::Ready(Err(error)) => break Some(error),
                }
                continue;
            }
            let wrote = if self.queue.is_empty() {
                writer.as_mut().poll_write(&mut cx, &self.tail)
            } else {
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                let buffers = self.queue.iter().map(|bytes| &bytes[..]).chain([&self.tail[..]]);
                let mut used = 0;
                for (slice, buffer) in slices.iter_mut().zip(buffers) {
                    *slice = IoSlice::new(buffer);
                    used += 1;
                }
                writer.as_mut().poll_write_vectored(&mut cx, &slices[..used])
            };
            match wrote {
                Poll::Pending => break None,
                Poll::Ready(Ok(0)) => break Some(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(mut wrote)) => {
                    self.queued -= wrote;
                    self.unflushed = true;
                    while let Some(front) = self.queue.front_mut().filter(|_| wrote > 0) {
                        let step = wrote.min(front.len());
                        front.advance(step);
                        wrote -= step;
                        if front.is_empty() {
                            self.queue.pop_front();
                        }
                    }
                    self.tail.advance(wrote);
                }
                Poll::Ready(Err(error)) => break Some(error),
            }
        };
        if let Some(error) = failed {
            self.fail(error.into());
        }
        if self.queued < HIGH_WATER {
            self.waiting.drain(..).for_each(Waker::wake);
        }
    }

    /// Gives up writing; everybody who waits is told.
    pub(crate) fn fail(&mut self, error: ClientError) {
        self.dead.get_or_insert(error);
        self.writer = None;
        self.queue.clear();
        self.tail.clear();
        self.queued = 0;
        self.unflushed = false;
        self.waiting.drain(..).for_each(Waker::wake);
    }
}
