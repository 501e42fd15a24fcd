//! A process's streams over a WebSocket: a terminal, or any command.
//!
//! The first message, as JSON text, is `{"start": {…}}` with the fields of `POST …/processes` (and `keep`, without which
//! the process ends when the connection does), or `{"attach": {"pid": …, "offset": …}}`. Then:
//!
//! | from | message | meaning |
//! |---|---|---|
//! | client | binary | standard input |
//! | client | `{"close_stdin": true}`, `{"resize": {"columns": …, "rows": …}}`, `{"signal": "SIGINT"}` | |
//! | server | `{"started": {"pid": …}}` | the answer to the first message |
//! | server | binary: a byte 1, 2 or 3, then bytes | standard output, standard error, terminal |
//! | server | `{"exit": {…}}` or `{"error": {"code": …, "message": …}}` | the last message |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::State as AppState;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use serde::Deserialize;
use serde_json::json;
use sloplet_engine::life::{Next, Reached, Reader, Source, Tracked};
use tokio::sync::mpsc;

use super::exec::not_started;
use super::extract::Segments;
use super::processes::{ExitStatus, Signal, Size, StartProcess, reach, tracked};
use crate::app::App;
use crate::auth::{Access, Scope};
use crate::error::ApiError;

/// How long a client may take to say what it wants.
const FIRST_WITHIN: Duration = Duration::from_secs(10);

/// How often a silent client is asked whether it is still there, and after how many such rounds it is not.
const PING_EVERY: Duration = Duration::from_secs(20);
const SILENT_ROUNDS: u32 = 3;

/// Bytes of one message.
pub const MESSAGE: usize = 1024 * 1024;

/// Messages of input that wait for the process to read.
const INPUT_QUEUE: usize = 4;

/// How long a client may take to notice that all is said.
const LINGER: Duration = Duration::from_secs(10);

const HANGUP: i32 = 1;
const KILL: i32 = 9;

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum First {
    Start(Box<Start>),
    Attach(Attach),
}

#[derive(Deserialize)]
struct Start {
    /// The process goes on when the connection ends.
    #[serde(default)]
    keep: bool,
    process: StartProcess,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Attach {
    pid: u32,
    #[serde(default)]
    offset: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Control {
    Resize(Size),
    Signal(Signal),
    CloseStdin(bool),
}

/// Start a process, or attach to one, over a WebSocket.
///
/// The first message is JSON: `{"start": {"process": {…as for POST …/processes}, "keep": false}}` or
/// `{"attach": {"pid": 7, "offset": 0}}`. Binary messages of the client are standard input; it can also say
/// `{"close_stdin": true}`, `{"resize": {"columns": 80, "rows": 24}}` and `{"signal": "SIGINT"}`. The server answers
/// `{"started": {"pid": 7}}`, then binary messages whose first byte is 1 (standard output), 2 (standard error) or 3
/// (terminal), and at last `{"exit": {…}}` or `{"error": {"code": 404, "message": "…"}}`.
#[utoipa::path(get, path = "/sandboxes/{id}/attach", tag = "processes",
    params(("id" = String, Path, description = "The sandbox's id or name")),
    responses((status = 101, description = "A WebSocket")))]
pub async fn attach(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    access.require(Scope::Use)?;
    let upgrade = upgraded(upgrade)?;
    let reached = reach(&app, &access, &id).await?;
    Ok(upgrade.on_upgrade(move |socket| serve(socket, reached)))
}

/// A WebSocket, or why not.
pub fn upgraded(upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>) -> Result<WebSocketUpgrade, ApiError> {
    let upgrade = upgrade.map_err(|error| ApiError::bad_request(format!("this path wants a WebSocket: {error}")))?;
    Ok(upgrade.max_message_size(MESSAGE).max_frame_size(MESSAGE))
}

async fn serve(mut socket: WebSocket, reached: Reached) {
    if let Err(error) = conduct(&mut socket, &reached).await {
        let text = json!({"error": {"code": error.status.as_u16(), "message": error.message}});
        let _ = socket.send(Message::text(text.to_string())).await;
    }
    let _ = socket.send(Message::Close(None)).await;
    // To close while input is still on its way would reset the connection, and the client might miss the last message.
    let _ = tokio::time::timeout(LINGER, async { while let Some(Ok(_)) = socket.recv().await {} }).await;
}

