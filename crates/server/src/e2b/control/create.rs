//! Making sandboxes.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use sloplet_engine::life::{NewSandbox, OnTimeout, Record, VolumeMount};
use sloplet_policy::spec::{SpecError, is_variable};
use sloplet_policy::{Isolation, Spec};

use super::domain::Domain;
use super::extract::Json;
use super::network::{self, Network};
use super::shown::Sandbox;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// Longest time a sandbox can be asked to live: thirty days.
const MAX_TIMEOUT: i64 = 30 * 86_400;

/// Variables.
const MAX_VARIABLES: usize = 512;

/// Bytes of all variables.
const MAX_VARIABLE_BYTES: usize = 512 * 1024;

/// The metadata that says how strong the wall is.
const ISOLATION: &str = "sloplet.isolation";

/// The metadata that names a wall.
const DRIVER: &str = "sloplet.driver";

/// The metadata that names a pool.
const POOL: &str = "sloplet.pool";

/// Volumes of one sandbox.
const MAX_VOLUMES: usize = 16;

/// A sandbox as it is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Asked {
    #[serde(rename = "templateID")]
    template_id: Option<String>,
    timeout: Option<i64>,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    auto_pause: Option<bool>,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    network: Option<Network>,
    iam: Option<Value>,
    volume_mounts: Option<Vec<Mount>>,
}

#[derive(Debug, Deserialize)]
struct AutoResume {
    enabled: bool,
}

#[derive(Debug, Deserialize)]
struct Mount {
    name: String,
    path: String,
}

pub async fn v1(
    State(app): State<App>,
    access: Access,
    domain: Domain,
    headers: HeaderMap,
    Json(asked): Json<Asked>,
) -> Result<(StatusCode, axum::Json<Sandbox>), ApiError> {
    create(&app, &access, &headers, asked, 15).await.map(|record| made(&app, &access, &domain, &record))
}

pub async fn v2(
    State(app): State<App>,
    access: Access,
    domain: Domain,
    headers: HeaderMap,
    Json(asked): Json<Asked>,
) -> Result<(StatusCode, axum::Json<Sandbox>), ApiError> {
    create(&app, &access, &headers, asked, 300).await.map(|record| made(&app, &access, &domain, &record))
}

fn made(app: &App, access: &Access, domain: &Domain, record: &Record) -> (StatusCode, axum::Json<Sandbox>) {
    (StatusCode::CREATED, axum::Json(Sandbox::of(app, access, domain, record)))
}

async fn create(
    app: &App,
    access: &Access,
    headers: &HeaderMap,
    asked: Asked,
    usual_timeout: i64,
) -> Result<Record, ApiError> {
    let timeout = seconds(asked.timeout.unwrap_or(usual_timeout))?;
    if asked.iam.as_ref().is_some_and(|iam| iam.get("tokens").is_some_and(|tokens| tokens != &serde_json::json!({}))) {
        return Err(ApiError::bad_request("workload identity ('iam') is not available on this server"));
    }
    let auto_resume = asked.auto_resume.is_some_and(|auto| auto.enabled);
    let origin = app.templates().resolve(&access.owner, asked.template_id.as_deref().unwrap_or_default())?;
    let env = variables(asked.env_vars.unwrap_or_default())?;
    let network = network::kept(asked.allow_internet_access, asked.network)?;
    // Not asked for at all is asked for, too: that is their default.
    let rules = network.clone().unwrap_or_else(|| serde_json::json!({}));
    let reach = network::policy(Some(&rules), app.config().internet, access)?;
    let headers_set = network::headers(Some(&rules))?;
    // An image's wish to be root is not enough to be; a template's is that of whoever made it.
    let image = origin.template.as_ref().and_then(|_| app.sandboxes().engine().resolve(&origin.image).ok());
    let user = image.and_then(|image| image.config.user).filter(|user| user == "root");
    if let Some(template) = &origin.template {
        app.sandboxes().follow_template(&access.owner, template, &origin.image)?;
    }
    let metadata = asked.metadata.unwrap_or_default();
    let (isolation, driver) = wall(&metadata)?;
    let mut request = NewSandbox {
        spec: Spec {
            image: origin.image,
            isolation,
            driver,
            limits: origin.resources.limits(),
            env,
            user,
            network: reach,
            headers: headers_set,
            ..Spec::default()
        },
        template: Some(origin.id),
        pool: metadata.get(POOL).cloned(),
        metadata,
        timeout: Some(timeout),
        on_timeout: match (asked.auto_pause, asked.auto_pause_memory) {
            (Some(true), Some(false)) => OnTimeout::Stop,
            (Some(true), _) => OnTimeout::Pause,
            _ => OnTimeout::Destroy,
        },
        auto_resume,
        volumes: volumes(asked.volume_mounts.unwrap_or_default())?,
        network,
        idempotency_key: idempotency_key(headers)?,
        ..NewSandbox::default()
    };
    app.config().walls.admit(app.sandboxes().engine(), access, &mut request.spec)?;
    let record = app.sandboxes().create(&access.owner, request, &access.quota).await?;
    if let Some(template) = &origin.template {
        app.templates().used(template)?;
    }
    Ok(record)
}

