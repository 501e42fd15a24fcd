//! Tags of templates.

use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::extract::{Json, Path};
use super::query::Query;
use super::time;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

#[derive(Debug, Deserialize)]
pub struct Assign {
    target: String,
    tags: Vec<String>,
}

pub async fn assign(
    State(app): State<App>,
    access: Access,
    Json(asked): Json<Assign>,
) -> Result<(StatusCode, axum::Json<Value>), ApiError> {
    let build = app.templates().assign_tags(&access.owner, &asked.target, &asked.tags)?;
    Ok((StatusCode::CREATED, axum::Json(json!({"buildID": build, "tags": asked.tags}))))
}

#[derive(Debug, Deserialize)]
pub struct Remove {
    name: String,
    tags: Vec<String>,
}

pub async fn remove(State(app): State<App>, access: Access, Json(asked): Json<Remove>) -> Result<StatusCode, ApiError> {
    app.templates().remove_tags(&access.owner, &asked.name, &asked.tags)?;
    Ok(StatusCode::NO_CONTENT)
}

pub async fn list(
    State(app): State<App>,
    access: Access,
    Path(id): Path<String>,
) -> Result<axum::Json<Vec<Value>>, ApiError> {
    let template = app.templates().get(&access.owner, &id)?;
    let tags = template
        .tags
        .iter()
        .map(|(name, tag)| json!({"tag": name, "buildID": tag.build, "createdAt": time::format(tag.assigned_ms)}));
    Ok(axum::Json(tags.collect()))
}

pub async fn count(
    State(app): State<App>,
    access: Access,
    Path(id): Path<String>,
) -> Result<axum::Json<Value>, ApiError> {
    let template = app.templates().get(&access.owner, &id)?;
    Ok(axum::Json(json!({"count": template.tags.len()})))
}

pub async fn exists(
    State(app): State<App>,
    access: Access,
    Path(id): Path<String>,
    query: Query,
) -> Result<axum::Json<Value>, ApiError> {
    let template = app.templates().get(&access.owner, &id)?;
    let tag = query.needed("tag")?;
    Ok(axum::Json(json!({"tag": tag, "exists": template.tags.contains_key(tag)})))
}
