//! The Connect protocol with JSON: single messages, and streams of enveloped ones.
//!
//! Single: the body is the message; an error is a status and `{"code": "…", "message": "…"}`. Streams: each message
//! follows a byte of flags and its length in four; the last one has the flag [`END`] and is `{}` or `{"error": {…}}`.

use std::io;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use sloplet_client::ClientError;
use sloplet_engine::life::LifeError;
use sloplet_wire::ErrorCode;

use super::rest;
use crate::account::Account;
use crate::bodies;
use crate::error::ApiError;

/// The type of single messages.
pub const SINGLE: &str = "application/json";

/// The type of streams.
pub const STREAM: &str = "application/connect+json";

/// Flag of a message that is compressed.
const COMPRESSED: u8 = 1;

/// Flag of the last message of an answer.
const END: u8 = 2;

/// Bytes before each message of a stream.
const HEAD: usize = 5;

/// The largest message taken.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// How long a message may take to arrive once it has begun.
const PATIENCE: Duration = Duration::from_secs(60);

/// Kinds of failure that occur here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// The request makes no sense.
    InvalidArgument,
    /// It took too long.
    DeadlineExceeded,
    /// There is no such thing.
    NotFound,
    /// It is there already.
    AlreadyExists,
    /// That user may not.
    PermissionDenied,
    /// Something is used up, or too much was asked for.
    ResourceExhausted,
    /// Not in this state.
    FailedPrecondition,
    /// This server does not know it.
    Unimplemented,
    /// Any other.
    Internal,
    /// The sandbox cannot be reached.
    Unavailable,
    /// There is no such user.
    Unauthenticated,
}

impl Code {
    fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::ResourceExhausted => "resource_exhausted",
            Self::FailedPrecondition => "failed_precondition",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::Unauthenticated => "unauthenticated",
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition => StatusCode::BAD_REQUEST,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
        }
    }
}

/// A call that was not carried out. As a response it is that of a single message; see [`RpcError::streamed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcError {
    /// The kind.
    pub code: Code,
    /// For people.
    pub message: String,
}

impl RpcError {
    /// Of this kind.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The request makes no sense.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// It took too long.
    pub fn late() -> Self {
        Self::new(Code::DeadlineExceeded, "the time for this request is over")
    }

    /// As the answer to a streaming call: its one message is the last.
    pub fn streamed(&self) -> Response {
        stream_of(futures_util::stream::iter([Ok(last(Some(self)))]))
    }

    fn json(&self) -> serde_json::Value {
        json!({"code": self.code.name(), "message": self.message})
    }
}

impl IntoResponse for RpcError {
    fn into_response(self) -> Response {
        (self.code.status(), Json(self.json())).into_response()
    }
}

impl From<ClientError> for RpcError {
    fn from(error: ClientError) -> Self {
        let code = match error.failure().map(|failure| failure.code) {
            Some(ErrorCode::NotFound) => Code::NotFound,
            Some(ErrorCode::Exists) => Code::AlreadyExists,
            Some(ErrorCode::Denied) => Code::PermissionDenied,
            Some(ErrorCode::Exhausted) => Code::ResourceExhausted,
            Some(ErrorCode::Invalid | ErrorCode::WrongType) => Code::InvalidArgument,
            Some(ErrorCode::NoUser) => Code::Unauthenticated,
            Some(ErrorCode::Unsupported) => Code::Unimplemented,
            Some(_) => Code::Internal,
            None => match error {
                ClientError::TooLarge { .. } => Code::InvalidArgument,
                ClientError::TooMuch { .. } => Code::ResourceExhausted,
                ClientError::InputClosed => Code::FailedPrecondition,
                _ => Code::Unavailable,
            },
        };
        Self::new(code, error.to_string())
    }
}

impl From<LifeError> for RpcError {
    fn from(error: LifeError) -> Self {
        match error {
            // In words that the SDKs look for.
            LifeError::NotFound { .. } | LifeError::Paused(_) => {
                Self::new(Code::Unavailable, "The sandbox was not found")
            }
            LifeError::Agent(error) => error.into(),
            error => Self::new(Code::Unavailable, error.to_string()),
        }
    }
}

