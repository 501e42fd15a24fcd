//! A connection that must begin to speak in time.
//!
//! HTTP's headers have a time limit of their own, but it runs only once it is known which version is spoken; for the bytes that tell,
//! the library would wait without end.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::places::Place;

/// Bytes after which the version is known: the greeting of HTTP/2. No request of HTTP/1.1 is shorter.
const BYTES: usize = 24;

/// A stream whose first bytes have to come within a time, and its place: it has that for as long as the stream is there,
/// whatever becomes of the connection.
pub(crate) struct Opening<S> {
    stream: S,
    _place: Option<Place>,
    missing: usize,
    /// While some are missing.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Opening<S> {
    pub(crate) fn new(stream: S, place: Option<Place>, within: Duration) -> Self {
        Self { stream, _place: place, missing: BYTES, deadline: Some(Box::pin(tokio::time::sleep(within))) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Opening<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, out);
        let Some(deadline) = &mut self.deadline else { return read };
        if read.is_pending() && deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        self.missing = self.missing.saturating_sub(out.filled().len() - before);
        if self.missing == 0 {
            self.deadline = None;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Opening<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const SHORT: Duration = Duration::from_millis(30);

    #[tokio::test]
    async fn whoever_does_not_begin_is_let_go_and_whoever_does_is_not() {
        for said in [&b""[..], b"PRI * HT", &[b'x'; BYTES - 1]] {
            let (mut theirs, ours) = tokio::io::duplex(64);
            theirs.write_all(said).await.unwrap();
            let mut opening = Opening::new(ours, None, SHORT);
            let mut heard = Vec::new();
            let ended = opening.read_to_end(&mut heard).await;
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(heard, said);
        }
        let (mut theirs, ours) = tokio::io::duplex(64);
        theirs.write_all(&[b'x'; BYTES]).await.unwrap();
        let mut opening = Opening::new(ours, None, SHORT);
        opening.read_exact(&mut [0; BYTES]).await.unwrap();
        let more = tokio::spawn(async move { opening.read_u8().await.unwrap() });
        tokio::time::sleep(SHORT * 3).await;
        theirs.write_all(b"y").await.unwrap();
        assert_eq!(more.await.unwrap(), b'y');
    }
}
