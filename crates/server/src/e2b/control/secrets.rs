//! Secrets: kept for the gateway that will put them into requests; their values are never told again.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use sloplet_engine::engine::new_id;
use sloplet_engine::life::clock::now_ms;
use sloplet_store::{Collection, Document, StoreError};

use super::extract::{Json, Path};
use super::page::Page;
use super::query::Query;
use super::time;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// How the ids begin, and names must not.
const PREFIX: &str = "sec_";

/// Bytes of a value.
const MAX_VALUE: usize = 64 * 1024;

/// Secrets of one owner.
const MAX_SECRETS: usize = 1000;

/// A secret as it is kept.
#[derive(Clone, Serialize, Deserialize)]
pub struct Secret {
    id: String,
    owner: String,
    name: String,
    value: String,
    version: u64,
    metadata: BTreeMap<String, String>,
    created_ms: u64,
    updated_ms: u64,
}

impl Document for Secret {
    const KIND: &'static str = "secret";

    fn id(&self) -> &str {
        &self.id
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    fn name(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn created_ms(&self) -> u64 {
        self.created_ms
    }
}

/// A secret as it is shown: without its value.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Info {
    #[serde(rename = "secretID")]
    secret_id: String,
    name: String,
    current_version: u64,
    metadata: BTreeMap<String, String>,
    created_at: String,
    updated_at: String,
}

impl From<Secret> for Info {
    fn from(secret: Secret) -> Self {
        Self {
            secret_id: secret.id,
            name: secret.name,
            current_version: secret.version,
            metadata: secret.metadata,
            created_at: time::format(secret.created_ms),
            updated_at: time::format(secret.updated_ms),
        }
    }
}

#[derive(Deserialize)]
pub struct Asked {
    name: String,
    value: String,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
}

pub async fn create(
    State(app): State<App>,
    access: Access,
    Json(asked): Json<Asked>,
) -> Result<(StatusCode, axum::Json<Info>), ApiError> {
    let name = asked.name.to_lowercase();
    let fits = |c: char| !c.is_control() && !c.is_whitespace() && !"{}$/".contains(c);
    if name.is_empty() || name.len() > 128 || !name.chars().all(fits) || name.starts_with(PREFIX) {
        let message = "a secret's name has up to 128 characters, no spaces, none of {}$/, and does not begin with sec_";
        return Err(ApiError::bad_request(message));
    }
    check_value(&asked.value)?;
    let metadata = asked.metadata.unwrap_or_default();
    check_metadata(&metadata)?;
    let secrets = all(&app);
    if secrets.of(&access.owner)?.len() >= MAX_SECRETS {
        let message = format!("there are {MAX_SECRETS} secrets: delete some");
        return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, message));
    }
    let now = now_ms();
    let id = format!("{PREFIX}{}", new_id());
    let (owner, value) = (access.owner, asked.value);
    let secret = Secret { id, owner, name, value, version: 1, metadata, created_ms: now, updated_ms: now };
    secrets.insert(&secret).map_err(|error| match error {
        StoreError::Taken(name) => ApiError::conflict(format!("there is a secret '{name}' already")),
        error => error.into(),
    })?;
    Ok((StatusCode::CREATED, axum::Json(secret.into())))
}

pub async fn list(
    State(app): State<App>,
    access: Access,
    query: Query,
) -> Result<(HeaderMap, axum::Json<Vec<Info>>), ApiError> {
    let page = Page::of(&query)?;
    let (headers, found) = page.cut(all(&app).of(&access.owner)?, |secret| (secret.created_ms, secret.id.clone()));
    Ok((headers, axum::Json(found.into_iter().map(Info::from).collect())))
}

pub async fn info(
    State(app): State<App>,
    access: Access,
    Path(id): Path<String>,
) -> Result<axum::Json<Info>, ApiError> {
    Ok(axum::Json(find(&app, &access, &id)?.into()))
}

#[derive(Deserialize)]
pub struct Update {
    value: String,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
}

pub async fn update(
    State(app): State<App>,
    access: Access,
    Path(id): Path<String>,
    Json(update): Json<Update>,
) -> Result<axum::Json<Info>, ApiError> {
    check_value(&update.value)?;
    let mut secret = find(&app, &access, &id)?;
    if let Some(metadata) = update.metadata {
        check_metadata(&metadata)?;
        secret.metadata = metadata;
    }
    secret.value = update.value;
    secret.version += 1;
    secret.updated_ms = now_ms();
    all(&app).put(&secret)?;
    Ok(axum::Json(secret.into()))
}

pub async fn remove(State(app): State<App>, access: Access, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    all(&app).remove(&find(&app, &access, &id)?.id)?;
    Ok(StatusCode::NO_CONTENT)
}

fn all(app: &App) -> Collection<Secret> {
    app.store().collection()
}

/// By id or name.
fn find(app: &App, access: &Access, id: &str) -> Result<Secret, ApiError> {
    let secrets = all(app);
    let by_id = secrets.get(id)?.filter(|secret| secret.owner == access.owner);
    let found = match by_id {
        Some(secret) => Some(secret),
        None => secrets.named(&access.owner, &id.to_lowercase())?,
    };
    found.ok_or_else(|| ApiError::not_found(format!("secret '{id}' was not found")))
}

fn check_value(value: &str) -> Result<(), ApiError> {
    if value.is_empty() || value.len() > MAX_VALUE {
        return Err(ApiError::bad_request(format!("a secret has 1 to {MAX_VALUE} bytes")));
    }
    Ok(())
}

fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), ApiError> {
    let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    let long = metadata.iter().any(|(key, value)| key.len() > 128 || value.len() > 1024);
    if metadata.len() > 32 || bytes > 8192 || long {
        let message = "metadata of a secret: 32 entries, 128 bytes for a key, 1024 for a value, 8192 in all";
        return Err(ApiError::bad_request(message));
    }
    Ok(())
}
