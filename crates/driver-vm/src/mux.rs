//! Many streams over one pipe: that of the machine's port. Either end opens streams, each with a word that says what it is for.
//!
//! Frames are those of the agent's protocol: `Request` opens a stream, `Data`, `Window`, `End` and `Reset` are what they are
//! there. A stream holds at most `WINDOW` bytes that nobody has read yet. An end that breaks the rules loses the whole pipe.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sloplet_client::wire::{Decoder, Frame, Kind, frame};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc};

/// Bytes that may be under way on a stream, in each direction.
const WINDOW: usize = 128 * 1024;

/// Streams that there are at a time.
const MOST: usize = 512;

/// Bytes of a frame; a guest's port takes no more at once.
const PIECE: usize = 32 * 1024;

/// Longest word that a stream is opened with.
const LONGEST: usize = 128;

/// Which end of the pipe this is: each numbers the streams that it opens in its own way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Beside QEMU.
    Host = 1,
    /// In the machine.
    Guest = 2,
}

/// One end of a pipe.
#[derive(Debug, Clone)]
pub struct Mux {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    outgoing: mpsc::UnboundedSender<Vec<u8>>,
    next: AtomicU32,
    /// `None` when the pipe is gone.
    streams: Mutex<Option<HashMap<u32, Entry>>>,
}

#[derive(Debug)]
struct Entry {
    inbox: mpsc::UnboundedSender<Piece>,
    credit: Arc<Semaphore>,
    /// Bytes that the other end may still send.
    granted: usize,
}

#[derive(Debug)]
enum Piece {
    Data(Vec<u8>),
    End,
}

/// A stream that the other end has opened.
#[derive(Debug)]
pub struct Opened {
    /// What it is for.
    pub purpose: String,
    /// The stream.
    pub stream: Stream,
}

impl Mux {
    /// Begins to talk over a pipe, given as pieces that come and go. Streams that the other end opens are handed to
    /// `opened`. Within a runtime.
    pub fn start(
        side: Side,
        incoming: mpsc::Receiver<Vec<u8>>,
        outgoing: mpsc::UnboundedSender<Vec<u8>>,
        opened: mpsc::UnboundedSender<Opened>,
    ) -> Self {
        let shared =
            Arc::new(Shared { outgoing, next: AtomicU32::new(side as u32), streams: Mutex::new(Some(HashMap::new())) });
        tokio::spawn(read(shared.clone(), side, incoming, opened));
        Self { shared }
    }

    /// Opens a stream.
    pub fn open(&self, purpose: &str) -> io::Result<Stream> {
        let id = self.shared.next.fetch_add(2, Ordering::Relaxed);
        let stream = self.shared.add(id)?;
        self.shared.send(Kind::Request, id, purpose.as_bytes());
        Ok(stream)
    }
}

impl Shared {
    fn streams(&self) -> MutexGuard<'_, Option<HashMap<u32, Entry>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, kind: Kind, id: u32, payload: &[u8]) {
        let mut bytes = Vec::with_capacity(payload.len() + frame::HEADER_LEN);
        frame::encode(&mut bytes, kind, id, 0, payload);
        // If nobody takes it, the pipe is gone, and the streams learn that from their inboxes.
        let _ = self.outgoing.send(bytes);
    }

    fn add(self: &Arc<Self>, id: u32) -> io::Result<Stream> {
        let mut streams = self.streams();
        let streams = streams.as_mut().ok_or_else(gone)?;
        if streams.len() >= MOST || streams.contains_key(&id) {
            return Err(io::Error::other("there are too many streams"));
        }
        let (inbox, pieces) = mpsc::unbounded_channel();
        let credit = Arc::new(Semaphore::new(WINDOW));
        streams.insert(id, Entry { inbox, credit: credit.clone(), granted: WINDOW });
        Ok(Stream {
            input: Input { shared: self.clone(), id, pieces, consumed: 0, over: false },
            output: Output { shared: self.clone(), id, credit, over: false },
        })
    }

    /// One frame of the other end's.
    fn take(self: &Arc<Self>, side: Side, frame: &Frame<'_>) -> io::Result<Option<Opened>> {
        let id = frame.header.stream;
        if frame.header.kind == Kind::Request {
            let theirs = id % 2 != side as u32 % 2 && id != 0;
            let purpose = String::from_utf8(frame.payload.to_vec()).map_err(io::Error::other)?;
            if !theirs || purpose.len() > LONGEST {
                return Err(io::Error::other("a stream that was opened wrongly"));
            }
            return Ok(match self.add(id) {
                Ok(stream) => Some(Opened { purpose, stream }),
                Err(_) => {
                    self.send(Kind::Reset, id, &[]);
                    None
                }
            });
        }
        let mut streams = self.streams();
        let streams = streams.as_mut().ok_or_else(gone)?;
        // What was on its way when this end gave the stream up.
        let Some(entry) = streams.get_mut(&id) else { return Ok(None) };
        match frame.header.kind {
            Kind::Data => {
                let left = entry.granted.checked_sub(frame.payload.len());
                entry.granted = left.ok_or_else(|| io::Error::other("more than was granted"))?;
                let _ = entry.inbox.send(Piece::Data(frame.payload.to_vec()));
            }
            Kind::Window => {
                let more: [u8; 4] = frame.payload.try_into().map_err(io::Error::other)?;
                let more = u32::from_le_bytes(more) as usize;
                if entry.credit.available_permits() + more > WINDOW {
                    return Err(io::Error::other("more credit than there is"));
                }
                entry.credit.add_permits(more);
            }
            Kind::End => drop(entry.inbox.send(Piece::End)),
            Kind::Reset => {
                if let Some(entry) = streams.remove(&id) {
                    entry.credit.close();
                }
            }
            _ => return Err(io::Error::other("a frame that does not belong here")),
        }
        Ok(None)
    }
}

