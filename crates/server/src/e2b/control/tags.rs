//! Tags of templates.

use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use sloplet_engine::template::{Build, Tag, Template};

use super::extract::{Json, Path};
use super::query::Query;
use super::time;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// Tags of one answer.
const MOST_TAGS: usize = 100;

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
    app.apart(move |app| Ok(app.templates().remove_tags(&access.owner, &asked.name, &asked.tags)?)).await?;
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

/// The tags, each with the builds it was given to. Only the last of these is remembered.
pub async fn groups(
    State(app): State<App>,
    access: Access,
    Path(id): Path<String>,
    query: Query,
) -> Result<axum::Json<Value>, ApiError> {
    let template = app.templates().get(&access.owner, &id)?;
    let search = query.text("search").unwrap_or_default();
    let mut tags: Vec<(&String, &Tag)> = template.tags.iter().filter(|(name, _)| name.contains(search)).collect();
    match query.text("sort").unwrap_or("latest_desc") {
        "latest_desc" => tags.sort_by_key(|(_, tag)| std::cmp::Reverse(tag.assigned_ms)),
        "latest_asc" => tags.sort_by_key(|(_, tag)| tag.assigned_ms),
        "name_asc" => {}
        "name_desc" => tags.reverse(),
        _ => return Err(ApiError::bad_request("sort must be latest_asc, latest_desc, name_asc or name_desc")),
    }
    let limit = query.number::<usize>("tagsLimit")?.unwrap_or(MOST_TAGS).clamp(1, MOST_TAGS);
    let from = query.number::<usize>("tagsCursor")?.unwrap_or(0);
    let next = (tags.len() > from.saturating_add(limit)).then(|| (from + limit).to_string());
    let builds = app.templates().builds(&template)?;
    let group = |(name, tag): (&String, &Tag)| json!({"tag": name, "assignments": [assignment(&template, name, tag, &builds)], "hasMore": false});
    let groups: Vec<Value> = tags.into_iter().skip(from).take(limit).map(group).collect();
    Ok(axum::Json(json!({"tags": groups, "nextCursor": next})))
}

pub async fn assignments(
    State(app): State<App>,
    access: Access,
    Path((id, name)): Path<(String, String)>,
) -> Result<axum::Json<Value>, ApiError> {
    let template = app.templates().get(&access.owner, &id)?;
    let tag = template.tags.get(&name).ok_or_else(|| ApiError::not_found(format!("tag '{name}' not found")))?;
    let builds = app.templates().builds(&template)?;
    Ok(axum::Json(json!({"data": [assignment(&template, &name, tag, &builds)], "nextCursor": null})))
}

fn assignment(template: &Template, name: &str, tag: &Tag, builds: &[Build]) -> Value {
    let build = builds.iter().find(|build| build.id == tag.build);
    json!({
        "assignmentId": assignment_id(&format!("{} {name} {} {}", template.id, tag.build, tag.assigned_ms)),
        "buildId": tag.build,
        "assignedAt": time::format(tag.assigned_ms),
        "buildCreatedAt": time::format(build.map_or(tag.assigned_ms, |build| build.created_ms)),
        "buildFinishedAt": build.and_then(|build| build.finished_ms).map(time::format),
    })
}

/// A UUID (version 8: of our own making) that is always the same for the same event.
fn assignment_id(event: &str) -> String {
    let digest = Sha256::digest(event);
    let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-8{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
}
