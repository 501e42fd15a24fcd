//! Processes and files of one sandbox: what answers on its port 49983.
//!
//! - `connect`: the protocol; `json`: its values; `call`: which sandbox, as whom, until when.
//! - `process`, `output`, `input`: commands and terminals.
//! - `filesystem`, `entry`, `watch`, `watchers`: what is where, and changes of that.
//! - `files`, `upload`, `gzip`, `signature`: content of files; `rest`: what is left of a refused body.

pub(crate) mod call;
pub(crate) mod connect;
pub(crate) mod entry;
mod files;
pub(crate) mod filesystem;
pub(crate) mod gzip;
mod input;
pub(crate) mod json;
mod output;
pub(crate) mod process;
pub(crate) mod rest;
pub(crate) mod signature;
pub(crate) mod upload;
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
use crate::guesses::CANDIDATES;
use crate::refusals::Peer;
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

/// The sandbox that a signed address is for: the one that it names, or else the one whose token made the signature, which may have
/// expired. Many must be tried for the latter, so whoever was wrong too often is not listened to.
pub fn signed_for(app: &App, method: &Method, uri: &Uri, from: Option<Peer>) -> Option<String> {
    let Query(address) = Query::<Address>::try_from_uri(uri).ok()?;
    if let Some(id) = address.sandbox_id {
        // Whoever answers it compares the signature with that one.
        return Some(id);
    }
    let (guesses, from) = (app.guesses(), from.map(|peer| peer.0));
    let signature = address.signature.as_deref().filter(|_| address.may_be_signed())?;
    if !guesses.may_try(from) {
        return None;
    }
    let is_right = |token: &str| {
        app.metrics().signature_compared();
        address.is_signed_with(token, method)
    };
    let known = guesses.sandbox_of(signature).and_then(|id| app.sandboxes().get_any(&id).ok());
    if let Some(record) = known.filter(|record| is_right(&record.token)) {
        return Some(record.id);
    }
    let found = app.sandboxes().find_by_token(CANDIDATES, is_right);
    match &found {
        Some(id) => guesses.was_right(signature, id),
        None => guesses.was_wrong(from),
    }
    found
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
