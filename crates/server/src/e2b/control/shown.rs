//! Sandboxes as E2B's SDKs see them.

use serde::Serialize;
use serde_json::Value;
use sloplet_engine::life::{OnTimeout, Record, State};

use super::domain::Domain;
use super::time;
use crate::app::App;
use crate::auth::Access;

/// What the SDKs take for the version of the service inside; the newest that they ask for.
pub const ENVD_VERSION: &str = "0.6.4";

/// The SDKs want one, and do nothing with it.
const CLIENT: &str = "sloplet";

/// What stands for the end of a sandbox that has none: ten years after its start.
const FAR_MS: u64 = 10 * 365 * 86_400_000;

/// A sandbox that can be used.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    envd_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    envd_access_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic_access_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    alias: Option<String>,
    domain: String,
}

impl Sandbox {
    /// Of this record, with what opens it for those who may use it.
    pub fn of(app: &App, access: &Access, domain: &Domain, record: &Record) -> Self {
        let token = access.token(&record.token);
        Self {
            template_id: record.template().to_owned(),
            sandbox_id: record.id.clone(),
            client_id: CLIENT,
            envd_version: ENVD_VERSION,
            envd_access_token: token.clone(),
            traffic_access_token: token,
            alias: alias(app, record),
            domain: domain.0.clone(),
        }
    }
}

/// A sandbox in a listing.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    alias: Option<String>,
    started_at: String,
    end_at: String,
    cpu_count: u64,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    state: &'static str,
    envd_version: &'static str,
    metadata: std::collections::BTreeMap<String, String>,
    volume_mounts: Vec<Mount>,
}

#[derive(Debug, Serialize)]
struct Mount {
    name: String,
    path: String,
}

impl Listed {
    /// Of this record.
    pub fn of(app: &App, record: &Record) -> Self {
        let request = &record.request;
        let limits = &request.spec.limits;
        let end = record.ends_ms.or_else(|| Some(record.started_ms + record.remaining_ms?));
        let mount =
            |mount: &sloplet_engine::life::VolumeMount| Mount { name: mount.volume.clone(), path: mount.path.clone() };
        Self {
            template_id: record.template().to_owned(),
            sandbox_id: record.id.clone(),
            client_id: CLIENT,
            alias: alias(app, record),
            started_at: time::format(record.created_ms),
            end_at: time::format(end.unwrap_or(record.created_ms + FAR_MS)),
            cpu_count: u64::from(limits.cpus.millis).div_ceil(1000),
            memory_mb: limits.memory.0 >> 20,
            disk_size_mb: limits.disk.0 >> 20,
            state: state(record.state).unwrap_or("running"),
            envd_version: ENVD_VERSION,
            metadata: request.metadata.clone(),
            volume_mounts: request.volumes.iter().map(mount).collect(),
        }
    }
}

/// All about a sandbox.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Detail {
    #[serde(flatten)]
    listed: Listed,
    #[serde(skip_serializing_if = "Option::is_none")]
    envd_access_token: Option<String>,
    domain: String,
    allow_internet_access: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Value>,
    lifecycle: Lifecycle,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Lifecycle {
    on_timeout: &'static str,
    auto_resume: bool,
}

impl Detail {
    /// Of this record, with what opens it for those who may use it.
    pub fn of(app: &App, access: &Access, domain: &Domain, record: &Record) -> Self {
        let (_, network) = super::network::shown(record.request.network.as_ref());
        let on_timeout = match record.request.on_timeout {
            OnTimeout::Destroy => "kill",
            _ => "pause",
        };
        Self {
            listed: Listed::of(app, record),
            envd_access_token: access.token(&record.token),
            domain: domain.0.clone(),
            // What it has, which may be less than was asked for.
            allow_internet_access: record.request.spec.network.internet,
            network,
            lifecycle: Lifecycle { on_timeout, auto_resume: record.request.auto_resume },
        }
    }
}

/// E2B knows two states; a sandbox that is being made or has failed is not shown.
pub fn state(state: State) -> Option<&'static str> {
    match state {
        State::Running => Some("running"),
        State::Paused | State::Stopped => Some("paused"),
        State::Creating | State::Failed => None,
    }
}

/// What people call the template.
fn alias(app: &App, record: &Record) -> Option<String> {
    let named = app.templates().get(&record.owner, record.template()).ok();
    named.map(|template| template.name)
}
