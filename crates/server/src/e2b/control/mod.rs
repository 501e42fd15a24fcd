//! Sandboxes, snapshots, templates, volumes, secrets: what E2B's SDKs ask of `E2B_API_URL`.
//!
//! One file for each kind of thing. `extract` reads requests, so that whatever is wrong with one is answered in the
//! form that the SDKs parse; `page` cuts listings into pages.
//!
//! # Limitations
//! Secrets, and what network rules say beyond what may be reached, are kept and returned, but nothing acts on them.

mod content;
pub(crate) mod create;
mod domain;
mod extract;
mod files;
mod list;
mod logs;
mod metrics;
pub(crate) mod network;
pub(crate) mod page;
pub(crate) mod query;
mod sandboxes;
pub(crate) mod secrets;
mod shown;
mod snapshots;
pub(crate) mod tags;
pub(crate) mod templates;
pub(crate) mod time;
mod tree;
mod volumes;

use axum::Router;
use axum::routing::{delete, get, patch, post, put};

use crate::app::App;

/// All its routes; who asks was checked.
pub fn router() -> Router<App> {
    Router::new()
        .route("/sandboxes", get(list::v1).post(create::v1))
        .route("/v2/sandboxes", get(list::v2).post(create::v2))
        .route("/sandboxes/metrics", get(metrics::of_several))
        .route("/sandboxes/{id}", get(sandboxes::info).delete(sandboxes::kill))
        .route("/sandboxes/{id}/connect", post(sandboxes::connect))
        .route("/v2/sandboxes/{id}/connect", post(sandboxes::connect))
        .route("/sandboxes/{id}/fork", post(sandboxes::fork))
        .route("/sandboxes/{id}/logs", get(logs::v1))
        .route("/v2/sandboxes/{id}/logs", get(logs::v2))
        .route("/sandboxes/{id}/metrics", get(metrics::of_one))
        .route("/sandboxes/{id}/network", put(network::replace))
        .route("/sandboxes/{id}/pause", post(sandboxes::pause))
        .route("/sandboxes/{id}/refreshes", post(sandboxes::refresh))
        .route("/sandboxes/{id}/resume", post(sandboxes::resume))
        .route("/sandboxes/{id}/snapshots", post(snapshots::create))
        .route("/sandboxes/{id}/timeout", post(sandboxes::set_timeout))
        .route("/snapshots", get(snapshots::list))
        .route("/templates", get(templates::list_v1))
        .route("/default-templates", get(templates::ready_made))
        .route("/v2/templates", get(templates::list_v2))
        .route("/v3/templates", post(templates::request))
        .route("/templates/aliases/{alias}", get(templates::alias))
        .route("/templates/tags", post(tags::assign).delete(tags::remove))
        .route("/templates/{id}", get(templates::info).delete(templates::remove).patch(templates::update_v1))
        .route("/v2/templates/{id}", patch(templates::update_v2))
        .route("/v2/templates/{id}/builds/{build}", post(templates::start))
        .route("/templates/{id}/builds/{build}/status", get(templates::status))
        .route("/templates/{id}/builds/{build}/logs", get(templates::logs))
        .route("/templates/{id}/files/{hash}", get(files::address))
        .route("/templates/{id}/tags", get(tags::list))
        .route("/templates/{id}/tags/count", get(tags::count))
        .route("/templates/{id}/tags/exists", get(tags::exists))
        .route("/templates/{id}/tags/groups", get(tags::groups))
        .route("/templates/{id}/tags/{tag}/assignments", get(tags::assignments))
        .route("/volumes", get(volumes::list).post(volumes::create))
        .route("/volumes/{id}", get(volumes::info).delete(volumes::remove))
        .route("/secrets", get(secrets::list).post(secrets::create))
        .route("/secrets/{id}", get(secrets::info).post(secrets::update).merge(delete(secrets::remove)))
}

/// Routes that check for themselves who asks: uploads of a template's files, content of volumes.
pub fn open_router() -> Router<App> {
    Router::new()
        .route("/uploads/{owner}/{hash}", put(files::upload))
        .route("/volumecontent/{id}/dir", get(content::list).post(content::make_dir))
        .route("/volumecontent/{id}/path", get(content::stat).patch(content::change).delete(content::remove))
        .route("/volumecontent/{id}/file", get(content::read).put(content::write))
}