/// Refuses what is not in the one encoding spoken here.
pub fn check_type(headers: &HeaderMap, right: &'static str) -> Result<(), Box<Response>> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case(right) {
        return Ok(());
    }
    let message = format!("content type '{given}' is not spoken here: send '{right}'");
    let body = Json(RpcError::invalid(message).json());
    Err(Box::new((StatusCode::UNSUPPORTED_MEDIA_TYPE, [("accept-post", right)], body).into_response()))
}

/// Refuses what is compressed; `name` is the header that would say so.
pub fn check_compression(headers: &HeaderMap, name: &str) -> Result<(), RpcError> {
    match headers.get(name) {
        Some(value) if value != "identity" => {
            Err(RpcError::new(Code::Unimplemented, "compressed messages are not taken; only 'identity' is"))
        }
        _ => Ok(()),
    }
}

/// Reads a single message.
pub async fn read_single<T: DeserializeOwned>(body: Body, account: Option<&Account>) -> Result<T, RpcError> {
    let read = bodies::whole(body, MAX_MESSAGE, account, bodies::PATIENCE).await;
    parse(&read.map_err(|error| match error.status {
        StatusCode::REQUEST_TIMEOUT => RpcError::late(),
        StatusCode::SERVICE_UNAVAILABLE => RpcError::new(Code::ResourceExhausted, error.message),
        _ => too_long(),
    })?)
}

fn too_long() -> RpcError {
    RpcError::new(Code::ResourceExhausted, format!("a message did not arrive whole, or exceeds {MAX_MESSAGE} bytes"))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RpcError> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    // An array would be taken for the fields of a message in their order.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(RpcError::invalid("the message is not a JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|error| RpcError::invalid(format!("the message is not as expected: {error}")))
}

/// The messages of a streaming request.
pub struct Messages {
    body: BodyDataStream,
    buffer: BytesMut,
    account: Option<Account>,
    /// The longest message so far, which is counted.
    counted: usize,
}

impl Messages {
    /// In this body.
    pub fn new(body: Body, account: Option<Account>) -> Self {
        Self { body: body.into_data_stream(), buffer: BytesMut::new(), account, counted: 0 }
    }

