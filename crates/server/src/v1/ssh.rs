//! Public keys for logins, and SSH over a WebSocket.

use axum::Json;
use axum::extract::State as AppState;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sloplet_store::StoreError;
use utoipa::ToSchema;

use super::attach::upgraded;
use super::extract::{Payload, Segments};
use super::ports::tunnel;
use crate::app::App;
use crate::auth::{Access, Scope};
use crate::error::ApiError;
use crate::ssh::{Door, PublicKey};

/// Keys that one owner may add.
const MOST: usize = 100;

/// Bytes of a stream under way in each direction.
const BUFFER: usize = 256 * 1024;

/// A public key for logins.
#[derive(Debug, Serialize, ToSchema)]
pub struct SshKey {
    /// Letters and digits.
    pub id: String,
    /// For people.
    pub label: String,
    /// As `ssh-keygen -l` shows it.
    pub fingerprint: String,
    /// The key itself.
    pub public_key: String,
    /// When it was added, in milliseconds since 1970.
    pub created_ms: u64,
}

impl From<crate::ssh::SshKey> for SshKey {
    fn from(key: crate::ssh::SshKey) -> Self {
        let crate::ssh::SshKey { id, label, fingerprint, public, created_ms, .. } = key;
        Self { id, label, fingerprint, public_key: public, created_ms }
    }
}

/// A public key to be added.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSshKey {
    /// A line as in a `.pub` file.
    #[schema(
        max_length = 8192,
        example = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me"
    )]
    public_key: String,
    /// For people; what follows the key in its line if left out.
    #[schema(max_length = 100)]
    label: Option<String>,
}

/// How the server is reached over SSH.
#[derive(Debug, Serialize, ToSchema)]
pub struct SshServer {
    /// Where it listens; absent if it takes streams over HTTP alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The fingerprint of its key, as clients show it.
    pub fingerprint: String,
    /// Its key, for `known_hosts`.
    pub host_key: String,
}

impl From<&dyn Door> for SshServer {
    fn from(door: &dyn Door) -> Self {
        let key = door.host_key();
        Self { address: door.address(), fingerprint: key.fingerprint, host_key: key.public }
    }
}

/// Add a public key: whoever has its private half can log into this key's sandboxes.
#[utoipa::path(post, path = "/ssh-keys", tag = "ssh", request_body = NewSshKey, responses((status = 201, body = SshKey)))]
pub async fn add(
    AppState(app): AppState<App>,
    access: Access,
    Payload(body): Payload<NewSshKey>,
) -> Result<(StatusCode, Json<SshKey>), ApiError> {
    let public =
        PublicKey::parse(&body.public_key).map_err(|error| ApiError::bad_request(format!("public_key: {error}")))?;
    if body.label.as_ref().is_some_and(|label| label.chars().count() > 100 || label.contains(char::is_control)) {
        return Err(ApiError::bad_request("label: at most 100 characters, no control characters"));
    }
    if app.ssh_keys().list(&access.owner)?.len() >= MOST {
        return Err(ApiError::conflict(format!("at most {MOST} keys can be added: remove one first")));
    }
    match app.ssh_keys().add(&access, &public, body.label.as_deref()) {
        Ok(key) => Ok((StatusCode::CREATED, Json(key.into()))),
        Err(StoreError::Taken(_)) => Err(ApiError::conflict("this key is in use already")),
        Err(error) => Err(error.into()),
    }
}

/// List public keys for logins, newest first.
#[utoipa::path(get, path = "/ssh-keys", tag = "ssh", responses((status = 200, body = Vec<SshKey>)))]
pub async fn list(AppState(app): AppState<App>, access: Access) -> Result<Json<Vec<SshKey>>, ApiError> {
    Ok(Json(app.ssh_keys().list(&access.owner)?.into_iter().map(Into::into).collect()))
}

/// Forget a public key. Connections that it opened go on until they end.
#[utoipa::path(delete, path = "/ssh-keys/{id}", tag = "ssh",
    params(("id" = String, Path, description = "Its id, fingerprint or label")), responses((status = 204)))]
pub async fn remove(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
) -> Result<StatusCode, ApiError> {
    if app.ssh_keys().remove(&access.owner, &id)? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(ApiError::not_found(format!("there is no SSH key '{}'", id.escape_default())))
}

/// Speak SSH over a WebSocket: binary messages are the bytes of the connection, both ways. Whoever may ask this needs no
/// other key to log in: the user's name is the sandbox's.
#[utoipa::path(get, path = "/ssh", tag = "ssh", responses((status = 101, description = "A WebSocket")))]
pub async fn connect(
    AppState(app): AppState<App>,
    access: Access,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    access.require(Scope::Use)?;
    let upgrade = upgraded(upgrade)?;
    let door = app.ssh().ok_or_else(|| ApiError::new(StatusCode::NOT_IMPLEMENTED, "this server does not speak SSH"))?;
    let (near, far) = tokio::io::duplex(BUFFER);
    let serving = door.serve(far, access);
    Ok(upgrade.on_upgrade(move |socket| async move {
        tokio::join!(serving, tunnel(socket, near, ()));
    }))
}
