//! API keys; only for keys of the scope `admin`.

use axum::Json;
use axum::extract::State as AppState;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sloplet_engine::life::Quota;
use utoipa::ToSchema;

use super::extract::{Payload, Segments, optional_unit};
use crate::app::App;
use crate::auth::{self, Access, Scope};
use crate::error::ApiError;

/// Longest label.
const LABEL: usize = 100;

/// An API key.
#[derive(Debug, Serialize, ToSchema)]
pub struct Key {
    /// Letters and digits.
    pub id: String,
    /// For people.
    pub label: String,
    /// What it allows.
    pub scope: Scope,
    /// Sandboxes that it may have at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_sandboxes: Option<u64>,
    /// Bytes of memory that they may have together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_memory_bytes: Option<u64>,
    /// Requests in a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// What to show as `X-API-KEY`. Told this once, when it is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

impl Key {
    fn of(key: auth::Key, secret: Option<String>) -> Self {
        Self {
            id: key.id,
            label: key.label,
            scope: key.scope,
            max_sandboxes: key.quota.sandboxes,
            max_memory_bytes: key.quota.memory,
            requests_per_minute: key.quota.requests_per_minute,
            created_ms: key.created_ms,
            secret,
        }
    }
}

/// A key to be made. Its sandboxes are its own: no other key sees them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// For people.
    #[schema(max_length = 100)]
    #[serde(default)]
    label: String,
    /// What it allows.
    scope: Scope,
    /// Sandboxes that it may have at once.
    #[schema(minimum = 0, maximum = 1_000_000)]
    max_sandboxes: Option<u64>,
    /// Memory that they may have together.
    #[schema(example = "8GiB", pattern = "^[1-9][0-9]{0,5}[KMGT]iB$")]
    max_memory: Option<String>,
    /// Requests in a minute.
    #[schema(minimum = 1, maximum = 1_000_000)]
    requests_per_minute: Option<u32>,
}

/// Make a key.
#[utoipa::path(post, path = "/keys", tag = "keys", request_body = NewKey, responses((status = 201, body = Key)))]
pub async fn create(
    AppState(app): AppState<App>,
    access: Access,
    Payload(body): Payload<NewKey>,
) -> Result<(StatusCode, Json<Key>), ApiError> {
    access.require(Scope::Admin)?;
    if body.label.chars().count() > LABEL {
        return Err(ApiError::bad_request(format!("label: at most {LABEL} characters")));
    }
    if body.max_sandboxes.is_some_and(|most| most > 1_000_000) {
        return Err(ApiError::bad_request("max_sandboxes: 0 to 1000000"));
    }
    if body.requests_per_minute.is_some_and(|rate| !(1..=1_000_000).contains(&rate)) {
        return Err(ApiError::bad_request("requests_per_minute: 1 to 1000000"));
    }
    let memory = optional_unit::<sloplet_policy::ByteSize>("max_memory", body.max_memory.as_ref())?;
    let quota = Quota {
        sandboxes: body.max_sandboxes,
        memory: memory.map(|size| size.0),
        requests_per_minute: body.requests_per_minute,
    };
    let (key, secret) = app.keys().create(&body.label, body.scope, quota, None)?;
    Ok((StatusCode::CREATED, Json(Key::of(key, Some(secret)))))
}

/// List keys, newest first.
#[utoipa::path(get, path = "/keys", tag = "keys", responses((status = 200, body = Vec<Key>)))]
pub async fn list(AppState(app): AppState<App>, access: Access) -> Result<Json<Vec<Key>>, ApiError> {
    access.require(Scope::Admin)?;
    Ok(Json(app.keys().list()?.into_iter().map(|key| Key::of(key, None)).collect()))
}

/// Forget a key. Its sandboxes stay until their time is over; its pools go with the last key of their owner.
#[utoipa::path(delete, path = "/keys/{id}", tag = "keys",
    params(("id" = String, Path, description = "Its id")), responses((status = 204)))]
pub async fn remove(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
) -> Result<StatusCode, ApiError> {
    access.require(Scope::Admin)?;
    let mut all = app.keys().list()?;
    let known = all.iter().position(|key| key.id == id).map(|index| all.swap_remove(index));
    let (Some(key), true) = (known, app.keys().remove(&id)?) else {
        return Err(ApiError::not_found(format!("there is no key '{}'", id.escape_default())));
    };
    if key.owner != auth::LOCAL && all.iter().all(|other| other.owner != key.owner) {
        for pool in app.sandboxes().pools(&key.owner) {
            app.sandboxes().remove_pool(&key.owner, &pool.record.id).await?;
        }
    }
    Ok(StatusCode::NO_CONTENT)
}
