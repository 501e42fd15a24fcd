//! Moving bytes between two connections, as fast as the kernel can.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// What is read at once by copying. On the stack: a connection that waits holds no buffer.
const BLOCK: usize = 16 << 10;

/// After so many bytes in one direction a pipe is worth its two descriptors.
const SPLICE_AFTER: u64 = 256 << 10;

/// What a pipe holds. The kernel may give less.
const PIPE: usize = 256 << 10;

/// Waits until there is something to read, and appends it. 0: the end.
pub(crate) async fn read_more(from: &TcpStream, into: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        from.readable().await?;
        into.reserve(4096);
        match from.try_read_buf(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}

/// Writes all of it.
pub(crate) async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Says that nothing more comes.
pub(crate) fn finish(to: &TcpStream) {
    // The other end may be gone already.
    let _ = rustix::net::shutdown(to, rustix::net::Shutdown::Write);
}

/// Waits a moment for what was passed on already to arrive: a reset would take it back.
pub(crate) async fn delivered(to: &TcpStream) {
    for _ in 0..40 {
        match sloplet_sys::sending::undelivered(to.as_fd()) {
            Ok(bytes) if bytes > 0 => tokio::time::sleep(Duration::from_millis(5)).await,
            _ => return,
        }
    }
}

/// Makes the other end see a reset, not an end, once the connection is dropped.
pub(crate) fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

/// Moves bytes until `from` ends, then ends `to`. `gate` sees how many there are before any is passed on, and, for the
/// first ones, which.
pub(crate) async fn pump(
    from: &TcpStream,
    to: &TcpStream,
    mut gate: impl FnMut(usize, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut moved = 0u64;
    loop {
        from.readable().await?;
        let mut rest = Vec::new();
        match copy_once(from, to, &mut rest, &mut gate) {
            Ok(0) => break,
            Ok(count) => {
                write_all(to, &rest).await?;
                moved += count as u64;
                if moved > SPLICE_AFTER
                    && count == BLOCK
                    && let Ok((read, write)) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
                {
                    drop(rest);
                    return splice_on(from, to, (read, write), gate).await;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    finish(to);
    Ok(())
}

/// One read and one write; what the write did not take is left in `rest`. `WouldBlock`: nothing to read.
fn copy_once(
    from: &TcpStream,
    to: &TcpStream,
    rest: &mut Vec<u8>,
    gate: &mut impl FnMut(usize, &[u8]) -> io::Result<()>,
) -> io::Result<usize> {
    let mut block = [0; BLOCK];
    let count = from.try_read(&mut block)?;
    if count == 0 {
        return Ok(0);
    }
    let bytes = &block[..count];
    gate(count, bytes)?;
    let written = match to.try_write(bytes) {
        Ok(written) => written,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => return Err(error),
    };
    rest.extend_from_slice(&bytes[written..]);
    Ok(count)
}

/// The same through a pipe: the bytes never come up to this process.
async fn splice_on(
    from: &TcpStream,
    to: &TcpStream,
    (read, write): (OwnedFd, OwnedFd),
    mut gate: impl FnMut(usize, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let _ = fcntl_setpipe_size(&write, PIPE);
    let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
    loop {
        // The pipe is empty here, so a call that would block waits for the connection.
        let fill = || Ok(splice(from, None, &write, None, PIPE, flags)?);
        let mut left = from.async_io(Interest::READABLE, fill).await?;
        if left == 0 {
            finish(to);
            return Ok(());
        }
        gate(left, &[])?;
        while left > 0 {
            let drain = || Ok(splice(&read, None, to, None, left, flags)?);
            left -= to.async_io(Interest::WRITABLE, drain).await?;
        }
    }
}

/// A connection whose first bytes were read already.
#[derive(Debug)]
pub(crate) struct Prefixed {
    prefix: Vec<u8>,
    used: usize,
    stream: Arc<TcpStream>,
}

impl Prefixed {
    pub(crate) fn new(prefix: Vec<u8>, stream: Arc<TcpStream>) -> Self {
        Self { prefix, used: 0, stream }
    }
}

impl AsyncRead for Prefixed {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let left = &self.prefix[self.used..];
        if !left.is_empty() {
            let count = left.len().min(buf.remaining());
            buf.put_slice(&left[..count]);
            self.used += count;
            if self.used == self.prefix.len() {
                self.prefix = Vec::new();
                self.used = 0;
            }
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            match self.stream.try_read(buf.initialize_unfilled()) {
                Ok(count) => {
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Prefixed {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.stream.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(self.stream.poll_write_ready(cx))?,
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        finish(&self.stream);
        Poll::Ready(Ok(()))
    }
}
