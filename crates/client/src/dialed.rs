//! Connections to ports inside, and from ports and sockets there.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use sloplet_wire::{Channel, Request};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::stream::{Incoming, StreamHandle};
use crate::{Agent, ClientError};

/// A port or a Unix socket inside that is listened on. Dropping it closes the port or removes the socket; connections that were
/// taken go on.
pub struct Listener {
    pub(crate) agent: Agent,
    /// What asks for the next connection.
    pub(crate) next: Request,
    pub(crate) _stream: StreamHandle,
}

impl Listener {
    /// The next connection to it.
    pub async fn accept(&self) -> Result<Connection, ClientError> {
        self.agent.connected(&self.next).await
    }

    /// The port, if it is one.
    pub fn port(&self) -> Option<u16> {
        match self.next {
            Request::Accept { port } => Some(port),
            _ => None,
        }
    }
}

/// A connection to a port inside, or from a port or a socket there. Each half closes by itself; dropping it closes both at once, and bytes still
/// under way may be lost.
pub struct Connection {
    stream: StreamHandle,
    rest: Bytes,
    received_end: bool,
    sent_end: bool,
}

impl Connection {
    pub(crate) fn new(stream: StreamHandle) -> Self {
        Self { stream, rest: Bytes::new(), received_end: false, sent_end: false }
    }

    fn finish_if_over(&self) {
        if self.received_end && self.sent_end {
            self.stream.finish();
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.rest.is_empty() && !this.received_end {
            match ready!(this.stream.poll_next(cx)).map_err(ClientError::into_io)? {
                Incoming::Data(Channel::Output, bytes) => this.rest = bytes,
                Incoming::Data(..) => {
                    return Poll::Ready(Err(this.stream.violation("error output of a connection").into_io()));
                }
                Incoming::OutputEnd => {
                    this.received_end = true;
                    this.finish_if_over();
                }
                Incoming::Event(event) => {
                    let error = match this.stream.expect::<()>(event) {
                        Err(error) => error,
                        Ok(()) => this.stream.violation("`Done` on an open connection"),
                    };
                    return Poll::Ready(Err(error.into_io()));
                }
            }
        }
        let count = this.rest.len().min(out.remaining());
        out.put_slice(&this.rest[..count]);
        this.rest.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if self.sent_end {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let sender = self.stream.sender();
        let count = ready!(sender.poll_reserve(cx, data.len())).map_err(ClientError::into_io)?;
        sender.send_reserved(Bytes::copy_from_slice(&data[..count])).map_err(ClientError::into_io)?;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // What was accepted is written as soon as the socket takes it.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.sent_end {
            this.sent_end = true;
            this.stream.sender().send_end().map_err(ClientError::into_io)?;
            this.finish_if_over();
        }
        Poll::Ready(Ok(()))
    }
}
