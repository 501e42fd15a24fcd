//! Saved sandboxes.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State as AppState;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::extract::Segments;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// A saved sandbox: an image that new ones start from.
#[derive(Debug, Serialize, ToSchema)]
pub struct Snapshot {
    /// Letters and digits.
    pub id: String,
    /// A name to find it by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The sandbox that was saved.
    pub sandbox: String,
    /// What that sandbox started from.
    pub image: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// Bytes that the sandbox had changed.
    pub bytes: u64,
    /// Files that the sandbox had changed.
    pub files: u64,
    /// How long its processes stood still for it, in microseconds.
    pub frozen_us: u64,
    /// Anything to remember.
    pub metadata: BTreeMap<String, String>,
    /// Patterns of what was left out of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<String>,
    /// Bytes of its memory on the server's disk, if that was saved, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The only driver behind which that memory goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
}

impl From<sloplet_engine::life::Snapshot> for Snapshot {
    fn from(snapshot: sloplet_engine::life::Snapshot) -> Self {
        Self {
            id: snapshot.id,
            name: snapshot.name,
            sandbox: snapshot.sandbox,
            image: snapshot.template,
            created_ms: snapshot.created_ms,
            bytes: snapshot.bytes,
            files: snapshot.files,
            frozen_us: snapshot.frozen_us,
            metadata: snapshot.metadata,
            excluded: snapshot.excluded,
            memory_bytes: snapshot.memory.as_ref().map(|memory| memory.bytes),
            driver: snapshot.memory.map(|memory| memory.driver),
        }
    }
}

/// List snapshots, newest first.
#[utoipa::path(get, path = "/snapshots", tag = "snapshots", responses((status = 200, body = Vec<Snapshot>)))]
pub async fn list(AppState(app): AppState<App>, access: Access) -> Result<Json<Vec<Snapshot>>, ApiError> {
    Ok(Json(app.sandboxes().snapshots(&access.owner)?.into_iter().map(Into::into).collect()))
}

/// Look at a snapshot.
#[utoipa::path(get, path = "/snapshots/{id}", tag = "snapshots",
    params(("id" = String, Path, description = "Its id or name")), responses((status = 200, body = Snapshot)))]
pub async fn get(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
) -> Result<Json<Snapshot>, ApiError> {
    Ok(Json(app.sandboxes().get_snapshot(&access.owner, &id)?.into()))
}

/// Forget a snapshot. Sandboxes made from it are not touched.
#[utoipa::path(delete, path = "/snapshots/{id}", tag = "snapshots",
    params(("id" = String, Path, description = "Its id or name")), responses((status = 204)))]
pub async fn remove(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
) -> Result<StatusCode, ApiError> {
    app.apart(move |app| Ok(app.sandboxes().remove_snapshot(&access.owner, &id)?)).await?;
    Ok(StatusCode::NO_CONTENT)
}
