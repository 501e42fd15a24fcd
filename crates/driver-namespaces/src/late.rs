//! A stream that is still on its way: whoever keeps the sandbox may be frozen, and nobody waits for that one but those who
//! want to read or write.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

type Arriving = Shared<BoxFuture<'static, Result<Arc<Mutex<Option<UnixStream>>>, Arc<io::Error>>>>;

/// A stream that arrives later.
pub struct LateStream {
    stream: Option<UnixStream>,
    failure: Option<Arc<io::Error>>,
    /// One for each direction: each has its own waker.
    reading: Arriving,
    writing: Arriving,
}

impl LateStream {
    /// What the future brings.
    pub fn new(arriving: impl Future<Output = io::Result<UnixStream>> + Send + 'static) -> Self {
        let arriving = async move { arriving.await.map(|stream| Arc::new(Mutex::new(Some(stream)))).map_err(Arc::new) };
        let reading = arriving.boxed().shared();
        Self { stream: None, failure: None, writing: reading.clone(), reading }
    }

    fn arrived(&mut self, reads: bool, context: &mut Context<'_>) -> Poll<io::Result<Pin<&mut UnixStream>>> {
        if self.stream.is_none() && self.failure.is_none() {
            // Each keeps its waker with its own handle, and none may be asked again once it has told.
            let arriving = if reads { &mut self.reading } else { &mut self.writing };
            match ready!(arriving.poll_unpin(context)) {
                Ok(place) => self.stream = place.lock().unwrap_or_else(PoisonError::into_inner).take(),
                Err(error) => self.failure = Some(error),
            }
        }
        match (&mut self.stream, &self.failure) {
            (Some(stream), _) => Poll::Ready(Ok(Pin::new(stream))),
            (None, Some(error)) => Poll::Ready(Err(io::Error::new(error.kind(), error.to_string()))),
            (None, None) => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncRead for LateStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.arrived(true, context))?.poll_read(context, buffer)
    }
}

impl AsyncWrite for LateStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.arrived(false, context))?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.arrived(false, context))?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.arrived(false, context))?.poll_shutdown(context)
    }
}
