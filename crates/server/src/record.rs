//! What of the requests is written down: calls that change something, files that come and go, code that is sent to the
//! interpreter.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::RequestExt;
use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use ring::digest::{Context as Hashing, SHA256};
use serde::Deserialize;
use sloplet_engine::Journal;
use sloplet_engine::life::Reached;
use sloplet_engine::pace::Pace;
use sloplet_ledger::event::{ApiCall, FileAction, FileChanged, Seen};
use sloplet_ledger::{Event, Text};

use crate::app::App;
use crate::auth::{Access, OwnUser};
use crate::error::ApiError;
use crate::refusals::Refused;

/// Who acts where a sandbox's token was shown.
pub const TOKEN: &str = "token";

/// The port on which a sandbox of the image `code-interpreter` takes code.
pub const INTERPRETER: u16 = 49999;

/// Characters of a front end's name that are written down.
const VIA: usize = 128;

/// Bytes of a request to the interpreter that are looked at. Of a larger one only size and digest are written down.
const CELL: usize = 1024 * 1024;

/// What envd is asked that changes something. Input is not a change: it goes to a command that is written down.
const ENVD: [&str; 7] = [
    "/files",
    "/filesystem.Filesystem/MakeDir",
    "/filesystem.Filesystem/Move",
    "/filesystem.Filesystem/Remove",
    "/process.Process/SendSignal",
    "/process.Process/Start",
    "/process.Process/Update",
];

/// A call that will be written down.
pub struct Call {
    method: Method,
    path: String,
    via: Option<String>,
    started: Instant,
}

impl Call {
    fn new(request: &Request, path: &str) -> Self {
        let via = via(request.headers());
        Self { method: request.method().clone(), path: path.to_owned(), via, started: Instant::now() }
    }

    /// Writes it down; what it asked for has happened, or was refused.
    pub fn note(self, app: &App, sandbox: Option<&str>, actor: &str, key: Option<&str>, response: &Response) {
        let event = Event::ApiCall(ApiCall {
            method: self.method.as_str().into(),
            path: self.path.into(),
            status: response.status().as_u16(),
            key: key.map(Into::into),
            via: self.via.map(Into::into),
            duration_ms: self.started.elapsed().as_millis() as u64,
            ..ApiCall::default()
        });
        if let Err(error) = app.ledger().record(sandbox, actor, event) {
            tracing::error!(%error, "cannot write to the ledger");
        }
    }
}

/// Writes down calls of those who were let through: all that do not just look, those that open a stream into a sandbox,
/// those that a front end makes for somebody else, and those that look where they may not.
pub async fn calls(State(app): State<App>, access: Access, mut request: Request, next: Next) -> Response {
    let looks = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if looks && !is_stream(request.headers()) && via(request.headers()).is_none() {
        let mut response = next.run(request).await;
        if response.status() == StatusCode::FORBIDDEN {
            // Those who look where they may not are written down with all others who are refused.
            response.extensions_mut().insert(Refused { key: access.key });
        }
        return response;
    }
    let route = request.extensions().get::<MatchedPath>().map_or_else(String::new, |path| path.as_str().to_owned());
    if let Err(error) = app.paces().admit(&access.owner, &request) {
        return error.into_response();
    }
    let call = Call::new(&request, &route);
    let sandbox = match route.contains("/sandboxes/{") {
        true => request.extract_parts::<RawPathParams>().await.ok(),
        false => None,
    };
    // Before it is carried out: afterwards it may be gone.
    let sandbox = sandbox.and_then(|parameters| {
        let (_, id) = parameters.iter().next()?;
        app.sandboxes().id_of(&access.owner, id).ok()
    });
    let response = next.run(request).await;
    call.note(&app, sandbox.as_deref(), &access.actor(), access.key.as_deref(), &response);
    response
}

/// The front end that asks for somebody else, as it says itself.
fn via(headers: &HeaderMap) -> Option<String> {
    let said = headers.get("x-sloplet-via")?.to_str().ok()?.trim();
    (!said.is_empty()).then(|| said.chars().take(VIA).collect())
}

fn is_stream(headers: &HeaderMap) -> bool {
    headers.get(header::UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Bytes of records that an owner's calls may leave: so many at once, and then so many a second.
const RECORDED: (f64, f64) = ((32 << 20) as f64, (1 << 20) as f64);

/// What a call's records take at least, and what of its body may be in them.
const RECORD: (u64, u64) = (1024, 64 * 1024);

/// Owners that are told apart before those are forgotten who did nothing of late.
const OWNERS: usize = 1024;

/// How fast each owner's calls fill the ledger. Nothing that was carried out is left out of it, so what would flood it is not
/// carried out.
#[derive(Debug, Default)]
pub struct Paces(Mutex<HashMap<String, Pace>>);

impl Paces {
    /// Refuses an owner's call if there were too many. This server's own user is not held up.
    pub fn admit(&self, owner: &str, request: &Request) -> Result<(), ApiError> {
        if request.extensions().get::<OwnUser>().is_some() {
            return Ok(());
        }
        let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
        let is_json = text(header::CONTENT_TYPE).is_some_and(|kind| kind.contains("json"));
        let length = text(header::CONTENT_LENGTH).and_then(|length| length.parse().ok()).unwrap_or(RECORD.1);
        let bytes = RECORD.0 + if is_json { length.min(RECORD.1) } else { 0 };
        self.spend(owner, bytes, Instant::now())
    }

    fn spend(&self, owner: &str, bytes: u64, now: Instant) -> Result<(), ApiError> {
        let mut paces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if paces.len() >= OWNERS {
            paces.retain(|_, pace| !pace.is_full(now));
        }
        let pace = paces.entry(owner.to_owned()).or_insert_with(|| Pace::new(RECORDED.0, RECORDED.1));
        match pace.spend(bytes as f64, now) {
            true => Ok(()),
            false => {
                let message = "the calls of this owner fill the record faster than it may grow: wait a little";
                Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, message))
            }
        }
    }
}