async fn read(
    shared: Arc<Shared>,
    side: Side,
    mut incoming: mpsc::Receiver<Vec<u8>>,
    opened: mpsc::UnboundedSender<Opened>,
) {
    let mut decoder = Decoder::new();
    'pipe: while let Some(piece) = incoming.recv().await {
        decoder.extend(&piece);
        loop {
            let taken = match decoder.next_frame() {
                Ok(Some(frame)) => shared.take(side, &frame),
                Ok(None) => break,
                Err(_) => break 'pipe,
            };
            match taken {
                Ok(Some(stream)) => drop(opened.send(stream)),
                Ok(None) => {}
                Err(_) => break 'pipe,
            }
        }
    }
    let streams = shared.streams().take();
    for entry in streams.into_iter().flat_map(HashMap::into_values) {
        entry.credit.close();
    }
}

fn gone() -> io::Error {
    io::Error::from(io::ErrorKind::BrokenPipe)
}

/// One stream; its halves can be used apart. Dropped before its end, it is reset.
#[derive(Debug)]
pub struct Stream {
    input: Input,
    output: Output,
}

#[derive(Debug)]
struct Input {
    shared: Arc<Shared>,
    id: u32,
    pieces: mpsc::UnboundedReceiver<Piece>,
    consumed: usize,
    over: bool,
}

#[derive(Debug)]
struct Output {
    shared: Arc<Shared>,
    id: u32,
    credit: Arc<Semaphore>,
    over: bool,
}

impl Input {
    /// The next piece; `None` at the end. It is an error if the other end gave up.
    async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.over {
            return Ok(None);
        }
        match self.pieces.recv().await {
            Some(Piece::Data(bytes)) => Ok(Some(bytes)),
            Some(Piece::End) => {
                self.over = true;
                Ok(None)
            }
            None => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    /// So many bytes were handed on: as many may come.
    fn release(&mut self, count: usize) {
        self.consumed += count;
        if self.consumed < WINDOW / 4 {
            return;
        }
        let more = std::mem::take(&mut self.consumed);
        if let Some(entry) = self.shared.streams().as_mut().and_then(|streams| streams.get_mut(&self.id)) {
            entry.granted += more;
        }
        self.shared.send(Kind::Window, self.id, &(more as u32).to_le_bytes());
    }
}

impl Output {
    async fn write(&self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(PIECE) {
            let permits = self.credit.acquire_many(piece.len() as u32).await;
            permits.map_err(|_| io::Error::from(io::ErrorKind::ConnectionReset))?.forget();
            self.shared.send(Kind::Data, self.id, piece);
        }
        Ok(())
    }

