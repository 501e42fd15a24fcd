//! The handle to an agent: one method for each request.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use sloplet_wire::{Attribute, Entry, ErrorCode, Event, Exec, MAX_PAYLOAD, ProcessInfo, Request, Target, TerminalSize};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::driver::{Driver, greet};
use crate::link::{Link, LinkOwner};
use crate::stream::{Answer, Backlog, SHORT};
use crate::{ClientError, Connection, Download, Listener, Process, Upload, Watcher};

/// Most entries [`Agent::list`] returns.
pub const MAX_LISTING: usize = 1_000_000;

/// Most bytes of names in a listing; also how much of it may wait to be decoded.
const MAX_LISTING_BYTES: usize = 64 * 1024 * 1024;

/// Changes that may wait for [`Watcher::recv`].
const WATCH_BACKLOG: Backlog = Backlog::DropOldest(1024 * 1024);

/// [`Agent::send_input`] is cut into requests of this size.
const INPUT_PIECE: usize = 128 * 1024;

/// Bytes of arguments and environment that every agent takes, whatever else is in the request.
const ANY_AGENT: usize = MAX_PAYLOAD / 4;

/// How long to wait at first when a process does not keep up with its input, and at most.
const INPUT_PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// A handle to an agent; clones share its connection.
#[derive(Clone)]
pub struct Agent {
    owner: Arc<RwLock<Arc<LinkOwner>>>,
    build: Arc<OnceLock<String>>,
}

/// Bytes an entry holds besides its fixed size.
fn names_len(entry: &Entry) -> usize {
    let texts = [&entry.owner, &entry.group].into_iter().flatten().map(String::len);
    let rare = entry.rare.as_deref().map_or(0, |rare| {
        let attributes = rare.attributes.iter().map(|attribute| attribute.name.len() + attribute.value.len() + 48);
        rare.end.as_ref().map_or(0, |end| end.path.len()) + attributes.sum::<usize>()
    });
    entry.path.len() + entry.link_target.as_ref().map_or(0, |target| target.len()) + texts.sum::<usize>() + rare
}

impl Agent {
    /// Waits for the agent's greeting on a fresh connection. Halves that can be split without a lock are better given
    /// to [`Self::connect_halves`].
    pub async fn connect<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(stream: S) -> Result<Self, ClientError> {
        let (reader, writer) = tokio::io::split(stream);
        Self::connect_halves(reader, writer).await
    }