    /// The next one; `None` at the end.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, RpcError> {
        if !self.fill(HEAD).await? {
            return match self.buffer.is_empty() {
                true => Ok(None),
                false => Err(RpcError::invalid("the stream ends in the middle of a message")),
            };
        }
        let flags = self.buffer[0];
        let length = u32::from_be_bytes([self.buffer[1], self.buffer[2], self.buffer[3], self.buffer[4]]) as usize;
        if flags & COMPRESSED != 0 {
            return Err(RpcError::new(Code::Unimplemented, "compressed messages are not taken"));
        }
        if flags != 0 {
            return Err(RpcError::invalid(format!("a message has unknown flags {flags:#04x}")));
        }
        if length > MAX_MESSAGE {
            return Err(too_long());
        }
        self.count(length)?;
        // It has begun: the rest must follow.
        let filled = tokio::time::timeout(PATIENCE, self.fill(HEAD + length)).await.map_err(|_| RpcError::late())?;
        if !filled? {
            return Err(RpcError::invalid("the stream ends in the middle of a message"));
        }
        self.buffer.advance(HEAD);
        parse(&self.buffer.split_to(length)).map(Some)
    }

    /// Counts what a message of that length makes the server hold: it comes whole, is understood, and used.
    fn count(&mut self, length: usize) -> Result<(), RpcError> {
        let more = length.saturating_sub(self.counted);
        if let Some(account) = self.account.as_ref().filter(|_| more > 0) {
            let full = |error: ApiError| RpcError::new(Code::ResourceExhausted, error.message);
            account.charge(bodies::TIMES * more as u64).map_err(full)?;
            self.counted = length;
        }
        Ok(())
    }

    /// Reads the rest, which nobody wants.
    pub async fn discard(&mut self) {
        rest::discard(&mut self.body).await;
    }

    async fn fill(&mut self, length: usize) -> Result<bool, RpcError> {
        while self.buffer.len() < length {
            match self.body.next().await {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
                Some(Err(error)) => return Err(RpcError::invalid(format!("the stream broke off: {error}"))),
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// A message of a stream.
pub fn message(value: &impl Serialize) -> Bytes {
    envelope(0, &serde_json::to_vec(value).unwrap_or_default())
}

/// The last message of a stream.
pub fn last(error: Option<&RpcError>) -> Bytes {
    let value = error.map_or_else(|| json!({}), |error| json!({"error": error.json()}));
    envelope(END, value.to_string().as_bytes())
}

fn envelope(flags: u8, content: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(HEAD + content.len());
    push_envelope(&mut out, flags, |out| out.extend_from_slice(content));
    out.into()
}

/// Adds a message whose content `write` adds.
pub fn push_message(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    push_envelope(out, 0, write);
}

fn push_envelope(out: &mut Vec<u8>, flags: u8, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[flags, 0, 0, 0, 0]);
    write(out);
    let length = (out.len() - start - HEAD) as u32;
    out[start + 1..start + HEAD].copy_from_slice(&length.to_be_bytes());
}

/// A streaming answer. An error breaks it off.
pub fn stream_of(messages: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Response {
    ([(header::CONTENT_TYPE, STREAM)], Body::from_stream(messages)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: &'static [u8]) -> Result<Vec<serde_json::Value>, Code> {
        // One byte at a time: messages do not come whole.
        let pieces = bytes.chunks(1).map(|piece| Ok::<_, std::io::Error>(Bytes::from_static(piece)));
        let mut messages = Messages::new(Body::from_stream(futures_util::stream::iter(pieces)), None);
        let mut all = Vec::new();
        while let Some(message) = messages.next().await.map_err(|error| error.code)? {
            all.push(message);
        }
        Ok(all)
    }

    #[tokio::test]
    async fn messages_are_cut_out_of_a_stream() {
        assert_eq!(read(b"").await, Ok(vec![]));
        assert_eq!(read(b"\0\0\0\0\x07{\"a\":1}\0\0\0\0\0").await, Ok(vec![json!({"a": 1}), json!({})]));
    }

    #[tokio::test]
    async fn malformed_streams_are_refused() {
        assert_eq!(read(b"\0\0\0").await, Err(Code::InvalidArgument));
        assert_eq!(read(b"\0\0\0\0\x07{\"a\"").await, Err(Code::InvalidArgument));
        assert_eq!(read(b"\0\0\0\0\x02{]").await, Err(Code::InvalidArgument));
        assert_eq!(read(b"\0\0\0\0\x02[]").await, Err(Code::InvalidArgument));
        assert_eq!(read(b"\x01\0\0\0\x02{}").await, Err(Code::Unimplemented));
        assert_eq!(read(b"\x02\0\0\0\x02{}").await, Err(Code::InvalidArgument));
        assert_eq!(read(b"\0\xff\xff\xff\xff").await, Err(Code::ResourceExhausted));
    }

    #[test]
    fn envelopes_tell_their_length() {
        assert_eq!(&last(None)[..], b"\x02\0\0\0\x02{}");
        let error = RpcError::new(Code::NotFound, "x");
        assert!(last(Some(&error)).ends_with(br#"{"error":{"code":"not_found","message":"x"}}"#));
    }

    #[test]
    fn only_json_is_spoken() {
        let headers = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, value.parse().unwrap());
            headers
        };
        assert!(check_type(&headers("application/json; charset=utf-8"), SINGLE).is_ok());
        for other in ["application/proto", "application/connect+json", "text/plain", ""] {
            let refused = check_type(&headers(other), SINGLE).unwrap_err();
            assert_eq!(refused.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE, "{other}");
        }
    }
}
