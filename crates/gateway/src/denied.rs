//! Requests that are not passed on.

use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};

use crate::account::{Cap, Refusal};
use crate::body::{Body, full};
use crate::llm::{Refused, Shape};
use crate::vault::PutError;

/// A request that is not passed on, and how its client is told.
pub(crate) struct Denied {
    pub status: StatusCode,
    pub message: String,
    /// In the words of this API.
    pub shape: Option<(Shape, Refused)>,
    pub retry_after: Option<u64>,
}

impl Denied {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), shape: None, retry_after: None }
    }

    /// A call that cannot be counted. 400 is not tried again.
    pub fn uncounted(shape: Shape, message: impl Into<String>) -> Self {
        let shape = Some((shape, Refused::Request));
        Self { status: StatusCode::BAD_REQUEST, message: message.into(), shape, retry_after: None }
    }

    /// A call that does not fit. 402 is not tried again; too many in a minute are, later.
    pub fn over(shape: Shape, refusal: &Refusal) -> Self {
        let (status, kind) = match refusal.which {
            Cap::RequestsPerMinute | Cap::ExecPerMinute => (StatusCode::TOO_MANY_REQUESTS, Refused::Rate),
            Cap::Usd | Cap::Tokens => (StatusCode::PAYMENT_REQUIRED, Refused::Budget),
        };
        let retry_after = refusal.retry_after.map(|wait| wait.as_secs() + 1);
        Self { status, message: refusal.message.clone(), shape: Some((shape, kind)), retry_after }
    }

    /// A value that cannot be put where it was asked for.
    pub fn put(error: &PutError) -> Self {
        Self::new(StatusCode::FORBIDDEN, error.to_string())
    }

    pub fn response(self) -> Response<Body> {
        let (kind, text) = match self.shape {
            Some((shape, refused)) => ("application/json", shape.error(refused, &self.message)),
            None => ("text/plain; charset=utf-8", format!("{}\n", self.message)),
        };
        let mut response = Response::new(full(text));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        match self.retry_after {
            Some(seconds) => headers.insert(RETRY_AFTER, HeaderValue::from(seconds)),
            None => headers.insert("x-should-retry", HeaderValue::from_static("false")),
        };
        response
    }
}