    /// As [`Self::connect`], with the two halves of the connection.
    pub async fn connect_halves<R, W>(mut reader: R, writer: W) -> Result<Self, ClientError>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let mut buffer = BytesMut::new();
        let hello = greet(&mut reader, &mut buffer).await?;
        let link = Arc::new(Link::new(Box::new(writer)));
        link.greeted(&hello);
        tokio::spawn(Driver::new(reader, buffer, link.clone()));
        Ok(Self { owner: Arc::new(RwLock::new(Arc::new(LinkOwner(link)))), build: Arc::new(hello.build.into()) })
    }

    /// As [`Self::connect`], but does not wait for the greeting: for an agent that is known to serve and may be frozen.
    /// Requests wait until it answers; if its greeting is wrong, they fail. Must be called within a runtime.
    pub fn connect_later<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(stream: S) -> Self {
        let (mut reader, writer) = tokio::io::split(stream);
        let link = Arc::new(Link::new(Box::new(writer)));
        let build = Arc::new(OnceLock::new());
        let (greeted, greeting) = (link.clone(), build.clone());
        tokio::spawn(async move {
            let mut buffer = BytesMut::new();
            let hello = {
                let mut greeted_by = pin!(greet(&mut reader, &mut buffer));
                poll_fn(|cx| {
                    greeted.drive(cx);
                    if greeted.is_closing() {
                        Poll::Ready(Err(ClientError::Closed))
                    } else {
                        greeted_by.as_mut().poll(cx)
                    }
                })
                .await
            };
            match hello {
                Ok(hello) => {
                    greeted.greeted(&hello);
                    let _ = greeting.set(hello.build);
                    Driver::new(reader, buffer, greeted).await;
                }
                Err(error) => greeted.fail(error),
            }
        });
        Self { owner: Arc::new(RwLock::new(Arc::new(LinkOwner(link)))), build }
    }

    /// Goes over to another connection to the same agent, with all clones; what still waits on the old one fails. Does not wait
    /// for the greeting. Must be called within a runtime.
    pub fn move_to<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(&self, stream: S) {
        let newer = Self::connect_later(stream).owner();
        *self.owner.write().unwrap_or_else(PoisonError::into_inner) = newer;
    }

    fn owner(&self) -> Arc<LinkOwner> {
        self.owner.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The agent's build, for people; empty until it has greeted. The agent's own words.
    pub fn build(&self) -> &str {
        self.build.get().map_or("", String::as_str)
    }

    async fn ask<T: Answer>(&self, request: Request) -> Result<T, ClientError> {
        self.owner().open(&request, SHORT)?.complete().await
    }

    /// Starts a process. A terminal always has an input.
    pub async fn exec(&self, request: Exec) -> Result<Process, ClientError> {
        let stdin = request.stdin || request.terminal.is_some();
        let owner = self.owner();
        let bytes: usize = request.argv.iter().chain(&request.env).map(|text| text.len()).sum();
        if bytes > ANY_AGENT && owner.0.longest_request().is_none() {
            // Whether it takes so much is in its greeting, which comes before the answer to anything.
            let _ = owner.0.ping()?.await;
        }
        Process::started(owner.open(&Request::Exec(request), SHORT)?, stdin).await
    }

    /// Re-attaches to a background process: first the output that was held, then what it does. Its input is written
    /// with [`Self::send_input`].
    pub async fn attach(&self, pid: u32) -> Result<Process, ClientError> {
        Process::started(self.owner().open(&Request::Attach { pid }, SHORT)?, false).await
    }

    /// Sends a signal to a process started by the agent, or to its whole process group.
    pub async fn signal(&self, pid: u32, signal: i32, group: bool) -> Result<(), ClientError> {
        self.ask(Request::Signal { pid, signal, group }).await
    }

    /// Changes the size of a process's terminal.
    pub async fn resize(&self, pid: u32, size: TerminalSize) -> Result<(), ClientError> {
        self.ask(Request::Resize { pid, size }).await
    }

    /// Writes to the standard input of any process started by the agent, at the pace of the process; `end` closes it
    /// afterwards. If dropped midway, some of it may have been written.
    pub async fn send_input(&self, pid: u32, mut data: &[u8], end: bool) -> Result<(), ClientError> {
        loop {
            let (piece, rest) = data.split_at(data.len().min(INPUT_PIECE));
            let last = rest.is_empty();
            self.send_piece(pid, piece, end && last).await?;
            if last {
                return Ok(());
            }
            data = rest;
        }
    }

    /// One piece: taken whole or not at all, and offered again until it is.
    async fn send_piece(&self, pid: u32, piece: &[u8], end: bool) -> Result<(), ClientError> {
        let piece = piece.to_vec();
        let (mut pause, longest) = INPUT_PAUSES;
        loop {
            match self.ask::<()>(Request::SendInput { pid, data: piece.clone().into(), end }).await {
                Err(error) if error.failure().is_some_and(|failure| failure.code == ErrorCode::Exhausted) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(longest);
                }
                sent => return sent,
            }
        }
    }

    /// Running processes.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, ClientError> {
        self.ask(Request::Processes).await
    }

    /// Metadata of a file; a symlink is not followed.
    pub async fn stat(&self, target: Target) -> Result<Entry, ClientError> {
        self.ask(Request::Stat(target)).await
    }

    /// What is in a folder, `depth` levels down (1 is the folder itself); at most [`MAX_LISTING`] entries.
    pub async fn list(&self, target: Target, depth: u32) -> Result<Vec<Entry>, ClientError> {
        let stream = self.owner().open(&Request::List { target, depth }, Backlog::Fail(MAX_LISTING_BYTES))?;
        let mut listing: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        loop {
            match poll_fn(|cx| stream.poll_event(cx)).await? {
                Event::Entries(entries) => {
                    bytes += entries.iter().map(names_len).sum::<usize>();
                    listing.extend(entries);
                }
                event => {
                    stream.expect::<()>(event)?;
                    stream.finish();
                    return Ok(listing);
                }
            }
            if listing.len() > MAX_LISTING {
                return Err(ClientError::TooMuch { limit: MAX_LISTING, unit: "entries" });
            }
            if bytes > MAX_LISTING_BYTES {
                return Err(ClientError::TooMuch { limit: MAX_LISTING_BYTES, unit: "bytes" });
            }
        }
    }

    /// Makes a folder; with `parents`, missing parents too, and it may exist.
    pub async fn make_dir(&self, target: Target, mode: u32, parents: bool) -> Result<(), ClientError> {
        self.ask(Request::MakeDir { target, mode, parents }).await
    }

    /// Renames, replacing a file in the way.
    pub async fn move_(&self, from: Target, to: impl Into<Vec<u8>>) -> Result<(), ClientError> {
        self.ask(Request::Move { from, to: to.into().into() }).await
    }

    /// Removes a file, or a folder (with all that is in it if `recursive`).
    pub async fn remove(&self, target: Target, recursive: bool) -> Result<(), ClientError> {
        self.ask(Request::Remove { target, recursive }).await
    }

    /// Changes permission bits.
    pub async fn set_mode(&self, target: Target, mode: u32) -> Result<(), ClientError> {
        self.ask(Request::SetMode { target, mode }).await
    }

    /// Reads a regular file from `offset`, `length` bytes at most or to its end.
    pub async fn read(
        &self,
        target: Target,
        offset: u64,
        length: Option<u64>,
    ) -> Result<(Entry, Download), ClientError> {
        let stream = self.owner().open(&Request::Read { target, offset, length }, SHORT)?;
        let entry = stream.answer().await?;
        Ok((entry, Download::new(stream)))
    }

    /// Writes a file as a whole: it is replaced at [`Upload::finish`] or not at all.
    pub async fn write(&self, target: Target, mode: u32, parents: bool) -> Result<Upload<Entry>, ClientError> {
        self.write_with(target, mode, parents, Vec::new()).await
    }

    /// As [`Self::write`], with extended attributes.
    pub async fn write_with(
        &self,
        target: Target,
        mode: u32,
        parents: bool,
        attributes: Vec<Attribute>,
    ) -> Result<Upload<Entry>, ClientError> {
        Ok(Upload::new(self.owner().open(&Request::Write { target, mode, parents, attributes }, SHORT)?))
    }

    /// A tar archive of a folder's content, or of one file.
    pub async fn pack(&self, target: Target) -> Result<Download, ClientError> {
        Ok(Download::new(self.owner().open(&Request::Pack(target), SHORT)?))
    }

    /// Unpacks a tar archive below a folder, which is made if missing.
    pub async fn unpack(&self, target: Target) -> Result<Upload<()>, ClientError> {
        Ok(Upload::new(self.owner().open(&Request::Unpack(target), SHORT)?))
    }

    /// Watches a folder, with all folders below it if `recursive`. Changes after this returns are seen.
    pub async fn watch(&self, target: Target, recursive: bool) -> Result<Watcher, ClientError> {
        let stream = self.owner().open(&Request::Watch { target, recursive }, WATCH_BACKLOG)?;
        stream.answer::<()>().await?;
        Ok(Watcher::new(stream))
    }

    /// Connects to a TCP port on loopback inside.
    pub async fn dial(&self, port: u16) -> Result<Connection, ClientError> {
        self.connected(&Request::Dial { port }).await
    }

    pub(crate) async fn connected(&self, request: &Request) -> Result<Connection, ClientError> {
        let stream = self.owner().open(request, SHORT)?;
        stream.answer::<()>().await?;
        Ok(Connection::new(stream))
    }

    /// Listens on a TCP port on loopback inside, from 1024; 0 for any.
    pub async fn listen(&self, port: u16) -> Result<Listener, ClientError> {
        let stream = self.owner().open(&Request::Listen { port }, SHORT)?;
        let port = stream.answer::<u16>().await?;
        Ok(Listener { agent: self.clone(), next: Request::Accept { port }, _stream: stream })
    }

    /// Makes a Unix socket inside that its user can connect to, and listens on it.
    pub async fn listen_at(&self, target: Target) -> Result<Listener, ClientError> {
        let stream = self.owner().open(&Request::ListenAt(target.clone()), SHORT)?;
        stream.answer::<()>().await?;
        Ok(Listener { agent: self.clone(), next: Request::AcceptAt(target), _stream: stream })
    }

    /// Has what is started from now on filtered, for a sandbox that is about to be able to write to the host; fails where
    /// something runs already.
    pub async fn filter_commands(&self) -> Result<(), ClientError> {
        self.ask(Request::FilterCommands).await
    }

    /// Waits until the agent answers.
    pub async fn ping(&self) -> Result<(), ClientError> {
        let owner = self.owner();
        owner.0.ping()?.await.map_err(|_| owner.0.reason())
    }
}
