//! Folders that outlive sandboxes.

use axum::Json;
use axum::extract::State as AppState;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::extract::{Payload, Segments};
use super::sandbox::check_name;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// A folder that outlives sandboxes.
#[derive(Debug, Serialize, ToSchema)]
pub struct Volume {
    /// Letters and digits.
    pub id: String,
    /// A name to find it by.
    pub name: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
}

impl From<sloplet_engine::life::Volume> for Volume {
    fn from(volume: sloplet_engine::life::Volume) -> Self {
        Self { id: volume.id, name: volume.name, created_ms: volume.created_ms }
    }
}

/// A volume to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// A name to find it by.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    name: String,
}

/// Make an empty volume.
#[utoipa::path(post, path = "/volumes", tag = "volumes", request_body = NewVolume,
    responses((status = 201, body = Volume)))]
pub async fn create(
    AppState(app): AppState<App>,
    access: Access,
    Payload(body): Payload<NewVolume>,
) -> Result<(StatusCode, Json<Volume>), ApiError> {
    check_name(&body.name)?;
    let volume = app.sandboxes().volumes().create(&access.owner, &body.name)?;
    Ok((StatusCode::CREATED, Json(volume.into())))
}

/// List volumes, newest first.
#[utoipa::path(get, path = "/volumes", tag = "volumes", responses((status = 200, body = Vec<Volume>)))]
pub async fn list(AppState(app): AppState<App>, access: Access) -> Result<Json<Vec<Volume>>, ApiError> {
    Ok(Json(app.sandboxes().volumes().list(&access.owner)?.into_iter().map(Into::into).collect()))
}

/// Forget a volume and remove its content.
#[utoipa::path(delete, path = "/volumes/{id}", tag = "volumes",
    params(("id" = String, Path, description = "Its id or name")), responses((status = 204)))]
pub async fn remove(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
) -> Result<StatusCode, ApiError> {
    let volume = app.sandboxes().volumes().get(&access.owner, &id)?;
    app.sandboxes().remove_volume(&access.owner, &volume.id)?;
    Ok(StatusCode::NO_CONTENT)
}
