//! Our own API.

use axum::Router;

use crate::app::App;

/// All its routes, under `/v1`; who asks was checked.
pub fn router() -> Router<App> {
    Router::new()
}

/// Routes that anybody may ask: the OpenAPI document.
pub fn open_router() -> Router<App> {
    Router::new()
}
