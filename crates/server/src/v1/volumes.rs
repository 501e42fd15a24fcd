//! Folders that outlive sandboxes.

use axum::Json;
use axum::extract::State as AppState;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sloplet_policy::ByteSize;
use utoipa::ToSchema;

use super::extract::{Payload, Segments, optional_unit};
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
    /// How large it can become; left out where nothing but the host's disk ends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
}

impl From<sloplet_engine::life::Volume> for Volume {
    fn from(volume: sloplet_engine::life::Volume) -> Self {
        let size = volume.size.map(|bytes| ByteSize(bytes).to_string());
        Self { id: volume.id, name: volume.name, created_ms: volume.created_ms, size }
    }
}

/// A volume to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// A name to find it by.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    name: String,
    /// How large it can become; then it is a disk of its own, which only a server that is root can make. Nothing but the host's
    /// disk ends it if left out.
    #[schema(example = "1GiB", pattern = "^([1-9][0-9]{2,3}MiB|[1-9][0-9]{0,2}GiB)$")]
    size: Option<String>,
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
    let size = optional_unit::<ByteSize>("size", body.size.as_ref())?.map(|size| size.0);
    let making = move |app: &App| Ok(app.sandboxes().create_volume(&access.owner, &body.name, size)?);
    let volume = app.apart(making).await?;
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
    app.apart(move |app| Ok(app.sandboxes().remove_volume(&access.owner, &id)?)).await?;
    Ok(StatusCode::NO_CONTENT)
}
