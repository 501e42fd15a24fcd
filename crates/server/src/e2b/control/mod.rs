//! Sandboxes, snapshots, templates, volumes.

use axum::Router;

use crate::app::App;

/// All its routes; who asks was checked.
pub fn router() -> Router<App> {
    Router::new()
}

/// Routes that check for themselves who asks: uploads of a template's files, content of volumes.
pub fn open_router() -> Router<App> {
    Router::new()
}