async fn conduct(socket: &mut WebSocket, reached: &Reached) -> Result<(), ApiError> {
    let late = || ApiError::bad_request("say within 10 seconds what to start or to attach to");
    let first = match tokio::time::timeout(FIRST_WITHIN, socket.recv()).await.map_err(|_| late())? {
        Some(Ok(Message::Text(text))) => text,
        Some(Ok(_)) => return Err(ApiError::bad_request("the first message must be JSON text")),
        _ => return Ok(()),
    };
    let first: First = serde_json::from_str(&first)
        .map_err(|error| ApiError::bad_request(format!("the first message does not fit: {error}")))?;
    let (process, offset, keep) = match first {
        First::Start(start) => {
            let command = start.process.into_command()?;
            (reached.start(command).await.map_err(not_started)?, 0, start.keep)
        }
        First::Attach(Attach { pid, offset }) => (tracked(reached, pid)?, offset, true),
    };
    let started = json!({"started": {"pid": process.pid}}).to_string();
    let over = match socket.send(Message::text(started)).await {
        Ok(()) => relay(socket, &process, offset).await,
        Err(_) => Over::Left,
    };
    match over {
        Over::Ended => {}
        Over::Left if keep => {}
        // As when a terminal is closed; without one nobody would hear of it.
        Over::Left => drop(process.signal(if process.terminal { HANGUP } else { KILL }, true).await),
        Over::Wrong(error) => {
            if !keep {
                let _ = process.signal(KILL, true).await;
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Why a connection ends.
enum Over {
    /// The process has ended, and the client was told.
    Ended,
    /// The client is gone.
    Left,
    /// The client said something that makes no sense.
    Wrong(ApiError),
}

/// Passes bytes both ways, each at its own pace: a client that does not read is still heard, and one whose input waits
/// still hears.
async fn relay(socket: &mut WebSocket, process: &Arc<Tracked>, offset: u64) -> Over {
    let (sink, stream) = socket.split();
    let presence = Presence::default();
    tokio::select! {
        over = outward(sink, process.read_from(offset), &presence) => over,
        over = inward(stream, process, &presence) => over,
    }
}

/// Whether the client is still there.
#[derive(Default)]
struct Presence {
    /// Rounds of silence.
    silent: AtomicU32,
    /// Whether it is listened to: not while its input waits.
    heard: AtomicBool,
}

impl Presence {
    /// Another round; whether the client is gone.
    fn round(&self) -> bool {
        if !self.heard.load(Relaxed) {
            self.silent.store(0, Relaxed);
            return false;
        }
        self.silent.fetch_add(1, Relaxed) >= SILENT_ROUNDS
    }

    fn listen(&self) {
        self.silent.store(0, Relaxed);
        self.heard.store(true, Relaxed);
    }

    fn turn_away(&self) {
        self.heard.store(false, Relaxed);
    }
}

async fn outward(mut sink: impl Sink<Message> + Unpin, mut reader: Reader, presence: &Presence) -> Over {
    let mut ping = tokio::time::interval_at((Instant::now() + PING_EVERY).into(), PING_EVERY);
    let mut expected = None;
    loop {
        let (message, last) = tokio::select! {
            next = reader.next() => match next {
                Some(Next::Chunk(chunk)) if expected.is_some_and(|expected| chunk.offset > expected) => {
                    let message = "output was lost: it was not read in time, and the server holds no more of it";
                    return Over::Wrong(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message));
                }
                Some(Next::Chunk(chunk)) => {
                    expected = Some(chunk.offset + chunk.bytes.len() as u64);
                    (Message::Binary(framed(chunk.source, &chunk.bytes)), false)
                }
                Some(Next::Ended(ended)) => {
                    (Message::text(json!({"exit": ExitStatus::from(&ended)}).to_string()), true)
                }
                None => return Over::Ended,
            },
            _ = ping.tick() => match presence.round() {
                true => return Over::Left,
                false => (Message::Ping(Bytes::new()), false),
            },
        };
        if sink.send(message).await.is_err() {
            return Over::Left;
        }
        if last {
            return Over::Ended;
        }
    }
}

async fn inward(
    mut stream: impl Stream<Item = Result<Message, axum::Error>> + Unpin,
    process: &Arc<Tracked>,
    presence: &Presence,
) -> Over {
    // Of its own, so that a process that does not read its input still gets signals.
    let (input, queue) = mpsc::channel(INPUT_QUEUE);
    let _feeding = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(feed(process.clone(), queue)));
    loop {
        presence.turn_away();
        // Nothing is taken while input waits: the client feels it, as the writer of a full pipe would.
        let Ok(room) = input.reserve().await else { return Over::Left };
        presence.listen();
        let said = match stream.next().await {
            Some(Ok(Message::Binary(bytes))) => {
                room.send((bytes, false));
                continue;
            }
            Some(Ok(Message::Text(text))) => text,
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
            Some(Ok(Message::Close(_)) | Err(_)) | None => return Over::Left,
        };
        match serde_json::from_str(&said) {
            Ok(Control::CloseStdin(end)) => room.send((Bytes::new(), end)),
            Ok(Control::Resize(size)) => match size.try_into() {
                Ok(size) => drop(process.resize(size).await),
                Err(error) => return Over::Wrong(error),
            },
            Ok(Control::Signal(signal)) => drop(process.signal(signal as i32, true).await),
            Err(error) => return Over::Wrong(ApiError::bad_request(format!("not understood: {error}"))),
        }
    }
}

async fn feed(process: Arc<Tracked>, mut queue: mpsc::Receiver<(Bytes, bool)>) {
    while let Some((bytes, end)) = queue.recv().await {
        if process.send_input(&bytes, end).await.is_err() {
            break;
        }
    }
    // It takes no more; what still comes is thrown away, as if written to nobody.
    while queue.recv().await.is_some() {}
}

fn framed(source: Source, bytes: &[u8]) -> Bytes {
    let channel = match source {
        Source::Stdout => 1,
        Source::Stderr => 2,
        Source::Terminal => 3,
    };
    let mut frame = Vec::with_capacity(bytes.len() + 1);
    frame.push(channel);
    frame.extend_from_slice(bytes);
    frame.into()
}
