//! Pause, stop, resume, snapshot, fork; what a sandbox uses and what its wall enforces.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Json;
use axum::extract::State as AppState;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sloplet_engine::life::NewSandbox;
use sloplet_policy::{Capability, DriverReport, Enforcement, Feature};
use utoipa::ToSchema;

use super::extract::{OptionalPayload, Segments, said};
use super::network::Traffic;
use super::sandbox::{IsolationLevel, Sandbox, check_metadata, check_name, life};
use super::sandboxes::find;
use super::snapshots::Snapshot;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// Most forks at once.
const FORKS: usize = 100;

/// Freeze a sandbox's processes in place.
#[utoipa::path(post, path = "/sandboxes/{id}/pause", tag = "sandboxes",
    params(("id" = String, Path, description = "Its id or name")), responses((status = 200, body = Sandbox)))]
pub async fn pause(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
) -> Result<Json<Sandbox>, ApiError> {
    let record = find(&app, &access, &id)?;
    Ok(Json(Sandbox::of(app.sandboxes().pause(&access.owner, &record.id).await?, &access)))
}

/// Save a sandbox's files and end its processes; resuming starts it afresh on them.
#[utoipa::path(post, path = "/sandboxes/{id}/stop", tag = "sandboxes",
    params(("id" = String, Path, description = "Its id or name")), responses((status = 200, body = Sandbox)))]
pub async fn stop(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
) -> Result<Json<Sandbox>, ApiError> {
    let record = find(&app, &access, &id)?;
    Ok(Json(Sandbox::of(app.sandboxes().stop(&access.owner, &record.id).await?, &access)))
}

/// Go on where a pause or a stop left off.
#[utoipa::path(post, path = "/sandboxes/{id}/resume", tag = "sandboxes",
    params(("id" = String, Path, description = "Its id or name")), responses((status = 200, body = Sandbox)))]
pub async fn resume(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
) -> Result<Json<Sandbox>, ApiError> {
    let record = find(&app, &access, &id)?;
    Ok(Json(Sandbox::of(app.sandboxes().resume(&access.owner, &record.id).await?, &access)))
}

/// How a snapshot is to be called.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewSnapshot {
    /// A name to find it by.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    name: Option<String>,
    /// Anything to remember.
    metadata: BTreeMap<String, String>,
    /// Save its processes with their memory, too: forks of the snapshot go on where the sandbox was. Not every driver can.
    memory: bool,
    /// Leave out what fits: `*.log` anywhere, `build/` folders, `/var/cache` from the root. Nothing is left out otherwise.
    exclude: Vec<String>,
}

/// Save a sandbox's files as an image that others can start from.
#[utoipa::path(post, path = "/sandboxes/{id}/snapshot", tag = "sandboxes", request_body = Option<NewSnapshot>,
    params(("id" = String, Path, description = "Its id or name")), responses((status = 201, body = Snapshot)))]
pub async fn snapshot(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    OptionalPayload(body): OptionalPayload<NewSnapshot>,
) -> Result<(StatusCode, Json<Snapshot>), ApiError> {
    if let Some(name) = &body.name {
        check_name(name)?;
    }
    check_metadata(&body.metadata)?;
    let record = find(&app, &access, &id)?;
    let (sandboxes, name) = (app.sandboxes(), body.name.as_deref());
    if body.exclude.len() > 100 || (body.memory && !body.exclude.is_empty()) {
        return Err(ApiError::bad_request("exclude: 100 patterns at most, and none of a snapshot with memory"));
    }
    let made = if !body.exclude.is_empty() {
        sandboxes.snapshot_without(&access.owner, &record.id, name, body.metadata, body.exclude).await?
    } else if body.memory {
        if !sandboxes.engine().report(&record.request.spec)?.lacking(&[Feature::MemorySnapshot]).is_empty() {
            let message = "this driver cannot take snapshots with memory: make the sandbox with isolation 'gvisor'";
            return Err(ApiError::conflict(message));
        }
        sandboxes.snapshot_with_memory(&access.owner, &record.id, name, body.metadata).await?
    } else {
        sandboxes.snapshot(&access.owner, &record.id, name, body.metadata).await?
    };
    Ok((StatusCode::CREATED, Json(made.into())))
}

