//! The one task of a connection: reads, cuts into frames, hands each to its stream.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use sloplet_wire::{Fatal, HEADER_LEN, Header, Hello, Kind, VERSION, message};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::ClientError;
use crate::inbound::{COPY_BELOW, Payload};
use crate::link::Link;

/// Room for one read: from small, so that idle connections cost little, to large under load.
const MIN_READ: usize = 16 * 1024;
const MAX_READ: usize = 512 * 1024;

/// Bytes of one turn. Then those who wait for them come first: otherwise what they have not taken yet piles up, for as many
/// streams as the agent has, while the socket always has more.
const TURN: usize = 1024 * 1024;

/// A ping carries at most this much.
const MAX_PING: usize = 8;

/// The read half of a connection, until the connection is over.
pub(crate) struct Driver<R> {
    reader: R,
    buffer: BytesMut,
    read_size: usize,
    link: Arc<Link>,
}

/// Reads the agent's first frame: whether there is anything to talk to.
pub(crate) async fn greet<R: AsyncRead + Unpin>(reader: &mut R, buffer: &mut BytesMut) -> Result<Hello, ClientError> {
    loop {
        if let Some(header) = whole_frame(buffer)? {
            buffer.advance(HEADER_LEN);
            let payload = buffer.split_to(header.len as usize);
            return match header.kind {
                Kind::Hello => {
                    let hello: Hello = message::from_bytes(&payload, "hello")?;
                    if hello.version != VERSION {
                        return Err(ClientError::Version { agent: hello.version });
                    }
                    Ok(hello)
                }
                Kind::Fatal => Err(ClientError::SetUp(message::from_bytes::<Fatal>(&payload, "fatal")?)),
                _ => Err(ClientError::Unexpected("the first frame is no greeting")),
            };
        }
        buffer.reserve(MIN_READ);
        if reader.read_buf(buffer).await? == 0 {
            return Err(ClientError::Closed);
        }
    }
}

/// The header of the frame at the front of `buffer`, if all of the frame is there.
fn whole_frame(buffer: &[u8]) -> Result<Option<Header>, ClientError> {
    let Some(head) = buffer.first_chunk::<HEADER_LEN>() else {
        return Ok(None);
    };
    let header = Header::parse(head)?;
    if header.kind == Kind::Request {
        // Before its payload, which may be longer than that of any frame an agent may send.
        return Err(ClientError::Unexpected("a frame that only opens things"));
    }
    Ok((buffer.len() >= HEADER_LEN + header.len as usize).then_some(header))
}

impl<R> Driver<R> {
    /// `buffer` is what was read beyond the greeting.
    pub(crate) fn new(reader: R, buffer: BytesMut, link: Arc<Link>) -> Self {
        Self { reader, buffer, read_size: MIN_READ, link }
    }

    /// Room for the next read, and for the rest of the frame that has begun.
    fn make_room(&mut self) {
        let frame = match self.buffer.first_chunk::<HEADER_LEN>().map(Header::parse) {
            Some(Ok(header)) => HEADER_LEN + header.len as usize,
            _ => 0,
        };
        let missing = frame.saturating_sub(self.buffer.len());
        if self.buffer.capacity() - self.buffer.len() < missing.max(self.read_size / 2) {
            self.buffer.reserve(missing.max(self.read_size));
        }
    }

    /// Less is coming than there is room for.
    fn calm_down(&mut self) {
        if self.read_size > MIN_READ {
            self.read_size /= 2;
            if self.buffer.is_empty() {
                self.buffer = BytesMut::new();
            }
        }
    }

    fn dispatch(&mut self) -> Result<(), ClientError> {
        while let Some(header) = whole_frame(&self.buffer)? {
            let len = header.len as usize;
            self.buffer.advance(HEADER_LEN);
            if header.kind == Kind::Data && len >= COPY_BELOW {
                let payload = self.buffer.split_to(len).freeze();
                if let Some(stream) = self.link.find(header.stream)? {
                    stream.data(header.channel, Payload::Owned(payload))?;
                }
            } else {
                handle(&self.link, header, &self.buffer[..len])?;
                self.buffer.advance(len);
            }
        }
        Ok(())
    }
}

fn handle(link: &Link, header: Header, payload: &[u8]) -> Result<(), ClientError> {
    match header.kind {
        Kind::Hello | Kind::Request => Err(ClientError::Unexpected("a frame that only opens things")),
        Kind::Fatal => Err(ClientError::SetUp(message::from_bytes(payload, "fatal")?)),
        Kind::Ping if payload.len() > MAX_PING => Err(ClientError::Unexpected("an oversized ping")),
        Kind::Ping => {
            link.pong(payload);
            Ok(())
        }
        Kind::Pong => link.ponged(payload),
        Kind::Event | Kind::Data | Kind::Window | Kind::End | Kind::Reset => {
            let Some(stream) = link.find(header.stream)? else {
                return Ok(());
            };
            match header.kind {
                Kind::Event => stream.event(payload),
                Kind::Data => stream.data(header.channel, Payload::Borrowed(payload))?,
                Kind::Window => stream.window(header.channel, payload)?,
                Kind::End => stream.ended(header.channel)?,
                _ => {
                    link.remove(header.stream);
                    stream.end(ClientError::Reset);
                }
            }
            Ok(())
        }
    }
}

impl<R: AsyncRead + Unpin> Future for Driver<R> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.link.drive(cx);
        // Frames may have come together with the greeting.
        if let Err(error) = this.dispatch() {
            this.link.fail(error);
        }
        let mut received = 0;
        loop {
            if this.link.is_closing() {
                return Poll::Ready(());
            }
            this.make_room();
            let error = match pin!(this.reader.read_buf(&mut this.buffer)).poll(cx) {
                Poll::Pending => {
                    if received < this.read_size / 4 {
                        this.calm_down();
                    }
                    return Poll::Pending;
                }
                Poll::Ready(Ok(0)) => ClientError::Closed,
                Poll::Ready(Ok(count)) => {
                    received += count;
                    if count >= this.read_size / 2 {
                        this.read_size = MAX_READ.min(this.read_size * 2);
                    }
                    match this.dispatch() {
                        Ok(()) if received >= TURN => {
                            cx.waker().wake_by_ref();
                            return Poll::Pending;
                        }
                        Ok(()) => continue,
                        Err(error) => error,
                    }
                }
                Poll::Ready(Err(error)) => error.into(),
            };
            this.link.fail(error);
        }
    }
}

impl<R> Drop for Driver<R> {
    fn drop(&mut self) {
        // Also reached when the runtime shuts down under it.
        self.link.fail(ClientError::Closed);
    }
}
