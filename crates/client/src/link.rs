//! What all streams of one connection share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use sloplet_wire::{Hello, Kind, MAX_PAYLOAD, MAX_REQUEST, Request, message};
use tokio::io::AsyncWrite;
use tokio::sync::oneshot;

use crate::ClientError;
use crate::outgoing::Outgoing;
use crate::stream::{Backlog, Stream, StreamHandle};

/// Locks, whatever happened to an earlier holder: no state here is left half-changed by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The shared state of a connection. Its locks are held one at a time, never nested.
pub(crate) struct Link {
    outgoing: Mutex<Outgoing>,
    table: Mutex<Table>,
    /// The driver is to stop: the last user is gone or the protocol was broken.
    closing: AtomicBool,
    /// The longest request that the agent takes; 0 until it has greeted.
    longest_request: AtomicUsize,
}

#[derive(Default)]
struct Table {
    open: HashMap<u32, Arc<Stream>>,
    /// Streams opened so far, which is also the number of the last one until numbers wrap.
    opened: u64,
    pings: HashMap<u64, oneshot::Sender<()>>,
    pinged: u64,
    /// Why the connection is over.
    over: Option<ClientError>,
}

impl Link {
    pub(crate) fn new(writer: Box<dyn AsyncWrite + Send + Unpin>) -> Self {
        Self {
            outgoing: Mutex::new(Outgoing::new(writer)),
            table: Mutex::default(),
            closing: AtomicBool::new(false),
            longest_request: AtomicUsize::new(0),
        }
    }

    /// Takes note of what the agent says of itself.
    pub(crate) fn greeted(&self, hello: &Hello) {
        let longest = hello.longest_request.map_or(MAX_PAYLOAD, |bytes| bytes as usize);
        self.longest_request.store(longest.clamp(MAX_PAYLOAD, MAX_REQUEST), Ordering::Release);
    }

    /// The longest request that the agent takes; `None` until it has greeted.
    pub(crate) fn longest_request(&self) -> Option<usize> {
        Some(self.longest_request.load(Ordering::Acquire)).filter(|longest| *longest > 0)
    }

    /// Sends a frame; the payload fits.
    pub(crate) fn send(&self, kind: Kind, stream: u32, channel: u8, payload: Bytes) -> Result<(), ClientError> {
        lock(&self.outgoing).send(kind, stream, channel, payload)
    }

    pub(crate) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        lock(&self.outgoing).poll_ready(cx)
    }

    pub(crate) fn drive(&self, cx: &Context<'_>) {
        lock(&self.outgoing).drive(cx.waker());
    }

    pub(crate) fn pong(&self, payload: &[u8]) {
        lock(&self.outgoing).pong(payload);
    }

    /// The stream with that number; `None` if it is over already.
    pub(crate) fn find(&self, id: u32) -> Result<Option<Arc<Stream>>, ClientError> {
        let table = lock(&self.table);
        match table.open.get(&id) {
            Some(stream) => Ok(Some(stream.clone())),
            // Frames may have been under way when the stream was closed here.
            None if id != 0 && u64::from(id) <= table.opened => Ok(None),
            None => Err(ClientError::Unexpected("a frame on a stream that was never opened")),
        }
    }

    /// Forgets a stream; whether it was open.
    pub(crate) fn remove(&self, id: u32) -> bool {
        let removed = lock(&self.table).open.remove(&id);
        removed.is_some()
    }

    /// Sends a ping; the receiver hears of its answer.
    pub(crate) fn ping(&self) -> Result<oneshot::Receiver<()>, ClientError> {
        let (sender, receiver) = oneshot::channel();
        let number = {
            let mut table = lock(&self.table);
            if let Some(error) = &table.over {
                return Err(error.clone());
            }
            table.pings.retain(|_, sender| !sender.is_closed());
            table.pinged += 1;
            let number = table.pinged;
            table.pings.insert(number, sender);
            number
        };
        self.send(Kind::Ping, 0, 0, Bytes::copy_from_slice(&number.to_le_bytes()))?;
        Ok(receiver)
    }

    /// Takes the answer to a ping; one that nobody waits for any more is ignored.
    pub(crate) fn ponged(&self, payload: &[u8]) -> Result<(), ClientError> {
        let Ok(number) = payload.try_into() else {
            return Err(ClientError::Unexpected("a pong that answers no ping"));
        };
        if let Some(sender) = lock(&self.table).pings.remove(&u64::from_le_bytes(number)) {
            let _ = sender.send(());
        }
        Ok(())
    }

    /// Why the connection is over, `Closed` if it is not known.
    pub(crate) fn reason(&self) -> ClientError {
        lock(&self.table).over.clone().unwrap_or(ClientError::Closed)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Ends the connection; everyone who waits, and everyone who asks later, is told the first reason.
    pub(crate) fn fail(&self, error: ClientError) {
        let streams = {
            let mut table = lock(&self.table);
            if table.over.is_some() {
                return;
            }
            table.over = Some(error.clone());
            table.pings.clear();
            std::mem::take(&mut table.open)
        };
        for stream in streams.values() {
            stream.end(error.clone());
        }
        lock(&self.outgoing).fail(error);
        self.close();
    }

    fn close(&self) {
        self.closing.store(true, Ordering::Release);
        lock(&self.outgoing).wake_driver();
    }
}

/// Held by every handle and every stream, not by the driver: when the last is dropped, the connection closes.
pub(crate) struct LinkOwner(pub(crate) Arc<Link>);

impl Drop for LinkOwner {
    fn drop(&mut self) {
        // The write half goes at once, so that the agent sees the end even if the runtime no longer runs.
        lock(&self.0.outgoing).fail(ClientError::Closed);
        self.0.close();
    }
}

impl LinkOwner {
    /// Opens a stream with a request.
    pub(crate) fn open(self: &Arc<Self>, request: &Request, backlog: Backlog) -> Result<StreamHandle, ClientError> {
        let payload = message::to_bytes(request);
        let most = self.0.longest_request().unwrap_or(MAX_PAYLOAD);
        if payload.len() > most {
            return Err(ClientError::TooLarge { bytes: payload.len(), most });
        }
        let stream = Arc::new(Stream::new(backlog));
        let id = {
            let mut table = lock(&self.0.table);
            if let Some(error) = &table.over {
                return Err(error.clone());
            }
            let id = loop {
                table.opened += 1;
                let id = table.opened as u32;
                if id != 0 && !table.open.contains_key(&id) {
                    break id;
                }
            };
            table.open.insert(id, stream.clone());
            id
        };
        let handle = StreamHandle::new(id, stream, self.clone());
        self.0.send(Kind::Request, id, 0, payload.into())?;
        Ok(handle)
    }
}
