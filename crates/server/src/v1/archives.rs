//! Snapshots as one stream: out of this server, and in.

use std::io::{self, BufWriter};
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State as AppState;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde::{Deserialize, Serialize};
use sloplet_engine::life::{Leaving, Wish};
use tokio::sync::mpsc;
use tokio_util::io::{StreamReader, SyncIoBridge};
use utoipa::{IntoParams, ToSchema};

use super::document::Binary;
use super::extract::{Params, Segments};
use super::sandbox::check_name;
use super::snapshots::Snapshot;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// The media type of an archive.
const KIND: &str = "application/zstd";

/// Bytes at once.
const CHUNK: usize = 256 * 1024;

/// Chunks on their way.
const CHUNKS: usize = 8;

/// How long a client may pause in the middle of an archive.
const PATIENCE: Duration = Duration::from_secs(60);

/// What of a snapshot is to leave.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Export {
    /// Leave out layers of the image that it was made on, which the other server must have; and, of what was made on the
    /// image `host`, the host's programs.
    thin: bool,
    /// Leave out its memory. Without this, a snapshot that has memory is refused.
    files_only: bool,
}

impl From<Export> for Wish {
    fn from(export: Export) -> Self {
        Self { thin: export.thin, files_only: export.files_only }
    }
}

/// Get a snapshot as one stream that another server takes in: complete, compressed with zstd, with its digest at the end. A
/// stream that breaks off has no such end.
#[utoipa::path(get, path = "/snapshots/{id}/export", tag = "snapshots",
    params(("id" = String, Path, description = "Its id or name"), Export),
    responses((status = 200, content_type = "application/zstd", body = Binary)))]
pub async fn export(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Params(wish): Params<Export>,
) -> Result<Response, ApiError> {
    let leaving = leaving(&app, &access, id, wish.into()).await?;
    let mut response = Body::from_stream(written(leaving)).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(KIND));
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

/// Gets a snapshot ready: its files are looked at, which takes a moment.
pub(super) async fn leaving(app: &App, access: &Access, id: String, wish: Wish) -> Result<Leaving, ApiError> {
    let (sandboxes, owner) = (app.sandboxes().clone(), access.owner.clone());
    let ready = tokio::task::spawn_blocking(move || sandboxes.export_snapshot(&owner, &id, wish));
    Ok(ready.await.map_err(|_| given_up())??)
}

/// The archive, written as fast as it is read. Its last piece is an error if it could not be written whole.
pub(super) fn written(leaving: Leaving) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let (sender, receiver) = mpsc::channel(CHUNKS);
    tokio::task::spawn_blocking(move || {
        let pieces = BufWriter::with_capacity(CHUNK, Pieces(sender.clone()));
        if let Err(error) = leaving.write(pieces) {
            tracing::debug!(%error, "a snapshot was not exported");
            let _ = sender.blocking_send(Err(io::Error::other(error)));
        }
    });
    stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) })
}

/// Hands what is written to whoever sends it.
struct Pieces(mpsc::Sender<io::Result<Bytes>>);

impl io::Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How a snapshot that comes in is to be called.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Import {
    /// A name to find it by; its own if left out.
    #[param(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    name: Option<String>,
    /// Take it from this object instead of the body.
    #[param(example = "s3://bucket/key.sloplet")]
    from: Option<String>,
}

/// A snapshot that came in.
#[derive(Debug, Serialize, ToSchema)]
pub struct Imported {
    /// The snapshot.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// The SHA-256 of the whole stream.
    pub sha256: String,
    /// Its length.
    pub archive_bytes: u64,
    /// File capabilities that could not be given: only a server that is root can.
    pub left_out: u64,
}

/// Take a snapshot in that another server has exported. Nothing of it is kept unless it is whole.
#[utoipa::path(post, path = "/snapshots", tag = "snapshots", params(Import),
    request_body(content = Binary, content_type = "application/octet-stream"), responses((status = 201, body = Imported)))]
pub async fn import(
    AppState(app): AppState<App>,
    access: Access,
    Params(Import { name, from }): Params<Import>,
    body: Body,
) -> Result<(StatusCode, Json<Imported>), ApiError> {
    if let Some(from) = from {
        let storage = app.storage()?;
        let object = storage.object(&access.owner, &from)?;
        let pieces = storage.client().get(&object).await?.stream().map(|piece| piece.map_err(io::Error::other));
        let snapshot = taken_in(&app, &access, name, pieces).await?;
        return Ok((StatusCode::CREATED, Json(snapshot)));
    }
    let pieces = body.into_data_stream().map(|piece| piece.map_err(io::Error::other));
    taken_in(&app, &access, name, pieces).await.map(|snapshot| (StatusCode::CREATED, Json(snapshot)))
}

/// Takes in an archive that comes in pieces.
pub(super) async fn taken_in(
    app: &App,
    access: &Access,
    name: Option<String>,
    pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> Result<Imported, ApiError> {
    if let Some(name) = &name {
        check_name(name)?;
    }
    let reader = SyncIoBridge::new(StreamReader::new(Box::pin(patient(pieces))));
    let (sandboxes, owner) = (app.sandboxes().clone(), access.owner.clone());
    let work = tokio::task::spawn_blocking(move || sandboxes.import_snapshot(&owner, name.as_deref(), reader));
    let (snapshot, imported) = work.await.map_err(|_| given_up())??;
    Ok(Imported {
        snapshot: snapshot.into(),
        sha256: imported.whole.sha256,
        archive_bytes: imported.whole.bytes,
        left_out: imported.left_out,
    })
}

/// What comes, as long as it comes.
fn patient(
    pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::unfold(Some(Box::pin(pieces)), |pieces| async move {
        let mut pieces = pieces?;
        match tokio::time::timeout(PATIENCE, pieces.next()).await {
            Ok(piece) => piece.map(|piece| (piece, Some(pieces))),
            Err(_) => Some((Err(io::ErrorKind::TimedOut.into()), None)),
        }
    })
}

fn given_up() -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "it was given up: the server is ending")
}