/// How the forks are to differ.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Fork {
    /// How many; one if left out.
    #[schema(minimum = 1, maximum = 100)]
    count: Option<usize>,
    /// Their name; several are called `<name>-1`, `<name>-2` and so on.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,55}$")]
    name: Option<String>,
    /// Metadata in place of the original's.
    metadata: Option<BTreeMap<String, String>>,
    /// How long they live; as long as the original was to if left out, `null`: until they are removed.
    #[serde(deserialize_with = "said")]
    #[schema(value_type = Option<String>, pattern = "^[1-9][0-9]{0,4}(ms|s|m|h|d)$")]
    timeout: Option<Option<String>>,
}

/// What came of a fork.
#[derive(Debug, Serialize, ToSchema)]
pub struct Forked {
    /// The new sandboxes.
    pub sandboxes: Vec<Sandbox>,
    /// Why the others could not be made.
    pub failures: Vec<String>,
}

/// Make sandboxes that start from another's files as they are now.
#[utoipa::path(post, path = "/sandboxes/{id}/fork", tag = "sandboxes", request_body = Option<Fork>,
    params(("id" = String, Path, description = "Its id or name")), responses((status = 201, body = Forked)))]
pub async fn fork(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    OptionalPayload(body): OptionalPayload<Fork>,
) -> Result<(StatusCode, Json<Forked>), ApiError> {
    let (count, change) = body.changes()?;
    let record = find(&app, &access, &id)?;
    let made = app.sandboxes().fork(&access.owner, &record.id, count, &access.quota, &change).await?;
    forked(made, &access)
}

/// Make sandboxes that go on from a snapshot with memory: same processes, same files.
#[utoipa::path(post, path = "/snapshots/{id}/fork", tag = "snapshots", request_body = Option<Fork>,
    params(("id" = String, Path, description = "Its id or name")), responses((status = 201, body = Forked)))]
pub async fn fork_snapshot(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    OptionalPayload(body): OptionalPayload<Fork>,
) -> Result<(StatusCode, Json<Forked>), ApiError> {
    let (count, change) = body.changes()?;
    let made = app.sandboxes().fork_snapshot(&access.owner, &id, count, &access.quota, &change).await?;
    forked(made, &access)
}

impl Fork {
    /// How many, and how each request for one is changed.
    fn changes(self) -> Result<(usize, impl Fn(&mut NewSandbox) + Send + Sync), ApiError> {
        let count = match self.count.unwrap_or(1) {
            count @ 1..=FORKS => count,
            _ => return Err(ApiError::bad_request(format!("count must be 1 to {FORKS}"))),
        };
        if let Some(name) = &self.name {
            check_name(name)?;
            check_name(&format!("{name}-{count}"))?;
        }
        let timeout = if self.timeout.is_some() { Some(life(self.timeout)?) } else { None };
        let number = AtomicUsize::new(0);
        let change = move |request: &mut NewSandbox| {
            let number = number.fetch_add(1, Ordering::Relaxed) + 1;
            request.idempotency_key = None;
            request.name =
                self.name.as_ref().map(|name| if count == 1 { name.clone() } else { format!("{name}-{number}") });
            if let Some(metadata) = &self.metadata {
                request.metadata = metadata.clone();
            }
            if let Some(timeout) = timeout {
                request.timeout = timeout;
            }
        };
        Ok((count, change))
    }
}

fn forked(
    made: Vec<Result<sloplet_engine::life::Record, sloplet_engine::life::LifeError>>,
    access: &Access,
) -> Result<(StatusCode, Json<Forked>), ApiError> {
    let (mut sandboxes, mut errors) = (Vec::new(), Vec::new());
    for one in made {
        match one {
            Ok(record) => sandboxes.push(Sandbox::of(record, access)),
            Err(error) => errors.push(ApiError::from(error)),
        }
    }
    match errors.pop() {
        Some(error) if sandboxes.is_empty() => Err(error),
        last => {
            let failures = errors.into_iter().chain(last).map(|error| error.message).collect();
            Ok((StatusCode::CREATED, Json(Forked { sandboxes, failures })))
        }
    }
}

