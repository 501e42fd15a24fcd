//! `/files`: content of files, in and out, in constant memory.

use std::io;
use std::ops::Range;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sloplet_client::{ClientError, Download};
use sloplet_engine::life::{LifeError, Reached};
use sloplet_wire::{ErrorCode, Target};

use super::call;
use super::entry::{clean, name};
use super::gzip;
use super::signature::Address;
use crate::account::{Account, STREAM};
use crate::app::App;
use crate::error::ApiError;
use crate::gate::{self, SandboxId};

/// A request for a file that was found to be allowed.
pub struct Access {
    /// The sandbox.
    pub sandbox: Reached,
    /// Which file, and on whose behalf.
    pub address: Address,
}

impl Access {
    /// Checks who asks, by token or signature, and finds the sandbox.
    pub async fn new(app: &App, request: Request) -> Result<(Self, HeaderMap, Body), Response> {
        let (id, address) = allowed(app, &request).map_err(|response| *response)?;
        let (parts, body) = request.into_parts();
        let sandbox = app.sandboxes().reach(&id).await.map_err(|error| match error {
            LifeError::NotFound { .. } | LifeError::Paused(_) => gate::unreachable_sandbox(&id),
            error => ApiError::from(error).into_response(),
        })?;
        Ok((Self { sandbox, address }, parts.headers, body))
    }

    /// A path, used for the user whom the address names.
    pub fn target(&self, path: &str) -> Result<Target, ApiError> {
        let user = self.address.username.clone().filter(|name| !name.is_empty());
        call::target(path, user).map_err(ApiError::bad_request)
    }
}

fn allowed(app: &App, request: &Request) -> Result<(String, Address), Box<Response>> {
    let refuse = |error: ApiError| Box::new(error.into_response());
    let Some(SandboxId(id)) = request.extensions().get::<SandboxId>() else {
        return Err(refuse(ApiError::not_found("no sandbox is named")));
    };
    let Query(address) = Query::<Address>::try_from_uri(request.uri()).map_err(|error| refuse(error.into()))?;
    let record = app.sandboxes().get_any(id).map_err(|_| Box::new(gate::unreachable_sandbox(id)))?;
    if !gate::may_use(app, &record, request) {
        app.metrics().signature_compared();
        address.check(&record.token, request.method()).map_err(refuse)?;
    }
    Ok((id.clone(), address))
}

/// A failure on a file, in the statuses that the SDKs know.
pub fn refused(path: &str, error: &ClientError) -> ApiError {
    let (status, message) = match error.failure().map(|failure| failure.code) {
        Some(ErrorCode::NotFound) => (StatusCode::NOT_FOUND, format!("path '{path}' does not exist: {error}")),
        Some(ErrorCode::NoUser) => (StatusCode::UNAUTHORIZED, format!("error looking up the user: {error}")),
        Some(ErrorCode::Denied) => (StatusCode::FORBIDDEN, error.to_string()),
        Some(ErrorCode::Exhausted) => (StatusCode::INSUFFICIENT_STORAGE, format!("not enough space: {error}")),
        Some(_) => (StatusCode::BAD_REQUEST, error.to_string()),
        None => (StatusCode::BAD_GATEWAY, error.to_string()),
    };
    ApiError::new(status, message)
}

/// `GET /files`.
pub async fn download(State(app): State<App>, account: Account, request: Request) -> Response {
    if let Err(error) = account.charge(STREAM) {
        return error.into_response();
    }
    match Access::new(&app, request).await {
        Ok((access, headers, _)) => send(access, &headers).await.unwrap_or_else(IntoResponse::into_response),
        Err(response) => response,
    }
}