/// The wall that metadata name: E2B's clients have no other words for it. How strong it is (`sloplet.isolation`), or which
/// (`sloplet.driver`).
fn wall(metadata: &BTreeMap<String, String>) -> Result<(Isolation, Option<String>), ApiError> {
    let refused = |error: SpecError| ApiError::bad_request(format!("metadata '{ISOLATION}': {error}"));
    match (metadata.get(ISOLATION), metadata.get(DRIVER)) {
        (Some(_), Some(_)) => {
            Err(ApiError::bad_request(format!("metadata: give '{ISOLATION}' or '{DRIVER}', not both")))
        }
        (level, driver) => {
            let level = level.map(|level| level.parse()).transpose().map_err(refused)?;
            Ok((level.unwrap_or_default(), driver.cloned()))
        }
    }
}

/// A time to live.
pub fn seconds(seconds: i64) -> Result<Duration, ApiError> {
    match u64::try_from(seconds) {
        Ok(seconds) if seconds <= MAX_TIMEOUT as u64 => Ok(Duration::from_secs(seconds)),
        _ => Err(ApiError::bad_request(format!("the timeout must be between 0 and {MAX_TIMEOUT} seconds"))),
    }
}

fn variables(given: BTreeMap<String, String>) -> Result<Vec<String>, ApiError> {
    let bytes: usize = given.iter().map(|(name, value)| name.len() + value.len()).sum();
    if given.len() > MAX_VARIABLES || bytes > MAX_VARIABLE_BYTES {
        let message = format!("at most {MAX_VARIABLES} variables with {MAX_VARIABLE_BYTES} bytes can be given");
        return Err(ApiError::bad_request(message));
    }
    if !given.keys().all(|name| is_variable(name)) {
        return Err(ApiError::bad_request(
            "a variable's name is empty or contains '=', a space or a control character",
        ));
    }
    Ok(given.into_iter().map(|(name, value)| format!("{name}={value}")).collect())
}

fn volumes(given: Vec<Mount>) -> Result<Vec<VolumeMount>, ApiError> {
    if given.len() > MAX_VOLUMES {
        return Err(ApiError::bad_request(format!("a sandbox can have {MAX_VOLUMES} volumes at most")));
    }
    let mount = |mount: Mount| {
        if !mount.path.starts_with('/') || mount.path.len() > 4096 {
            return Err(ApiError::bad_request("the path of a volume must be an absolute path inside the sandbox"));
        }
        Ok(VolumeMount { volume: mount.name, path: mount.path, read_only: false })
    };
    given.into_iter().map(mount).collect()
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    match key.to_str() {
        Ok(key) if (1..=255).contains(&key.len()) => Ok(Some(key.to_owned())),
        _ => Err(ApiError::bad_request("an idempotency key has 1 to 255 printable ASCII characters")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_bounded() {
        assert_eq!(seconds(0).unwrap(), Duration::ZERO);
        assert_eq!(seconds(MAX_TIMEOUT).unwrap(), Duration::from_secs(2_592_000));
        for bad in [-1, MAX_TIMEOUT + 1, i64::MAX, i64::MIN] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn variables_are_checked() {
        let given = |name: &str| BTreeMap::from([(name.to_owned(), "x".to_owned())]);
        assert_eq!(variables(given("A")).unwrap(), ["A=x"]);
        assert!(variables(given("")).is_err() && variables(given("A=B")).is_err() && variables(given("A B")).is_err());
        let many = (0..=MAX_VARIABLES).map(|index| (index.to_string(), String::new())).collect();
        assert!(variables(many).is_err());
    }

    #[test]
    fn fields_that_are_null_or_unknown_do_no_harm() {
        let asked: Asked = serde_json::from_str(
            r#"{"templateID":"base","metadata":null,"network":null,"mcp":null,"secure":true,"later":1}"#,
        )
        .unwrap();
        assert_eq!(asked.template_id.as_deref(), Some("base"));
        assert!(serde_json::from_str::<Asked>(r#"{"metadata":{"a":1}}"#).is_err());
    }
}
