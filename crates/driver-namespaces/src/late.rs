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
    /// One for each direction: each has its own waker.
    reading: Arriving,
    writing: Arriving,
}

impl LateStream {
    /// What the future brings.
    pub fn new(arriving: impl Future<Output = io::Result<UnixStream>> + Send + 'static) -> Self {
        let arriving = async move { arriving.await.map(|stream| Arc::new(Mutex::new(Some(stream)))).map_err(Arc::new) };
        let reading = arriving.boxed().shared();
        Self { stream: None, writing: reading.clone(), reading }
    }

    fn arrived(&mut self, reads: bool, context: &mut Context<'_>) -> Poll<io::Result<Pin<&mut UnixStream>>> {
        if self.stream.is_none() {
            let arriving = if reads { &mut self.reading } else { &mut self.writing };
            // A future that has told its result must not be asked again.
            let mut asked = arriving.clone();
            let arrived = match arriving.peek() {
                Some(known) => known.clone(),
                None => ready!(asked.poll_unpin(context)),
            };
            let place = arrived.map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
            self.stream = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        match &mut self.stream {
            Some(stream) => Poll::Ready(Ok(Pin::new(stream))),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
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
