//! Processes and files of one sandbox: what answers on its port 49983.

use axum::Router;
use axum::http::{Method, Uri};

use crate::app::App;

/// All its routes. Every request carries [`SandboxId`](crate::gate::SandboxId): it may use that sandbox.
pub fn router() -> Router<App> {
    Router::new()
}

/// The sandbox whose token made the signature in this address.
pub fn signed_for(_app: &App, _method: &Method, _uri: &Uri) -> Option<String> {
    None
}
