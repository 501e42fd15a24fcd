//! Passing HTTP requests on, each checked before a byte of it leaves.

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::check::Check;
use crate::connection::{Record, Stop};
use crate::egress::Locked;
use crate::event::Protocol;
use crate::http::{self, Body, Chunks, Head};
use crate::refuse::Problem;
use crate::relay;

/// How long a head may take once it has begun.
const HEAD: Duration = Duration::from_secs(30);

/// What is read of a body at once.
const BODY_READ: usize = 32 << 10;

/// What is known of the server's side: how much it said, whether that is HTTP, and whether its first answer changes the
/// protocol.
#[derive(Debug, Default)]
pub(crate) struct Response {
    moved: AtomicU64,
    language: AtomicU8,
    state: AtomicU8,
    start: Locked<Vec<u8>>,
    known: Notify,
}

const UNKNOWN: u8 = 0;
const SWITCHED: u8 = 1;
const STAYED: u8 = 2;

/// What the server's first words are: HTTP, or something else.
const HTTP: u8 = 1;
const OTHER: u8 = 2;

/// The start of every answer in HTTP.
const VERSION: &[u8] = b"HTTP/";

/// The start of an answer that changes the protocol; the digit before the space is any.
const SWITCHING: [&[u8]; 2] = [b"HTTP/1.1 101", b"HTTP/1.0 101"];

impl Response {
    /// Sees bytes that the server says.
    pub(crate) fn watch(&self, bytes: &[u8]) {
        self.moved.fetch_add(bytes.len().max(1) as u64, SeqCst);
        if self.state.load(SeqCst) != UNKNOWN {
            return;
        }
        let mut start = self.start.lock();
        let missing = SWITCHING[0].len() - start.len();
        start.extend_from_slice(&bytes[..missing.min(bytes.len())]);
        if self.language.load(SeqCst) == UNKNOWN {
            let known = start.len().min(VERSION.len());
            if start[..known] != VERSION[..known] {
                self.hears(OTHER);
            } else if known == VERSION.len() {
                self.hears(HTTP);
            }
        }
        if start.len() == SWITCHING[0].len() {
            self.decide(if SWITCHING.contains(&start.as_slice()) { SWITCHED } else { STAYED });
        }
    }

    /// The server says nothing more.
    pub(crate) fn over(&self) {
        if self.language.load(SeqCst) == UNKNOWN {
            self.hears(HTTP);
        }
        if self.state.load(SeqCst) == UNKNOWN {
            self.decide(STAYED);
        }
    }

    fn hears(&self, language: u8) {
        self.language.store(language, SeqCst);
        self.known.notify_waiters();
    }

    fn decide(&self, state: u8) {
        self.state.store(state, SeqCst);
        self.known.notify_waiters();
    }

    /// Whether the server said anything.
    pub(crate) fn any(&self) -> bool {
        self.moved() > 0
    }

    /// Grows with what the server says.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(SeqCst)
    }

    /// Whether the server speaks HTTP, as far as it spoke.
    pub(crate) fn is_http(&self) -> bool {
        self.language.load(SeqCst) == HTTP
    }

    /// Whether the server speaks something else than HTTP; waits for its first words.
    pub(crate) async fn speaks_otherwise(&self) -> bool {
        self.known(&self.language).await == OTHER
    }

    /// Whether the first answer changes the protocol; waits for it.
    async fn switches(&self) -> bool {
        self.known(&self.state).await == SWITCHED
    }

    async fn known(&self, what: &AtomicU8) -> u8 {
        loop {
            let known = self.known.notified();
            match what.load(SeqCst) {
                UNKNOWN => known.await,
                value => return value,
            }
        }
    }
}

