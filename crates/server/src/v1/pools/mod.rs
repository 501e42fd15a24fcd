//! Pools: machines made ahead.
//!
//! - `wanted`: what is asked for. `shown`: what is told.

mod shown;
mod wanted;

use std::time::Duration;

use axum::Json;
use axum::extract::State as AppState;
use axum::http::StatusCode;
use serde::Deserialize;
use sloplet_engine::life::pool::NewPool;
use sloplet_policy::Span;
use utoipa::ToSchema;

use super::extract::{OptionalPayload, Segments, optional_unit};
use super::sandbox::check_name;
use super::sandboxes::{self, Chosen};
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;
use shown::Pool;
use wanted::SetPool;

/// How long a pool may take to be filled, unless that is said.
const USUAL_PATIENCE: Duration = Duration::from_secs(120);

/// The longest that can be said.
const MOST_PATIENCE: Duration = Duration::from_secs(600);

/// Make a pool, or change the one of that name.
#[utoipa::path(put, path = "/pools/{name}", tag = "pools", request_body = Option<SetPool>,
    params(("name" = String, Path, description = "Its name", pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")),
    responses((status = 200, body = Pool)))]
pub async fn set(
    AppState(app): AppState<App>,
    access: Access,
    Segments(name): Segments<String>,
    OptionalPayload(body): OptionalPayload<SetPool>,
) -> Result<Json<Pool>, ApiError> {
    check_name(&name)?;
    let (mut spec, config) = (body.spec()?, body.config()?);
    app.config().walls.admit(app.sandboxes().engine(), &access, &mut spec)?;
    spec.weaken = app.config().weaken;
    let called = spec.image.clone();
    let Chosen { image, template } = sandboxes::choose_image(&app, &access, &spec)?;
    spec.image = image;
    let wanted = NewPool { name, spec, template, called, config };
    Ok(Json(app.sandboxes().set_pool(&access.owner, wanted, &access.quota)?.into()))
}

/// List pools, by name.
#[utoipa::path(get, path = "/pools", tag = "pools", responses((status = 200, body = Vec<Pool>)))]
pub async fn list(AppState(app): AppState<App>, access: Access) -> Json<Vec<Pool>> {
    Json(app.sandboxes().pools(&access.owner).into_iter().map(Into::into).collect())
}

/// Look at a pool.
#[utoipa::path(get, path = "/pools/{name}", tag = "pools", params(("name" = String, Path, description = "Its name or id")),
    responses((status = 200, body = Pool)))]
pub async fn get(
    AppState(app): AppState<App>,
    access: Access,
    Segments(name): Segments<String>,
) -> Result<Json<Pool>, ApiError> {
    Ok(Json(app.sandboxes().pool(&access.owner, &name)?.into()))
}

/// Forget a pool and destroy its machines. Sandboxes that came through it stay.
#[utoipa::path(delete, path = "/pools/{name}", tag = "pools",
    params(("name" = String, Path, description = "Its name or id")), responses((status = 204)))]
pub async fn remove(
    AppState(app): AppState<App>,
    access: Access,
    Segments(name): Segments<String>,
) -> Result<StatusCode, ApiError> {
    app.sandboxes().remove_pool(&access.owner, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Destroy a pool's machines, and keep none ready until it is filled or set again.
#[utoipa::path(post, path = "/pools/{name}/drain", tag = "pools",
    params(("name" = String, Path, description = "Its name or id")), responses((status = 200, body = Pool)))]
pub async fn drain(
    AppState(app): AppState<App>,
    access: Access,
    Segments(name): Segments<String>,
) -> Result<Json<Pool>, ApiError> {
    Ok(Json(app.sandboxes().drain_pool(&access.owner, &name).await?.into()))
}

/// How long filling may take.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FillPool {
    /// 2m if left out; 10m at most.
    #[schema(example = "30s", pattern = "^([1-9][0-9]{0,2}s|[1-9]m)$")]
    timeout: Option<String>,
}

/// Fill a pool, and wait until it has its target or all that something allows.
#[utoipa::path(post, path = "/pools/{name}/fill", tag = "pools", request_body = Option<FillPool>,
    params(("name" = String, Path, description = "Its name or id")), responses((status = 200, body = Pool)))]
pub async fn fill(
    AppState(app): AppState<App>,
    access: Access,
    Segments(name): Segments<String>,
    OptionalPayload(body): OptionalPayload<FillPool>,
) -> Result<Json<Pool>, ApiError> {
    let within = optional_unit::<Span>("timeout", body.timeout.as_ref())?.map_or(USUAL_PATIENCE, |span| span.0);
    if within > MOST_PATIENCE {
        return Err(ApiError::bad_request("timeout can be 10m at most"));
    }
    Ok(Json(app.sandboxes().fill_pool(&access.owner, &name, within).await?.into()))
}
