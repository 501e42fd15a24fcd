//! What processes wrote: as server-sent events that can be resumed, or as plain text.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State as AppState;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::stream;
use serde::Deserialize;
use serde_json::json;
use sloplet_engine::life::{Next, Reached, Reader, Source, Tracked};
use utoipa::IntoParams;

use super::extract::{Params, Segments};
use super::processes::{ExitStatus, reach, tracked};
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// The id of the last event: who has seen it need not come back.
const END: &str = "end";

/// How often a silent stream says that it is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// From where, and how long.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Since {
    /// Bytes to skip: where an earlier reader stopped. `Last-Event-ID` goes first.
    offset: u64,
    /// Wait for more until the process ends; true if left out.
    follow: Option<bool>,
}

/// Read a process's output as server-sent events.
///
/// Events `stdout`, `stderr` and `terminal` carry `{"offset": …, "text": …}`, or `"base64"` in place of `"text"` where the
/// bytes are not UTF-8; their id is the offset of what follows. `gap` tells of bytes that are no longer kept. `exit` is
/// the last. An `EventSource` that reconnects goes on where it was.
#[utoipa::path(get, path = "/sandboxes/{id}/processes/{pid}/output", tag = "processes",
    params(("id" = String, Path, description = "The sandbox's id or name"), ("pid" = u32, Path, description = "Its pid"), Since,
        ("Last-Event-ID" = Option<String>, Header, pattern = "^([0-9]{1,18}|end)$", description = "Id of the last event that was seen.")),
    responses((status = 200, content_type = "text/event-stream", body = String),
        (status = 204, description = "Everything was seen, and the process has ended")))]
pub async fn events(
    AppState(app): AppState<App>,
    access: Access,
    Segments((id, pid)): Segments<(String, u32)>,
    Params(from): Params<Since>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let reached = reach(&app, &access, &id).await?;
    let process = tracked(&reached, pid)?;
    let offset = match headers.get("last-event-id").map(|value| value.to_str().unwrap_or("?")) {
        None | Some("") => from.offset,
        Some(END) => return Ok(StatusCode::NO_CONTENT.into_response()),
        Some(text) => text.parse().map_err(|_| ApiError::bad_request("Last-Event-ID must be a number"))?,
    };
    Ok(follow(reached, &process, offset, from.follow.unwrap_or(true)))
}

/// The events of a process from an offset on.
fn follow(reached: Reached, process: &Arc<Tracked>, offset: u64, wait: bool) -> Response {
    let state = Following {
        reader: process.read_from(offset),
        expected: offset,
        waiting: VecDeque::new(),
        wait,
        over: false,
        _in_use: reached,
    };
    let events = stream::unfold(state, |mut state| async move {
        let event = state.next().await?;
        Some((Ok::<_, Infallible>(event), state))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

struct Following {
    reader: Reader,
    expected: u64,
    waiting: VecDeque<Event>,
    wait: bool,
    over: bool,
    // The sandbox does not count as idle while somebody listens.
    _in_use: Reached,
}

impl Following {
    async fn next(&mut self) -> Option<Event> {
        if let Some(event) = self.waiting.pop_front() {
            return Some(event);
        }
        if self.over {
            return None;
        }
        let next = if self.wait { self.reader.next().await? } else { self.reader.try_next()? };
        match next {
            Next::Chunk(chunk) => {
                let end = chunk.offset + chunk.bytes.len() as u64;
                let content = match std::str::from_utf8(&chunk.bytes) {
                    Ok(text) => json!({"offset": chunk.offset, "text": text}),
                    Err(_) => json!({"offset": chunk.offset, "base64": BASE64.encode(&chunk.bytes)}),
                };
                let event = event(name(chunk.source), &end.to_string(), &content);
                if chunk.offset > self.expected {
                    let gap = json!({"from": self.expected, "to": chunk.offset});
                    self.waiting.push_back(event);
                    self.expected = end;
                    return Some(self::event("gap", &chunk.offset.to_string(), &gap));
                }
                self.expected = end;
                Some(event)
            }
            Next::Ended(ended) => {
                self.over = true;
                let status = serde_json::to_value(ExitStatus::from(&ended)).unwrap_or_default();
                let (exit, end) = (event("exit", END, &status), self.reader.end());
                if end <= self.expected {
                    return Some(exit);
                }
                self.waiting.push_back(exit);
                let gap = json!({"from": self.expected, "to": end});
                Some(event("gap", &end.to_string(), &gap))
            }
        }
    }
}

fn event(name: &str, id: &str, content: &serde_json::Value) -> Event {
    // JSON has no line ends of its own, so nothing inside can end an event.
    Event::default().event(name).id(id).data(content.to_string())
}

/// A source's name in events.
pub fn name(source: Source) -> &'static str {
    match source {
        Source::Stdout => "stdout",
        Source::Stderr => "stderr",
        Source::Terminal => "terminal",
    }
}

/// How much of it.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Tail {
    /// Only the last so many lines of what is kept.
    tail: Option<usize>,
    /// Go on until the process ends.
    follow: bool,
}

/// Read what is kept of a process's output, standard error included, as it was written.
#[utoipa::path(get, path = "/sandboxes/{id}/processes/{pid}/logs", tag = "processes",
    params(("id" = String, Path, description = "The sandbox's id or name"), ("pid" = u32, Path, description = "Its pid"), Tail),
    responses((status = 200, content_type = "text/plain", body = String)))]
