//! Folders that outlive sandboxes.

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sloplet_engine::life::Volume;

use super::extract::{Json, Path};
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// Volumes of one owner.
const MAX_VOLUMES: usize = 1000;

/// A volume as the SDKs see it; the token is for its content.
#[derive(Debug, Serialize)]
pub struct Info {
    #[serde(rename = "volumeID")]
    volume_id: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

impl Info {
    fn whole(access: &Access, volume: Volume) -> axum::Json<Self> {
        axum::Json(Self { token: access.token(&volume.token), volume_id: volume.id, name: volume.name })
    }
}

#[derive(Debug, Deserialize)]
pub struct Asked {
    name: String,
}

pub async fn create(
    State(app): State<App>,
    access: Access,
    Json(asked): Json<Asked>,
) -> Result<(StatusCode, axum::Json<Info>), ApiError> {
    let volumes = app.sandboxes().volumes();
    if volumes.list(&access.owner)?.len() >= MAX_VOLUMES {
        let message = format!("there are {MAX_VOLUMES} volumes: delete some");
        return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, message));
    }
    Ok((StatusCode::CREATED, Info::whole(&access, volumes.create(&access.owner, &asked.name)?)))
}

pub async fn list(State(app): State<App>, access: Access) -> Result<axum::Json<Vec<Info>>, ApiError> {
    let all = app.sandboxes().volumes().list(&access.owner)?;
    let info = |volume: Volume| Info { volume_id: volume.id, name: volume.name, token: None };
    Ok(axum::Json(all.into_iter().map(info).collect()))
}

pub async fn info(
    State(app): State<App>,
    access: Access,
    Path(id): Path<String>,
) -> Result<axum::Json<Info>, ApiError> {
    Ok(Info::whole(&access, app.sandboxes().volumes().get(&access.owner, &id)?))
}

pub async fn remove(State(app): State<App>, access: Access, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    app.apart(move |app| Ok(app.sandboxes().remove_volume(&access.owner, &id)?)).await?;
    Ok(StatusCode::NO_CONTENT)
}
