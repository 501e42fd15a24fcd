//! Files and archives on their way out of and into a sandbox.

use std::future::poll_fn;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use sloplet_wire::Channel;
use tokio::io::{AsyncRead, ReadBuf};

use crate::ClientError;
use crate::stream::{Answer, Incoming, StreamHandle};

/// Bytes coming out of a sandbox, as chunks or as [`AsyncRead`]. Dropping it stops the transfer.
pub struct Download {
    stream: StreamHandle,
    rest: Bytes,
    over: bool,
}

impl Download {
    pub(crate) fn new(stream: StreamHandle) -> Self {
        Self { stream, rest: Bytes::new(), over: false }
    }

    /// The next bytes; `None` once all have come and the agent has said so. May be dropped without loss.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// As [`Self::chunk`], for use in a hand-written future.
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ClientError>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.rest))));
        }
        while !self.over {
            match ready!(self.stream.poll_next(cx))? {
                Incoming::Data(Channel::Output, bytes) => return Poll::Ready(Ok(Some(bytes))),
                Incoming::Data(..) => return Poll::Ready(Err(self.stream.violation("error output of a transfer"))),
                Incoming::OutputEnd => {}
                Incoming::Event(event) => {
                    self.stream.expect::<()>(event)?;
                    self.stream.finish();
                    self.over = true;
                }
            }
        }
        Poll::Ready(Ok(None))
    }
}

impl AsyncRead for Download {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(mut bytes) = ready!(this.poll_chunk(cx)).map_err(ClientError::into_io)? {
            let count = bytes.len().min(out.remaining());
            out.put_slice(&bytes[..count]);
            bytes.advance(count);
            this.rest = bytes;
        }
        Poll::Ready(Ok(()))
    }
}

/// Bytes going into a sandbox, answered with `T` when they are in place. Dropping it before [`Self::finish`] abandons
/// the transfer.
pub struct Upload<T> {
    stream: StreamHandle,
    answer: PhantomData<fn() -> T>,
}

impl<T: Answer> Upload<T> {
    pub(crate) fn new(stream: StreamHandle) -> Self {
        Self { stream, answer: PhantomData }
    }

    /// Sends all of it, at the pace of the agent; fails as soon as the agent has given up.
    pub async fn write(&mut self, data: impl Into<Bytes>) -> Result<(), ClientError> {
        match self.stream.sender().send_all(data.into()).await {
            Err(ClientError::InputClosed) => Err(self.early_answer().await),
            result => result,
        }
    }

    /// Says that this was all, and waits for the answer.
    pub async fn finish(self) -> Result<T, ClientError> {
        match self.stream.sender().send_end() {
            Ok(()) => self.stream.complete().await,
            Err(_) => Err(self.early_answer().await),
        }
    }

    /// Why the agent takes no more.
    async fn early_answer(&self) -> ClientError {
        match self.stream.answer::<T>().await {
            Err(error) => error,
            Ok(_) => self.stream.violation("success before the end of the upload"),
        }
    }
}