async fn send(access: Access, headers: &HeaderMap) -> Result<Response, ApiError> {
    let path = access.address.path.clone().unwrap_or_default();
    let target = access.target(&path)?;
    let agent = access.sandbox.agent();
    let mut part = None;
    if let Some(wish) = headers.get(header::RANGE).and_then(|value| value.to_str().ok()) {
        let looked_at = agent.read(target.clone(), 0, Some(0)).await;
        let (entry, _) = looked_at.map_err(|error| refused(&path, &error))?;
        part = match range(wish, entry.size) {
            Wish::Part(part) => Some((part, entry.size)),
            Wish::Whole => None,
            Wish::Beyond => {
                let size = format!("bytes */{}", entry.size);
                return Ok((StatusCode::RANGE_NOT_SATISFIABLE, [(header::CONTENT_RANGE, size)]).into_response());
            }
        };
    }
    let (offset, length) = part.as_ref().map_or((0, None), |(part, _)| (part.start, Some(part.end - part.start)));
    let read = agent.read(target, offset, length).await;
    let (entry, download) = read.map_err(|error| refused(&path, &error))?;
    let mut response = Response::new(Body::empty());
    let answer = response.headers_mut();
    answer.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    answer.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    // The content is the sandbox's: no browser is to take it for a page of this server's.
    answer.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    answer.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let called = clean(&String::from_utf8_lossy(&entry.path));
    let called = format!("inline; filename*=UTF-8''{}", utf8_percent_encode(name(&called), NON_ALPHANUMERIC));
    if let Ok(value) = called.parse() {
        answer.insert(header::CONTENT_DISPOSITION, value);
    }
    if part.is_none() && gzip::is_wanted(headers) {
        answer.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        *response.body_mut() = Body::from_stream(gzip::compress(Box::pin(content(access.sandbox, download))));
        return Ok(response);
    }
    // A file that claims to be empty may not be: those of procfs.
    let size = length.or((entry.size > 0).then_some(entry.size));
    if let Some(size) = size {
        answer.insert(header::CONTENT_LENGTH, size.into());
    }
    if let Some((part, size)) = part {
        if let Ok(value) = format!("bytes {}-{}/{size}", part.start, part.end - 1).parse() {
            answer.insert(header::CONTENT_RANGE, value);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    *response.body_mut() = Body::from_stream(content(access.sandbox, download));
    Ok(response)
}

fn content(sandbox: Reached, download: Download) -> impl Stream<Item = io::Result<bytes::Bytes>> + Send {
    stream::try_unfold((sandbox, download), |(sandbox, mut download)| async move {
        let chunk = download.chunk().await.map_err(io::Error::other)?;
        Ok(chunk.map(|chunk| (chunk, (sandbox, download))))
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Wish {
    Whole,
    Part(Range<u64>),
    Beyond,
}

/// What `Range` asks for; several parts, or what makes no sense, is answered with the whole.
fn range(wish: &str, size: u64) -> Wish {
    let Some((start, end)) = wish.strip_prefix("bytes=").and_then(|parts| parts.trim().split_once('-')) else {
        return Wish::Whole;
    };
    let number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let part = match (start, end) {
        ("", last) => match number(last) {
            Some(last) => size.saturating_sub(last)..size,
            None => return Wish::Whole,
        },
        (start, "") => match number(start) {
            Some(start) => start..size,
            None => return Wish::Whole,
        },
        (start, end) => match (number(start), number(end)) {
            (Some(start), Some(end)) if start <= end => start..end.saturating_add(1).min(size),
            _ => return Wish::Whole,
        },
    };
    match (size, part.start < part.end) {
        (0, _) => Wish::Whole,
        (_, true) => Wish::Part(part),
        (_, false) => Wish::Beyond,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_understood() {
        for (wish, part) in [("bytes=0-4", 0..5), ("bytes=5-", 5..10), ("bytes=-3", 7..10), ("bytes=2-99", 2..10)] {
            assert_eq!(range(wish, 10), Wish::Part(part), "{wish}");
        }
        for wish in ["bytes=10-", "bytes=10-12", "bytes=-0"] {
            assert_eq!(range(wish, 10), Wish::Beyond, "{wish}");
        }
        for wish in ["bytes=4-2", "bytes=a-b", "bytes=0-1,3-4", "lines=1-2", "bytes=-", "bytes=+1-2", ""] {
            assert_eq!(range(wish, 10), Wish::Whole, "{wish}");
        }
        assert_eq!(range("bytes=0-", 0), Wish::Whole);
    }
}