/// A request to a sandbox's own port that is to be written down.
pub fn envd_call(request: &Request) -> Option<Call> {
    let path = request.uri().path();
    (*request.method() == Method::POST && ENVD.contains(&path)).then(|| Call::new(request, path))
}

/// What was uploaded, counted and hashed as it came.
pub struct Digest {
    hashing: Hashing,
    bytes: u64,
}

impl Default for Digest {
    fn default() -> Self {
        Self { hashing: Hashing::new(&SHA256), bytes: 0 }
    }
}

impl Digest {
    /// More of it.
    pub fn add(&mut self, bytes: &[u8]) {
        self.hashing.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// The SHA-256 so far, in hex.
    pub fn hex(&self) -> String {
        self.hashing.clone().finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn finish(self) -> (u64, String) {
        let digest = self.hashing.finish();
        (self.bytes, digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Writes down that it was written there. A path that ends with a slash is a folder, and what was uploaded an archive.
    pub fn note(self, reached: &Reached, actor: &str, path: &[u8]) {
        let (bytes, sha256) = self.finish();
        let changed = FileChanged { bytes: Some(bytes), sha256: Some(sha256.into()), ..FileChanged::default() };
        note(reached, actor, path, changed);
    }
}

/// Writes down that a file or folder was removed.
pub fn removed(reached: &Reached, actor: &str, path: &[u8]) {
    note(reached, actor, path, FileChanged { action: FileAction::Removed, ..FileChanged::default() });
}

/// Writes down that a file or folder was moved.
pub fn moved(reached: &Reached, actor: &str, from: &[u8], to: &[u8]) {
    let to = Some(Text::from_bytes(to));
    note(reached, actor, from, FileChanged { action: FileAction::Moved, to, ..FileChanged::default() });
}

fn note(reached: &Reached, actor: &str, path: &[u8], changed: FileChanged) {
    let changed = FileChanged { path: Text::from_bytes(path), ..changed };
    reached.sandbox.journal().note_by(actor, Event::FileChanged(changed));
}

/// Whether a request to a port brings code to the interpreter, which is written down.
pub fn is_cell(port: u16, request: &Request, prefix: &str) -> bool {
    let path = request.uri().path();
    port == INTERPRETER && *request.method() == Method::POST && path.strip_prefix(prefix).unwrap_or(path) == "/execute"
}

/// Watches a request that brings code to the interpreter; all others pass as they are.
pub fn cell(reached: &Reached, port: u16, request: Request, prefix: &str) -> Request {
    if !is_cell(port, &request, prefix) {
        return request;
    }
    let journal = reached.sandbox.journal().clone();
    request.map(|body| Body::new(Cell { body, journal, digest: Digest::default(), kept: Vec::new() }))
}

/// A body that writes down what it was, at its end.
struct Cell {
    body: Body,
    journal: Journal,
    digest: Digest,
    kept: Vec<u8>,
}

/// Of what the interpreter is sent, all that is written down. Variables have values.
#[derive(Deserialize)]
struct Execute {
    code: String,
    language: Option<String>,
}

impl HttpBody for Cell {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(bytes) = frame.data_ref()
        {
            self.digest.add(bytes);
            let room = (CELL + 1).saturating_sub(self.kept.len()).min(bytes.len());
            self.kept.extend_from_slice(&bytes[..room]);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        let execute: Option<Execute> = match self.kept.len() {
            0 => return,
            1..=CELL => serde_json::from_slice(&self.kept).ok(),
            _ => None,
        };
        let seen = match execute {
            Some(Execute { code, language }) => Seen {
                name: format!("execute {}", language.as_deref().unwrap_or("code")).into(),
                sha256: sloplet_ledger::sha256(code.as_bytes()).into(),
                bytes: code.len() as u64,
                text: Some(code.into()),
            },
            None => {
                let (bytes, sha256) = std::mem::take(&mut self.digest).finish();
                Seen { name: "execute".into(), sha256: sha256.into(), bytes, text: None }
            }
        };
        self.journal.note(Event::ToolCall(seen));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_a_sandbox_is_a_call() {
        let request =
            |method: &str, path: &str| Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        assert!(envd_call(&request("POST", "/process.Process/Start")).is_some());
        assert!(envd_call(&request("POST", "/files?path=x")).is_some());
        for (method, path) in [("GET", "/files"), ("POST", "/filesystem.Filesystem/Stat"), ("POST", "/nonsense")] {
            assert!(envd_call(&request(method, path)).is_none(), "{method} {path}");
        }
    }

    #[test]
    fn one_owner_does_not_flood_the_ledger_and_others_go_on() {
        let (paces, now) = (Paces::default(), Instant::now());
        let passed = (0..100_000).take_while(|_| paces.spend("flood", 10_000, now).is_ok()).count();
        assert_eq!(passed, (RECORDED.0 / 10_000.0) as usize);
        let refused = paces.spend("flood", 10_000, now).unwrap_err();
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        paces.spend("other", 10_000, now).unwrap();
        paces.spend("flood", 10_000, now + std::time::Duration::from_secs(1)).unwrap();
    }

    #[test]
    fn a_digest_is_of_all_that_came() {
        let mut digest = Digest::default();
        digest.add(b"ab");
        digest.add(b"c");
        assert_eq!(digest.finish(), (3, sloplet_ledger::sha256(b"abc")));
    }
}
