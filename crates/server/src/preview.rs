//! HTTP to a port inside a sandbox.

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use sloplet_engine::life::Record;

use crate::app::App;
use crate::error::ApiError;

/// `/preview/<id>/<port>/…`.
pub fn router() -> Router<App> {
    Router::new()
}

/// A request for `<port>-<id>.<domain>`, or with E2B's headers.
pub async fn by_host(_app: &App, _record: &Record, _port: u16, _request: Request<Body>) -> Response {
    ApiError::not_found("not yet").into_response()
}
