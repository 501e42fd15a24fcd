//! Our own API.
//!
//! Handlers say what they take and give; [`document`] makes the OpenAPI document of that. `docs/openapi.json` is that
//! document, checked in.

mod archives;
mod attach;
pub(crate) mod audit;
mod changes;
mod cost;
pub mod document;
mod events;
mod exec;
pub(crate) mod extract;
pub(crate) mod files;
mod images;
mod info;
mod input;
mod keys;
mod lifecycle;
mod metrics;
mod network;
mod output;
mod pools;
pub(crate) mod ports;
mod processes;
pub(crate) mod reach;
pub(crate) mod sandbox;
mod sandboxes;
mod secrets;
mod sessions;
mod snapshots;
mod ssh;
mod transfers;
mod volumes;

pub use info::Verification;
pub use sandbox::CreateSandbox;
pub use sandboxes::make;

use axum::extract::DefaultBodyLimit;
use axum::http::header;
use axum::response::IntoResponse;
use axum::{Extension, Router, routing};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;

/// All its routes, under `/v1`; who asks was checked.
pub fn router() -> Router<App> {
    let (router, _) = routes().split_for_parts();
    router.layer(DefaultBodyLimit::max(extract::BODY)).layer(Extension(sessions::Busy::default()))
}

/// Routes that anybody may ask: the OpenAPI document.
pub fn open_router() -> Router<App> {
    let serve = || async { ([(header::CONTENT_TYPE, "application/json")], document::text()).into_response() };
    Router::new().route("/v1/openapi.json", routing::get(serve))
}

fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(sandboxes::create, sandboxes::list))
        .routes(routes!(sandboxes::get, sandboxes::remove, sandboxes::change))
        .routes(routes!(lifecycle::pause))
        .routes(routes!(lifecycle::stop))
        .routes(routes!(lifecycle::resume))
        .routes(routes!(lifecycle::snapshot))
        .routes(routes!(lifecycle::fork))
        .routes(routes!(lifecycle::fork_snapshot))
        .routes(routes!(lifecycle::usage))
        .routes(routes!(metrics::metrics))
        .routes(routes!(lifecycle::capabilities))
        .routes(routes!(exec::exec))
        .routes(routes!(attach::attach))
        .routes(routes!(processes::start, processes::list))
        .routes(routes!(processes::get, processes::kill))
        .routes(routes!(processes::signal))
        .routes(routes!(processes::stdin))
        .routes(routes!(processes::resize))
        .routes(routes!(output::events))
        .routes(routes!(output::logs))
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::get, sessions::close))
        .routes(routes!(sessions::exec))
        .routes(routes!(sessions::start))
        .routes(routes!(files::read, files::write, files::remove))
        .routes(routes!(files::stat))
        .routes(routes!(files::list))
        .routes(routes!(files::mkdir))
        .routes(routes!(files::rename))
        .routes(routes!(files::chmod))
        .routes(routes!(files::watch))
        .routes(routes!(files::pack, files::unpack))
        .routes(routes!(changes::list))
        .routes(routes!(changes::patch))
        .routes(routes!(transfers::transfer))
        .routes(routes!(transfers::presign))
        .routes(routes!(ports::list))
        .routes(routes!(ports::link))
        .routes(routes!(ports::connect))
        .routes(routes!(network::get, network::replace))
        .routes(routes!(network::budget, network::set_budget))
        .routes(routes!(secrets::give))
        .routes(routes!(network::approvals))
        .routes(routes!(network::answer))
        .routes(routes!(images::list, images::import, images::remove))
        .routes(routes!(snapshots::list, archives::import))
        .routes(routes!(archives::export, transfers::export_to))
        .routes(routes!(snapshots::get, snapshots::remove))
        .routes(routes!(volumes::create, volumes::list))
        .routes(routes!(volumes::remove))
        .routes(routes!(pools::list))
        .routes(routes!(pools::get, pools::set, pools::remove))
        .routes(routes!(pools::drain))
        .routes(routes!(pools::fill))
        .routes(routes!(keys::create, keys::list))
        .routes(routes!(keys::remove))
        .routes(routes!(ssh::add, ssh::list))
        .routes(routes!(ssh::remove))
        .routes(routes!(ssh::connect))
        .routes(routes!(audit::list))
        .routes(routes!(audit::verify))
        .routes(routes!(audit::head))
        .routes(routes!(audit::output))
        .routes(routes!(events::events))
        .routes(routes!(cost::cost))
        .routes(routes!(info::get))
}
