//! Saved sandboxes.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use sloplet_engine::life::{LifeError, Snapshot};

use super::extract::{Json, Path};
use super::page::Page;
use super::query::Query;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// The one tag that snapshots have.
const TAG: &str = ":default";

/// A snapshot as the SDKs see it.
#[derive(Debug, Serialize)]
pub struct Info {
    #[serde(rename = "snapshotID")]
    snapshot_id: String,
    names: Vec<String>,
}

impl From<&Snapshot> for Info {
    fn from(snapshot: &Snapshot) -> Self {
        let names = snapshot.name.iter().map(|name| format!("{name}{TAG}")).collect();
        Self { snapshot_id: snapshot.id.clone(), names }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Asked {
    name: Option<String>,
}

/// Saves the files; whatever is asked for, processes are not part of it. A snapshot of the same name is replaced.
pub async fn create(
    State(app): State<App>,
    access: Access,
    Path(id): Path<String>,
    Json(asked): Json<Asked>,
) -> Result<(StatusCode, axum::Json<Info>), ApiError> {
    let sandboxes = app.sandboxes();
    let name = asked.name.as_deref().map(|name| name.strip_suffix(TAG).unwrap_or(name));
    let old = name.and_then(|name| sandboxes.get_snapshot(&access.owner, name).ok());
    let snapshot = match old {
        None => sandboxes.snapshot(&access.owner, &id, name, BTreeMap::new()).await?,
        Some(old) => {
            // Its sandbox first: a name is not lost for one that does not exist.
            sandboxes.get(&access.owner, &id)?;
            let owner = access.owner.clone();
            app.apart(move |app| Ok(app.sandboxes().remove_snapshot(&owner, &old.id)?)).await?;
            sandboxes.snapshot(&access.owner, &id, name, BTreeMap::new()).await?
        }
    };
    Ok((StatusCode::CREATED, axum::Json(Info::from(&snapshot))))
}

pub async fn list(
    State(app): State<App>,
    access: Access,
    query: Query,
) -> Result<(HeaderMap, axum::Json<Vec<Info>>), ApiError> {
    let page = Page::of(&query)?;
    let mut found = app.sandboxes().snapshots(&access.owner)?;
    if let Some(sandbox) = query.text("sandboxID") {
        found.retain(|snapshot| snapshot.sandbox == sandbox);
    }
    if let Some(name) = query.text("name") {
        let name = name.strip_suffix(TAG).unwrap_or(name);
        found.retain(|snapshot| snapshot.name.as_deref() == Some(name) || snapshot.id == name);
    }
    let (headers, found) = page.cut(found, |snapshot| (snapshot.created_ms, snapshot.id.clone()));
    Ok((headers, axum::Json(found.iter().map(Info::from).collect())))
}

/// Whether there was one to forget.
pub fn remove(app: &App, owner: &str, id: &str) -> Result<bool, ApiError> {
    match app.sandboxes().remove_snapshot(owner, id.strip_suffix(TAG).unwrap_or(id)) {
        Ok(()) => Ok(true),
        Err(LifeError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