pub async fn logs(
    AppState(app): AppState<App>,
    access: Access,
    Segments((id, pid)): Segments<(String, u32)>,
    Params(tail): Params<Tail>,
) -> Result<Response, ApiError> {
    let reached = reach(&app, &access, &id).await?;
    let mut reader = tracked(&reached, pid)?.read_from(0);
    let mut kept = Vec::new();
    // No await in between: the process cannot add to it meanwhile without end.
    let mut ended = false;
    while let Some(next) = reader.try_next() {
        match next {
            Next::Chunk(chunk) => kept.extend_from_slice(&chunk.bytes),
            Next::Ended(_) => ended = true,
        }
        if ended || kept.len() > MOST_KEPT {
            break;
        }
    }
    let start = tail.tail.map_or(0, |lines| last_lines(&kept, lines));
    let first = Bytes::from(kept).slice(start..);
    let body = if tail.follow && !ended { more(first, reader, reached) } else { Body::from(first) };
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], body)
        .into_response())
}

/// More than is ever kept of a process: a bound that does not depend on somebody else's constant.
const MOST_KEPT: usize = 4 * 1024 * 1024;

/// Where the last so many lines begin. What follows the last line end is a line, too.
pub fn last_lines(text: &[u8], lines: usize) -> usize {
    let Some(body) = text.strip_suffix(b"\n").or(Some(text)).filter(|_| lines > 0) else { return text.len() };
    let ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(index, _)| index + 1);
    ends.take(lines).nth(lines - 1).unwrap_or(0)
}

fn more(first: Bytes, reader: Reader, reached: Reached) -> Body {
    let chunks = stream::unfold((Some(first), reader, reached), |(first, mut reader, reached)| async move {
        if let Some(first) = first {
            return Some((Ok::<_, Infallible>(first), (None, reader, reached)));
        }
        match reader.next().await? {
            Next::Chunk(chunk) => Some((Ok(chunk.bytes), (None, reader, reached))),
            Next::Ended(_) => None,
        }
    });
    Body::from_stream(chunks)
}

#[cfg(test)]
mod tests {
    use super::last_lines;

    #[test]
    fn the_last_lines_are_counted_from_the_end() {
        let text = b"one\ntwo\nthree\n";
        assert_eq!(&text[last_lines(text, 1)..], b"three\n");
        assert_eq!(&text[last_lines(text, 2)..], b"two\nthree\n");
        assert_eq!(&text[last_lines(text, 9)..], text);
        assert_eq!(&text[last_lines(text, 0)..], b"");
        assert_eq!(&b"a\nb"[last_lines(b"a\nb", 1)..], b"b");
        assert_eq!(&b"\n\n"[last_lines(b"\n\n", 1)..], b"\n");
        assert_eq!(last_lines(b"", 3), 0);
    }
}
