//! `filesystem.Filesystem`: what is where, and changes of that.

use std::sync::Arc;

use axum::routing::post;
use axum::{Extension, Json, Router, middleware};
use serde::Deserialize;
use serde_json::{Value, json};
use sloplet_client::ClientError;
use sloplet_wire::{Entry, ErrorCode, FileKind, Target};

use super::call::{self, Call, Single};
use super::connect::{Code, RpcError};
use super::entry::EntryInfo;
use super::json::Number;
use super::watch;
use super::watchers::{self, Watchers};
use crate::app::App;
use crate::record::{self, TOKEN};

/// Permission bits of new folders.
const FOLDER_MODE: u32 = 0o755;

/// Entries of one listing: more would not fit into a message.
const MAX_ENTRIES: usize = 250_000;

/// Its routes.
pub fn router() -> Router<App> {
    let single = Router::new()
        .route("/filesystem.Filesystem/Stat", post(stat))
        .route("/filesystem.Filesystem/MakeDir", post(make_dir))
        .route("/filesystem.Filesystem/Move", post(rename))
        .route("/filesystem.Filesystem/ListDir", post(list_dir))
        .route("/filesystem.Filesystem/Remove", post(remove))
        .route("/filesystem.Filesystem/CreateWatcher", post(watchers::create))
        .route("/filesystem.Filesystem/GetWatcherEvents", post(watchers::events))
        .route("/filesystem.Filesystem/RemoveWatcher", post(watchers::remove))
        .route_layer(middleware::from_fn(call::within_timeout));
    Router::new()
        .merge(single)
        .route("/filesystem.Filesystem/WatchDir", post(watch::stream))
        .layer(Extension(Arc::new(Watchers::default())))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OfPath {
    path: String,
}

fn told(entry: &Entry) -> Json<Value> {
    Json(json!({"entry": EntryInfo::new(entry)}))
}

/// Whether the agent answered with this.
fn is(error: &ClientError, code: ErrorCode) -> bool {
    error.failure().is_some_and(|failure| failure.code == code)
}

async fn stat(Single(call, request): Single<OfPath>) -> Result<Json<Value>, RpcError> {
    Ok(told(&call.sandbox.agent().stat(call.target(&request.path)?).await?))
}

async fn make_dir(Single(call, request): Single<OfPath>) -> Result<Json<Value>, RpcError> {
    let target = call.target(&request.path)?;
    let agent = call.sandbox.agent();
    match agent.make_dir(target.clone(), FOLDER_MODE, false).await {
        // So are its parents.
        Err(error) if is(&error, ErrorCode::NotFound) => agent.make_dir(target.clone(), FOLDER_MODE, true).await?,
        Err(error) if is(&error, ErrorCode::Exists) => return Err(in_the_way(&call, target).await?),
        result => result?,
    }
    Ok(told(&agent.stat(target).await?))
}

/// What is where a folder was to be made.
async fn in_the_way(call: &Call, target: Target) -> Result<RpcError, RpcError> {
    let entry = call.sandbox.agent().stat(target).await?;
    let end = entry.rare.as_ref().and_then(|rare| rare.end.as_ref()).map(|end| end.kind);
    let info = EntryInfo::new(&entry);
    Ok(match end.unwrap_or(entry.kind) {
        FileKind::Directory => RpcError::new(Code::AlreadyExists, format!("directory already exists: {}", info.path())),
        _ => RpcError::invalid(format!("path already exists but it is not a directory: {}", info.path())),
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Move {
    source: String,
    destination: String,
}

async fn rename(Single(call, request): Single<Move>) -> Result<Json<Value>, RpcError> {
    let (from, to) = (call.target(&request.source)?, call.target(&request.destination)?);
    let agent = call.sandbox.agent();
    match agent.move_(from.clone(), to.path.to_vec()).await {
        Err(error) if is(&error, ErrorCode::NotFound) => {
            // The one to be moved, or the folder it is to be moved to.
            agent.stat(from.clone()).await?;
            let parent = Target { path: parent(&to.path).into(), ..to.clone() };
            agent.make_dir(parent, FOLDER_MODE, true).await?;
            agent.move_(from, to.path.to_vec()).await?;
        }
        result => result?,
    }
    record::moved(&call.sandbox, TOKEN, request.source.as_bytes(), &to.path);
    Ok(told(&agent.stat(to).await?))
}

fn parent(path: &[u8]) -> Vec<u8> {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    match path[..end].iter().rposition(|byte| *byte == b'/') {
        Some(cut) => path[..=cut].to_vec(),
        None => b".".to_vec(),
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListDir {
    path: String,
    depth: Number,
}

async fn list_dir(Single(call, request): Single<ListDir>) -> Result<Json<Value>, RpcError> {
    let found = call.sandbox.agent().list(call.target(&request.path)?, request.depth.0.max(1)).await?;
    if found.len() > MAX_ENTRIES {
        let message = format!("{} has more than {MAX_ENTRIES} entries: list fewer levels", request.path);
        return Err(RpcError::new(Code::ResourceExhausted, message));
    }
    let mut entries: Vec<EntryInfo> = found.iter().map(EntryInfo::new).collect();
    entries.sort_by(|a, b| a.path().split('/').cmp(b.path().split('/')));
    Ok(Json(json!({"entries": entries})))
}

async fn remove(Single(call, request): Single<OfPath>) -> Result<Json<Value>, RpcError> {
    match call.sandbox.agent().remove(call.target(&request.path)?, true).await {
        // That is what was wanted.
        Err(error) if is(&error, ErrorCode::NotFound) => {}
        result => {
            result?;
            record::removed(&call.sandbox, TOKEN, request.path.as_bytes());
        }
    }
    Ok(Json(json!({})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_path_is_found() {
        for (path, folder) in [("/a/b", "/a/"), ("a", "."), ("/a", "/"), ("a/b/", "a/"), ("", "."), ("/", "/")] {
            let found = parent(path.as_bytes());
            assert!(found == folder.as_bytes() || (path == "/" && found == b"."), "{path}");
        }
    }
}
