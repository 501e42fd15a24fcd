//! Bodies on their way through.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::redact::{Needles, Redactor};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Any body.
pub(crate) type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A body that is there already.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Why a body could not be held.
#[derive(Debug)]
pub(crate) enum HoldError {
    TooLong,
    Broken,
}

/// Reads a body to its end, if it is not longer than this.
pub(crate) async fn hold<B>(body: B, longest: usize) -> Result<Bytes, HoldError>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    match Limited::new(body, longest).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(HoldError::TooLong),
        Err(_) => Err(HoldError::Broken),
    }
}

/// A body in which values are replaced as it streams.
pub(crate) struct Redacted {
    inner: Body,
    needles: Needles,
    redactor: Redactor,
    state: State,
}

enum State {
    Streaming,
    /// What was held back is out; these come after it.
    Trailers(Option<Frame<Bytes>>),
    Over,
}

impl Redacted {
    pub fn new(inner: Body, needles: Needles) -> Self {
        Self { inner, redactor: Redactor::new(needles.clone()), needles, state: State::Streaming }
    }

    fn end(&mut self, trailers: Option<Frame<Bytes>>) -> Option<Frame<Bytes>> {
        let held = self.redactor.finish();
        if held.is_empty() {
            self.state = State::Over;
            return trailers;
        }
        self.state = State::Trailers(trailers);
        Some(Frame::data(held.into()))
    }
}

impl HttpBody for Redacted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            match &mut self.state {
                State::Over => return Poll::Ready(None),
                State::Trailers(trailers) => {
                    let trailers = trailers.take();
                    self.state = State::Over;
                    return Poll::Ready(trailers.map(Ok));
                }
                State::Streaming => {}
            }
            let frame = match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(frame) => frame?,
                None => return Poll::Ready(self.end(None).map(Ok)),
            };
            match frame.into_data() {
                Ok(data) => {
                    let passed = self.redactor.push(&data);
                    if !passed.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(passed.into()))));
                    }
                }
                Err(mut trailers) => {
                    if let Some(headers) = trailers.trailers_mut() {
                        self.needles.replace_headers(headers);
                    }
                    return Poll::Ready(self.end(Some(trailers)).map(Ok));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.state, State::Over)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
