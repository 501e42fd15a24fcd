//! Secrets for a sandbox that is there already.

use axum::Json;
use axum::extract::State as AppState;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::extract::{Payload, Segments};
use super::reach::{self, NewSecret};
use super::sandboxes::find;
use crate::app::App;
use crate::auth::{Access, Scope};
use crate::error::ApiError;

/// Secrets that a sandbox is given.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GivenSecrets {
    /// Only such with `basic`: programs inside would have to know of others.
    #[schema(min_items = 1, max_items = 64)]
    secrets: Vec<NewSecret>,
}

/// The secrets of a sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub struct SecretNames {
    /// Their names.
    pub secrets: Vec<String>,
    /// The file inside with the certificates that programs must trust to reach their hosts, where not all programs do by
    /// themselves.
    #[schema(example = "/etc/ssl/certs/ca-certificates.crt")]
    pub certificates: Option<String>,
}

/// Give a sandbox that runs more secrets for basic authentication, from its next request on; those of the same name are
/// replaced. Their hosts can be reached. The values never enter it.
#[utoipa::path(put, path = "/sandboxes/{id}/secrets", tag = "network", request_body = GivenSecrets,
    params(("id" = String, Path, description = "Its id or name")), responses((status = 200, body = SecretNames)))]
pub async fn give(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Payload(given): Payload<GivenSecrets>,
) -> Result<Json<SecretNames>, ApiError> {
    access.require(Scope::Use)?;
    let record = find(&app, &access, &id)?;
    let (rules, values) = reach::secrets(given.secrets)?;
    if rules.is_empty() {
        return Err(ApiError::bad_request("secrets: name at least one"));
    }
    let mut spec = record.request.spec;
    spec.secrets.clone_from(&rules);
    reach::check(&spec.reach(), &access)?;
    let given = app.sandboxes().give_secrets(&access.owner, &record.id, rules, values).await?;
    let names = given.record.request.spec.secrets.into_iter().map(|secret| secret.name).collect();
    Ok(Json(SecretNames { secrets: names, certificates: given.certificates.map(str::to_owned) }))
}
