//! What one request makes the server hold in memory, counted against the allowance of whoever asks.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use sloplet_engine::allowance::{Allowance, Taken};

use crate::app::App;
use crate::auth::OwnUser;
use crate::error::ApiError;

/// What a request costs while it is under way: what waits on its connection, in both directions.
const REQUEST: u64 = 128 * 1024;

/// What a stream out of a sandbox costs: its agent may be so far ahead of a client that does not read.
pub const STREAM: u64 = sloplet_wire::flow::INITIAL_WINDOW as u64;

/// What one request holds; clones share it. All is given back when the last is gone.
#[derive(Debug, Clone)]
pub struct Account(Arc<Mutex<Taken>>);

impl Account {
    /// For a request of somebody with this allowance. This server's own user always gets through.
    fn open(allowance: &Allowance, own_user: bool) -> Result<Self, ApiError> {
        let account = Self(Arc::new(Mutex::new(allowance.begin())));
        match own_user {
            true => Ok(account),
            false => account.charge(REQUEST).map(|()| account),
        }
    }

    /// Counts so many bytes more.
    pub fn charge(&self, bytes: u64) -> Result<(), ApiError> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).grow_reclaiming(bytes) {
            true => Ok(()),
            false => Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, FULL)),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Account {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let account = parts.extensions.get::<Self>().cloned();
        account.ok_or_else(|| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "nobody counts what this request holds"))
    }
}

/// What they are told for whom there is no more.
const FULL: &str = "the requests of this owner hold as much of the server's memory as they may: \
                    read the answers, end some, and try again";

/// Answers a request of an owner's within what the owner may make the server hold.
pub async fn within<F: Future<Output = Response>>(
    app: &App,
    owner: &str,
    mut request: Request,
    answer: impl FnOnce(Request) -> F,
) -> Response {
    let allowance = app.sandboxes().engine().allowances().of(owner);
    let account = match Account::open(&allowance, request.extensions().get::<OwnUser>().is_some()) {
        Ok(account) => account,
        Err(error) => return ([(header::RETRY_AFTER, "1")], error).into_response(),
    };
    request.extensions_mut().insert(account.clone());
    let mut response = answer(request).await;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        // It goes with the connection.
        response.extensions_mut().insert(account);
        return response;
    }
    response.map(|body| Body::new(Until::new(body, account)))
}

/// A body that keeps something until it is sent, or given up.
pub(crate) struct Until<T> {
    body: Body,
    _kept: T,
}

impl<T> Until<T> {
    pub(crate) fn new(body: Body, kept: T) -> Self {
        Self { body, _kept: kept }
    }
}

impl<T: Unpin> HttpBody for Until<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sloplet_engine::allowance::Allowances;

    #[test]
    fn requests_are_refused_beyond_the_owners_share_and_others_are_not() {
        let all = Allowances::new(REQUEST * 8);
        let mine: Vec<Account> = (0..4).map(|_| Account::open(&all.of("me"), false).unwrap()).collect();
        let refused = Account::open(&all.of("me"), false).unwrap_err();
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(Account::open(&all.of("me"), true).is_ok(), "the server's own user");
        let theirs = Account::open(&all.of("you"), false).unwrap();
        assert!(theirs.charge(REQUEST * 4).is_err() && theirs.charge(REQUEST).is_ok());
        drop(mine);
        assert!(Account::open(&all.of("me"), false).is_ok());
    }
}