/// What a sandbox uses right now.
#[derive(Debug, Serialize, ToSchema)]
pub struct Usage {
    /// Processor time since its start, in microseconds.
    pub cpu_us: u64,
    /// Bytes of memory, without what the kernel could drop at once.
    pub memory_bytes: u64,
    /// Bytes of memory that hold copies of files on disks.
    pub cache_bytes: u64,
    /// Most bytes of memory ever; 0 where that is not known.
    pub memory_peak_bytes: u64,
    /// Bytes of memory that it may use.
    pub memory_limit_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Bytes of disk.
    pub disk_bytes: u64,
    /// Bytes of disk that it may use.
    pub disk_limit_bytes: u64,
    /// Files.
    pub files: u64,
    /// Files that it may have.
    pub files_limit: u64,
    /// What went through its way out since the server opened it.
    #[schema(value_type = Traffic)]
    pub network: sloplet_egress::Counters,
}

/// See what a sandbox uses right now.
#[utoipa::path(get, path = "/sandboxes/{id}/usage", tag = "sandboxes",
    params(("id" = String, Path, description = "Its id or name")), responses((status = 200, body = Usage)))]
pub async fn usage(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
) -> Result<Json<Usage>, ApiError> {
    let record = find(&app, &access, &id)?;
    let used = app.sandboxes().usage(&access.owner, &record.id).await?;
    Ok(Json(Usage {
        cpu_us: used.cpu_us,
        memory_bytes: used.memory,
        cache_bytes: used.cache,
        memory_peak_bytes: used.memory_peak,
        memory_limit_bytes: record.request.spec.limits.memory.0,
        pids: used.pids,
        disk_bytes: used.disk_used,
        disk_limit_bytes: used.disk_total,
        files: used.files_used,
        files_limit: used.files_total,
        network: app.sandboxes().traffic(&access.owner, &record.id)?,
    }))
}

/// What a wall enforces on this host.
#[derive(Debug, Serialize, ToSchema)]
pub struct Report {
    /// The driver's name.
    pub driver: String,
    /// How strong the wall is.
    #[schema(value_type = IsolationLevel)]
    pub isolation: sloplet_policy::Isolation,
    /// Why it cannot be used here at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// What holds and what does not.
    pub features: Vec<ReportedFeature>,
}

/// One promise of a wall.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReportedFeature {
    /// What.
    #[schema(value_type = String)]
    pub feature: sloplet_policy::Feature,
    /// `enforced` at every instant, `watched` at short intervals, or `missing`.
    #[schema(value_type = String)]
    pub enforcement: Enforcement,
    /// By what means, or why not.
    pub detail: String,
    /// What to do to get it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl From<DriverReport> for Report {
    fn from(report: DriverReport) -> Self {
        let feature = |Capability { feature, enforcement, detail, remedy }: Capability| ReportedFeature {
            feature,
            enforcement,
            detail,
            remedy,
        };
        Self {
            driver: report.driver,
            isolation: report.isolation,
            unavailable: report.unavailable,
            features: report.capabilities.into_iter().map(feature).collect(),
        }
    }
}

/// See what a sandbox's wall enforces on this host, and what not.
#[utoipa::path(get, path = "/sandboxes/{id}/capabilities", tag = "sandboxes",
    params(("id" = String, Path, description = "Its id or name")), responses((status = 200, body = Report)))]
pub async fn capabilities(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
) -> Result<Json<Report>, ApiError> {
    let spec = find(&app, &access, &id)?.request.spec;
    let report = app.sandboxes().engine().report(&spec);
    Ok(Json(report.map_err(|error| ApiError::not_found(error.to_string()))?.into()))
}