/// Reads a whole head into `buffer`; it and its length, or `None` at the end. `from` is where to look on.
pub(crate) async fn read_head(
    client: &TcpStream,
    buffer: &mut Vec<u8>,
    from: &mut usize,
) -> Result<Option<(Head, usize)>, Stop> {
    loop {
        // Blank lines before a request mean nothing.
        let blank = buffer.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
        buffer.drain(..blank);
        if !buffer.is_empty() {
            break;
        }
        if relay::read_more(client, buffer).await? == 0 {
            return Ok(None);
        }
    }
    let whole = async {
        loop {
            if let Some(length) = http::head_end(buffer, *from).map_err(Problem::malformed)? {
                let head = http::parse(&buffer[..length]).map_err(Problem::malformed)?;
                return Ok(Some((head, length)));
            }
            *from = buffer.len();
            if relay::read_more(client, buffer).await? == 0 {
                return Err(Stop::Gone);
            }
        }
    };
    let late = || Err(Problem::malformed("the request's head took too long").into());
    timeout(HEAD, whole).await.unwrap_or_else(|_| late())
}

/// Requests of one connection on their way.
pub(crate) struct Requests<'a> {
    pub(crate) record: &'a Record,
    pub(crate) client: &'a TcpStream,
    pub(crate) upstream: &'a TcpStream,
    pub(crate) check: &'a Check,
    pub(crate) response: &'a Response,
}

impl Requests<'_> {
    /// Passes them on until the client ends; only the first one if `single`. `ahead` bytes of the first one's line were passed
    /// on already.
    pub(crate) async fn pump(&self, buffer: &mut Vec<u8>, mut ahead: usize, single: bool) -> Result<(), Stop> {
        let Self { record, client, upstream, check, response } = *self;
        let mut first = true;
        loop {
            if buffer.is_empty() {
                // While it waits for the next request, a connection holds no buffer.
                *buffer = Vec::new();
            }
            let mut from = 0;
            let Some((head, length)) = read_head(client, buffer, &mut from).await? else { break };
            check.request(&head)?;
            if head.upgrade && !first {
                let problem = "only the first request on a connection can change the protocol";
                return Err(Problem::malformed(problem).into());
            }
            record.passed(Protocol::Http);
            let length = if head.downgraded {
                let written = head.write();
                let count = written.len();
                buffer.splice(..length, written);
                count
            } else {
                length
            };
            // Its line is as it was, also where the head was written anew.
            buffer.drain(..ahead);
            send(record, upstream, buffer, length - ahead).await?;
            ahead = 0;
            match head.body {
                Body::Length(length) => send_length(record, client, upstream, buffer, length).await?,
                Body::Chunked => send_chunks(record, client, upstream, buffer).await?,
            }
            if head.upgrade && response.switches().await {
                let length = buffer.len();
                send(record, upstream, buffer, length).await?;
                return Ok(relay::pump(client, upstream, |count, _| record.up(count)).await?);
            }
            if single {
                return Ok(());
            }
            first = false;
        }
        relay::finish(upstream);
        Ok(())
    }
}

/// Passes the first bytes of the buffer on.
async fn send(record: &Record, upstream: &TcpStream, buffer: &mut Vec<u8>, length: usize) -> io::Result<()> {
    record.up(length)?;
    relay::write_all(upstream, &buffer[..length]).await?;
    buffer.drain(..length);
    Ok(())
}

async fn send_length(
    record: &Record,
    client: &TcpStream,
    upstream: &TcpStream,
    buffer: &mut Vec<u8>,
    mut left: u64,
) -> Result<(), Stop> {
    while left > 0 {
        buffer.reserve(BODY_READ);
        if buffer.is_empty() && relay::read_more(client, buffer).await? == 0 {
            return Err(Stop::Gone);
        }
        let part = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        send(record, upstream, buffer, part).await?;
        left -= part as u64;
    }
    Ok(())
}

async fn send_chunks(
    record: &Record,
    client: &TcpStream,
    upstream: &TcpStream,
    buffer: &mut Vec<u8>,
) -> Result<(), Stop> {
    let mut chunks = Chunks::START;
    loop {
        buffer.reserve(BODY_READ);
        let part = chunks.feed(buffer).map_err(Problem::malformed)?;
        send(record, upstream, buffer, part).await?;
        if chunks == Chunks::Done {
            return Ok(());
        }
        if relay::read_more(client, buffer).await? == 0 {
            return Err(Stop::Gone);
        }
    }
}
