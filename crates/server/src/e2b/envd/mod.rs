//! Processes and files of one sandbox: what answers on its port 49983.
//!
//! - `connect`: the protocol; `json`: its values; `call`: which sandbox, as whom, until when.
//! - `process`, `output`, `input`: commands and terminals.
//! - `filesystem`, `entry`, `watch`, `watchers`: what is where, and changes of that.
//! - `files`, `upload`, `gzip`, `signature`: content of files; `rest`: what is left of a refused body.

mod call;
mod connect;
mod entry;
mod files;
mod filesystem;
mod gzip;
mod input;
mod json;
mod output;
mod process;
mod rest;
mod signature;
mod upload;
mod watch;
mod watchers;

use std::collections::BTreeMap;

use axum::extract::{Query, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Extension, Json, Router};

use crate::app::App;
use crate::error::ApiError;
use crate::gate::{self, SandboxId};
use signature::Address;

/// All its routes. Every request carries [`SandboxId`]: it may use that sandbox, except that who asks for `/files` with
/// a signature is checked here.
pub fn router() -> Router<App> {
    Router::new()
        .merge(process::router())
        .merge(filesystem::router())
        .route("/process.Process/{method}", any(process::unknown))
        .route("/filesystem.Filesystem/{method}", any(process::unknown))
        .route("/files", get(files::download).post(upload::upload))
        .route("/health", get(health))
        .route("/envs", get(environment))
}

/// The sandbox whose token made the signature in this address. It may have expired.
pub fn signed_for(app: &App, method: &Method, uri: &Uri) -> Option<String> {
    let Query(address) = Query::<Address>::try_from_uri(uri).ok()?;
    address.signature.as_ref()?;
    app.sandboxes()
        .all()
        .into_iter()
        .find(|record| address.is_signed_with(&record.token, method))
        .map(|record| record.id)
}

async fn health(State(app): State<App>, Extension(SandboxId(id)): Extension<SandboxId>) -> Response {
    match app.sandboxes().reach(&id).await {
        Ok(_) => StatusCode::NO_CONTENT.into_response(),
        Err(_) => gate::unreachable_sandbox(&id),
    }
}

/// The variables that the sandbox was made with.
async fn environment(
    State(app): State<App>,
    Extension(SandboxId(id)): Extension<SandboxId>,
) -> Result<impl IntoResponse, ApiError> {
    let record = app.sandboxes().get_any(&id)?;
    let variables = record.request.spec.env.iter().filter_map(|variable| variable.split_once('='));
    let variables: BTreeMap<String, String> = variables.map(|(name, value)| (name.into(), value.into())).collect();
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(variables)))
}