    fn end(&mut self) {
        self.over = true;
        self.shared.send(Kind::End, self.id, &[]);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let there = self.input.shared.streams().as_mut().is_some_and(|all| all.remove(&self.input.id).is_some());
        if there && !(self.input.over && self.output.over) {
            self.input.shared.send(Kind::Reset, self.input.id, &[]);
        }
    }
}

impl Stream {
    /// Carries everything between this stream and another until both directions have ended. An error says that the other end
    /// gave up, or that the other stream broke.
    pub async fn carry(mut self, other: impl AsyncRead + AsyncWrite) -> io::Result<()> {
        let (mut from, mut to) = tokio::io::split(other);
        let (input, output) = (&mut self.input, &mut self.output);
        let outward = async {
            let mut space = vec![0; PIECE];
            loop {
                let count = from.read(&mut space).await?;
                if count == 0 {
                    output.end();
                    return io::Result::Ok(());
                }
                output.write(&space[..count]).await?;
            }
        };
        let inward = async {
            while let Some(bytes) = input.next().await? {
                to.write_all(&bytes).await?;
                input.release(bytes.len());
            }
            // Whoever has closed already needs not to be told.
            let _ = to.shutdown().await;
            Ok(())
        };
        tokio::try_join!(outward, inward).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::DuplexStream;

    /// Two ends of a pipe.
    fn pair() -> (Mux, mpsc::UnboundedReceiver<Opened>, Mux, mpsc::UnboundedReceiver<Opened>) {
        let end = |side, incoming, outgoing| {
            let (opened, theirs) = mpsc::unbounded_channel();
            (Mux::start(side, incoming, outgoing, opened), theirs)
        };
        let pipe = || {
            let (sender, mut pieces) = mpsc::unbounded_channel::<Vec<u8>>();
            let (on, receiver) = mpsc::channel(4);
            tokio::spawn(async move {
                while let Some(piece) = pieces.recv().await {
                    // Cut anywhere.
                    for part in piece.chunks(1000) {
                        if on.send(part.to_vec()).await.is_err() {
                            return;
                        }
                    }
                }
            });
            (sender, receiver)
        };
        let ((to_guest, from_host), (to_host, from_guest)) = (pipe(), pipe());
        let (host, host_opened) = end(Side::Host, from_guest, to_guest);
        let (guest, guest_opened) = end(Side::Guest, from_host, to_host);
        (host, host_opened, guest, guest_opened)
    }

    fn carried(stream: Stream) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(1024);
        tokio::spawn(stream.carry(theirs));
        ours
    }

    #[tokio::test]
    async fn streams_of_both_ends_carry_more_than_a_window_and_end_each_way() {
        let (host, mut host_opened, guest, mut guest_opened) = pair();
        for (from, to) in [(&host, &mut guest_opened), (&guest, &mut host_opened)] {
            let mut near = carried(from.open("agent").unwrap());
            let opened = to.recv().await.unwrap();
            assert_eq!(opened.purpose, "agent");
            let mut far = carried(opened.stream);
            let sent: Vec<u8> = (0..5 * WINDOW).map(|at| (at * 7) as u8).collect();
            let all = sent.clone();
            let writer = tokio::spawn(async move {
                near.write_all(&all).await.unwrap();
                near.shutdown().await.unwrap();
                let mut back = String::new();
                near.read_to_string(&mut back).await.unwrap();
                back
            });
            let mut got = Vec::new();
            far.read_to_end(&mut got).await.unwrap();
            assert!(got == sent);
            far.write_all(b"thanks").await.unwrap();
            drop(far);
            assert_eq!(writer.await.unwrap(), "thanks");
        }
        tokio::task::yield_now().await;
        assert_eq!(host.shared.streams().as_ref().map(HashMap::len), Some(0), "ended streams are forgotten");
    }

    #[tokio::test]
    async fn a_slow_reader_holds_up_its_own_stream_only() {
        let (host, _, _guest, mut opened) = pair();
        let slow = host.open("slow").unwrap();
        let _unread = opened.recv().await.unwrap();
        let flood = vec![0; 2 * WINDOW];
        let stuck = tokio::time::timeout(std::time::Duration::from_millis(100), slow.output.write(&flood)).await;
        assert!(stuck.is_err());
        let mut near = carried(host.open("other").unwrap());
        let mut far = carried(opened.recv().await.unwrap().stream);
        near.write_all(b"x").await.unwrap();
        assert_eq!(far.read_u8().await.unwrap(), b'x');
    }

    #[tokio::test]
    async fn what_is_dropped_is_reset_and_who_breaks_the_rules_loses_all() {
        let (host, _, guest, mut opened) = pair();
        let stream = host.open("a").unwrap();
        let mut far = opened.recv().await.unwrap().stream;
        drop(stream);
        assert_eq!(far.input.next().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);

        let stream = host.open("b").unwrap();
        let mut far = opened.recv().await.unwrap().stream;
        stream.input.shared.send(Kind::Window, stream.input.id, &u32::MAX.to_le_bytes());
        assert!(far.input.next().await.is_err());
        assert!(guest.open("c").is_err());
    }
}
