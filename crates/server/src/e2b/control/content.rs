//! The content of volumes: files and folders, for whoever has the volume's token.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::TryStreamExt;
use tokio::io::AsyncWriteExt;
use tokio_util::io::ReaderStream;

use super::extract::{Json, Path};
use super::query::Query;
use super::tree::{Attributes, Entry, Place, Tree};
use crate::app::App;
use crate::auth::same_secret;
use crate::error::ApiError;

/// Bytes of one file.
const MAX_FILE: u64 = 16 << 30;

/// Bytes read at a time.
const PIECE: usize = 256 * 1024;

type Shown = axum::Json<Entry>;

/// The volume's content, if the token is right.
fn tree(app: &App, headers: &HeaderMap, id: &str) -> Result<Tree, ApiError> {
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = shown.and_then(|value| value.strip_prefix("Bearer "));
    let token = token.ok_or_else(|| ApiError::unauthorized("the volume's token is needed as a bearer token"))?;
    let volumes = app.sandboxes().volumes();
    let volume = volumes.get_any(id)?;
    if !same_secret(token, &volume.token) {
        return Err(ApiError::unauthorized("this is not the volume's token"));
    }
    if volume.size.is_some() {
        let message = "this volume is a disk of its own: its content is reached from sandboxes only";
        return Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, message));
    }
    Tree::open(&volumes.folder_of(&volume))
}

/// Does something that may wait for a disk.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T, ApiError> + Send + 'static) -> Result<T, ApiError> {
    let failed = |error: tokio::task::JoinError| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

fn place(query: &Query) -> Result<Place, ApiError> {
    Place::parse(query.text("path").unwrap_or_default())
}

fn attributes(query: &Query) -> Result<Attributes, ApiError> {
    let attributes = Attributes { uid: query.number("uid")?, gid: query.number("gid")?, mode: query.number("mode")? };
    attributes.check()?;
    Ok(attributes)
}

/// Python writes `True`.
fn force(query: &Query) -> bool {
    query.text("force").is_some_and(|force| force.eq_ignore_ascii_case("true") || force == "1")
}

pub async fn list(
    State(app): State<App>,
    headers: HeaderMap,
    Path(id): Path<String>,
    query: Query,
) -> Result<axum::Json<Vec<Entry>>, ApiError> {
    let tree = tree(&app, &headers, &id)?;
    let (place, depth) = (place(&query)?, query.number("depth")?.unwrap_or(1));
    Ok(axum::Json(apart(move || tree.list(&place, depth)).await?))
}

pub async fn make_dir(
    State(app): State<App>,
    headers: HeaderMap,
    Path(id): Path<String>,
    query: Query,
) -> Result<(StatusCode, Shown), ApiError> {
    let tree = tree(&app, &headers, &id)?;
    let (place, attributes, force) = (place(&query)?, attributes(&query)?, force(&query));
    let entry = apart(move || tree.make_dir(&place, attributes, force)).await?;
    Ok((StatusCode::CREATED, axum::Json(entry)))
}

pub async fn stat(
    State(app): State<App>,
    headers: HeaderMap,
    Path(id): Path<String>,
    query: Query,
) -> Result<Shown, ApiError> {
    let tree = tree(&app, &headers, &id)?;
    let place = place(&query)?;
    Ok(axum::Json(apart(move || tree.stat(&place)).await?))
}

pub async fn change(
    State(app): State<App>,
    headers: HeaderMap,
    Path(id): Path<String>,
    query: Query,
    Json(attributes): Json<Attributes>,
) -> Result<Shown, ApiError> {
    let tree = tree(&app, &headers, &id)?;
    attributes.check()?;
    let place = place(&query)?;
    Ok(axum::Json(apart(move || tree.change(&place, attributes)).await?))
}

pub async fn remove(
    State(app): State<App>,
    headers: HeaderMap,
    Path(id): Path<String>,
    query: Query,
) -> Result<StatusCode, ApiError> {
    let tree = tree(&app, &headers, &id)?;
    let place = place(&query)?;
    apart(move || tree.remove(&place)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub async fn read(
    State(app): State<App>,
    headers: HeaderMap,
    Path(id): Path<String>,
    query: Query,
) -> Result<Response, ApiError> {
    let tree = tree(&app, &headers, &id)?;
    let place = place(&query)?;
    let (file, length) = apart(move || tree.read(&place)).await?;
    // Not more than was announced, should a sandbox go on writing; if it becomes shorter, the connection breaks off.
    let file = tokio::io::AsyncReadExt::take(tokio::fs::File::from_std(file), length);
    let body = Body::from_stream(ReaderStream::with_capacity(file, PIECE));
    let kind =
        [(header::CONTENT_TYPE, "application/octet-stream".to_owned()), (header::CONTENT_LENGTH, length.to_string())];
    Ok((kind, body).into_response())
}

pub async fn write(
    State(app): State<App>,
    headers: HeaderMap,
    Path(id): Path<String>,
    query: Query,
    body: Body,
) -> Result<(StatusCode, Shown), ApiError> {
    let tree = tree(&app, &headers, &id)?;
    let (place, attributes, force) = (place(&query)?, attributes(&query)?, force(&query));
    let begun = place.clone();
    let (tree, draft) = apart(move || tree.begin(&begun, force).map(|draft| (tree, draft))).await?;
    let failed = |error: std::io::Error| {
        let full = error.kind() == std::io::ErrorKind::StorageFull;
        let status = if full { StatusCode::INSUFFICIENT_STORAGE } else { StatusCode::INTERNAL_SERVER_ERROR };
        ApiError::new(status, format!("the file cannot be written: {error}"))
    };
    let mut file = tokio::fs::File::from_std(draft.file.try_clone().map_err(failed)?);
    let mut stream = body.into_data_stream();
    let broken = |error: axum::Error| ApiError::bad_request(format!("the upload broke off: {error}"));
    let mut length = 0;
    while let Some(bytes) = stream.try_next().await.map_err(broken)? {
        length += bytes.len() as u64;
        if length > MAX_FILE {
            let message = format!("a file has {MAX_FILE} bytes at most");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        file.write_all(&bytes).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)?;
    let entry = apart(move || tree.finish(draft, &place, attributes, force)).await?;
    Ok((StatusCode::CREATED, axum::Json(entry)))
}
