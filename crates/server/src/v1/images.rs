//! Images that sandboxes start from. All keys share them.

use std::io;

use axum::Json;
use axum::body::Body;
use axum::extract::State as AppState;
use axum::http::StatusCode;
use futures_util::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use sloplet_engine::template::is_private;
use tokio_util::io::{StreamReader, SyncIoBridge};
use utoipa::{IntoParams, ToSchema};

use super::document::Binary;
use super::extract::Params;
use crate::app::App;
use crate::auth::{Access, Scope};
use crate::error::ApiError;

/// An image.
#[derive(Debug, Serialize, ToSchema)]
pub struct Image {
    /// Its name.
    pub name: String,
    /// What identifies its content.
    pub digest: String,
    /// Layers.
    pub layers: usize,
    /// Bytes of all its files.
    pub size_bytes: u64,
    /// When it was imported, in milliseconds since 1970.
    pub created_ms: u64,
}

impl From<sloplet_image::Image> for Image {
    fn from(image: sloplet_image::Image) -> Self {
        Self {
            name: image.name,
            digest: image.digest,
            layers: image.layers.len(),
            size_bytes: image.size_bytes,
            created_ms: image.created * 1000,
        }
    }
}

/// List images. `host` is not among them: it is always there.
#[utoipa::path(get, path = "/images", tag = "images", responses((status = 200, body = Vec<Image>)))]
pub async fn list(AppState(app): AppState<App>, _access: Access) -> Result<Json<Vec<Image>>, ApiError> {
    let images = app.sandboxes().engine().images()?.list()?;
    let shared = images.into_iter().filter(|image| !is_private(&image.name));
    Ok(Json(shared.map(Into::into).collect()))
}

/// Which image.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Named {
    /// Its name. Names may hold slashes, hence not in the path.
    #[param(min_length = 1, max_length = 255)]
    name: String,
}

/// Import a tarball (plain, or compressed with gzip or zstd) as an image, in place of one of that name.
#[utoipa::path(put, path = "/images", tag = "images", params(Named),
    request_body(content = Binary, content_type = "application/octet-stream"), responses((status = 201, body = Image)))]
pub async fn import(
    AppState(app): AppState<App>,
    access: Access,
    Params(Named { name }): Params<Named>,
    body: Body,
) -> Result<(StatusCode, Json<Image>), ApiError> {
    access.require(Scope::Admin)?;
    if name == "host" || is_private(&name) {
        return Err(ApiError::bad_request(format!(
            "'{name}' is not for images that are imported: choose another name"
        )));
    }
    let engine = app.sandboxes().engine().clone();
    let mut stream = Box::pin(body.into_data_stream().map_err(io::Error::other).peekable());
    // An empty archive is one, too, but nobody means that.
    if stream.as_mut().peek().await.is_none() {
        return Err(ApiError::bad_request("the body is empty: send a tarball"));
    }
    let reader = SyncIoBridge::new(StreamReader::new(stream));
    let import =
        tokio::task::spawn_blocking(move || engine.images()?.import_stream(reader, &name, &sloplet_image::silent));
    match import.await {
        Ok(image) => Ok((StatusCode::CREATED, Json(image?.into()))),
        Err(_) => Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the import was given up")),
    }
}

/// Remove an image. Sandboxes made from it are not touched.
#[utoipa::path(delete, path = "/images", tag = "images", params(Named), responses((status = 204)))]
pub async fn remove(
    AppState(app): AppState<App>,
    access: Access,
    Params(Named { name }): Params<Named>,
) -> Result<StatusCode, ApiError> {
    access.require(Scope::Admin)?;
    if name == "host" || is_private(&name) {
        return Err(ApiError::bad_request(format!("'{name}' is not an image that can be removed here")));
    }
    let engine = app.sandboxes().engine().clone();
    let removal = tokio::task::spawn_blocking(move || engine.images()?.remove(&name));
    match removal.await {
        Ok(done) => done.map(|()| StatusCode::NO_CONTENT).map_err(Into::into),
        Err(_) => Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the removal was given up")),
    }
}
