//! The server itself.

use axum::Json;
use axum::extract::State as AppState;
use serde::Serialize;
use utoipa::ToSchema;

use super::lifecycle::Report;
use super::ssh::SshServer;
use crate::app::App;
use crate::auth::{Access, Scope};

/// The server.
#[derive(Debug, Serialize, ToSchema)]
pub struct Info {
    /// Its version.
    pub version: String,
    /// How it is reached.
    pub url: String,
    /// What names of its previews end with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// What this key may do.
    pub scope: Scope,
    /// Its process; only for keys of the scope `admin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Where it keeps its data; only for keys of the scope `admin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// How it is reached over SSH.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh: Option<SshServer>,
    /// What its walls enforce on this host.
    pub drivers: Vec<Report>,
    /// The parts of S3 that this key may use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub s3: Vec<String>,
    /// The newest verification of containment on this host, if there was one; that of another wall if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
    /// The newest verification of each wall.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verifications: Vec<Verification>,
}

/// A verification of containment.
#[derive(Debug, Serialize, ToSchema)]
pub struct Verification {
    /// When it began, in milliseconds since 1970.
    pub started_ms: u64,
    /// How old it is, in seconds.
    pub age_seconds: u64,
    /// Whether nothing got out.
    pub passed: bool,
    /// The wall.
    pub driver: String,
    /// Probes that were contained.
    pub contained: usize,
    /// Probes that got out.
    pub breaches: usize,
    /// Probes that prove nothing on this host.
    pub inconclusive: usize,
    /// What it speaks for: a digest of configuration, wall, kernel and binary.
    pub digest: String,
}

impl Verification {
    /// The newest one, or that of another wall if it failed.
    pub fn standing(app: &App) -> Option<Self> {
        sloplet_verify::Records::of(&app.config().data).worst().map(Into::into)
    }

    /// The newest one of each wall.
    pub fn of_walls(app: &App) -> Vec<Self> {
        sloplet_verify::Records::of(&app.config().data).of_walls().into_iter().map(Into::into).collect()
    }
}

impl From<sloplet_verify::record::Latest> for Verification {
    fn from(latest: sloplet_verify::record::Latest) -> Self {
        Self {
            started_ms: latest.at_ms,
            age_seconds: latest.age_seconds,
            passed: latest.passed,
            driver: latest.driver,
            contained: latest.contained,
            breaches: latest.breaches,
            inconclusive: latest.inconclusive,
            digest: latest.digest,
        }
    }
}

/// Look at the server.
#[utoipa::path(get, path = "/info", tag = "server", responses((status = 200, body = Info)))]
pub async fn get(AppState(app): AppState<App>, access: Access) -> Json<Info> {
    let admin = access.scope >= Scope::Admin;
    Json(Info {
        version: env!("CARGO_PKG_VERSION").into(),
        url: app.config().url.clone(),
        domain: app.config().domain.clone(),
        scope: access.scope,
        pid: admin.then(std::process::id),
        data: admin.then(|| app.config().data.display().to_string()),
        ssh: app.ssh().map(|door| (&**door).into()),
        drivers: app.sandboxes().engine().reports().into_iter().map(Into::into).collect(),
        s3: app.storage().map_or_else(
            |_| Vec::new(),
            |storage| storage.roots(&access.owner).iter().map(ToString::to_string).collect(),
        ),
        verification: Verification::standing(&app),
        verifications: Verification::of_walls(&app),
    })
}
