//! Output, on its way out.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::sync::{mpsc, oneshot};

/// What `--json` collects; at most this much of each stream is held.
const CAPTURE_LIMIT: usize = 64 << 20;

/// Output that was captured.
#[derive(Default)]
pub struct Captured {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Out,
    Err,
}

/// Where output goes, and how much more of it may.
pub struct Sink {
    left: u64,
    /// Whether some was dropped.
    pub truncated: bool,
    /// The captured output, if it is captured.
    pub captured: Option<Captured>,
    writer: Option<Writer>,
}

/// What a pipe takes at once when it says that it takes something.
const PIPE_BUF: usize = 4096;

impl Sink {
    pub fn new(limit: u64, capture: bool) -> Self {
        Self { left: limit, truncated: false, captured: capture.then(Captured::default), writer: None }
    }

    /// Passes bytes on. Whoever reads them may be slow or never read at all: this waits without blocking the thread.
    pub async fn write(&mut self, stream: Stream, mut bytes: Bytes) -> io::Result<()> {
        let allowed = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= allowed as u64;
        self.truncated |= allowed < bytes.len();
        bytes.truncate(allowed);
        if let Some(captured) = &mut self.captured {
            let place = if stream == Stream::Out { &mut captured.stdout } else { &mut captured.stderr };
            self.truncated |= append(place, &bytes);
            return Ok(());
        }
        match &mut self.writer {
            // A little output, as most commands have, is not worth a thread.
            None if bytes.len() <= PIPE_BUF && takes_more(stream) => write_through(stream, &bytes),
            writer => writer.get_or_insert_with(Writer::start).write(stream, bytes).await,
        }
    }

    /// Waits until everything has been passed on.
    pub async fn flush(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.finish().await;
        }
    }
}

/// A thread that may block on our output, so that nobody else does.
struct Writer {
    work: mpsc::Sender<(Stream, Bytes)>,
    failure: Arc<Mutex<Option<io::Error>>>,
    done: oneshot::Receiver<()>,
}

impl Writer {
    fn start() -> Self {
        let (work, mut queue) = mpsc::channel::<(Stream, Bytes)>(2);
        let (finished, done) = oneshot::channel();
        let failure = Arc::new(Mutex::new(None));
        let told = failure.clone();
        std::thread::spawn(move || {
            while let Some((stream, bytes)) = queue.blocking_recv() {
                if let Err(error) = write_through(stream, &bytes) {
                    *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    break;
                }
            }
            let _ = finished.send(());
        });
        Self { work, failure, done }
    }

    async fn write(&mut self, stream: Stream, bytes: Bytes) -> io::Result<()> {
        match self.work.send((stream, bytes)).await {
            Ok(()) => Ok(()),
            Err(_) => {
                let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
                Err(failure.unwrap_or_else(|| io::ErrorKind::BrokenPipe.into()))
            }
        }
    }

    async fn finish(self) {
        drop(self.work);
        let _ = self.done.await;
    }
}

fn descriptor(stream: Stream) -> BorrowedFd<'static> {
    if stream == Stream::Out { rustix::stdio::stdout() } else { rustix::stdio::stderr() }
}

/// Whether a small write would not block.
fn takes_more(stream: Stream) -> bool {
    let fd = descriptor(stream);
    let mut wait = [PollFd::new(&fd, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut wait, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Straight to the descriptor: the standard library would look for line ends in every byte.
fn write_through(stream: Stream, mut bytes: &[u8]) -> io::Result<()> {
    let fd = descriptor(stream);
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                // Somebody made our output non-blocking: wait until it takes more.
                let _ = poll(&mut [PollFd::new(&fd, PollFlags::OUT)], None);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Appends up to the limit; true if something was dropped.
fn append(to: &mut Vec<u8>, bytes: &[u8]) -> bool {
    let allowed = bytes.len().min(CAPTURE_LIMIT - to.len());
    to.extend_from_slice(&bytes[..allowed]);
    allowed < bytes.len()
}
