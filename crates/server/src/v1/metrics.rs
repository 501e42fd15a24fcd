//! What a sandbox used over time.

use axum::Json;
use axum::extract::State as AppState;
use serde::{Deserialize, Serialize};
use sloplet_engine::life;
use utoipa::{IntoParams, ToSchema};

use super::extract::{Params, Segments};
use super::sandboxes::find;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// Which samples are wanted.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct When {
    /// Not before this, in milliseconds since 1970.
    from_ms: Option<u64>,
    /// Not after this.
    to_ms: Option<u64>,
}

/// What a sandbox used at a moment.
#[derive(Debug, Serialize, ToSchema)]
pub struct Sample {
    /// When, in milliseconds since 1970.
    pub time_ms: u64,
    /// Percent of one processor since the sample before.
    pub cpu_percent: f64,
    /// Bytes of memory, without what the kernel could drop at once.
    pub memory_bytes: u64,
    /// Bytes of memory that hold copies of files on disks.
    pub cache_bytes: u64,
    /// Bytes of disk.
    pub disk_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
}

impl From<life::Sample> for Sample {
    fn from(sample: life::Sample) -> Self {
        Self {
            time_ms: sample.at_ms,
            cpu_percent: f64::from(sample.load) / 100.0,
            memory_bytes: sample.memory,
            cache_bytes: sample.cache,
            disk_bytes: sample.disk_used,
            pids: sample.pids,
        }
    }
}

/// See what a sandbox used over time: a sample every 5 seconds while it runs, fewer of what is long past.
#[utoipa::path(get, path = "/sandboxes/{id}/metrics", tag = "sandboxes",
    params(("id" = String, Path, description = "Its id or name"), When), responses((status = 200, body = Vec<Sample>)))]
pub async fn metrics(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Params(when): Params<When>,
) -> Result<Json<Vec<Sample>>, ApiError> {
    let record = find(&app, &access, &id)?;
    let (from, to) = (when.from_ms.unwrap_or(0), when.to_ms.unwrap_or(u64::MAX));
    if from > to || when.from_ms.into_iter().chain(when.to_ms).any(|ms| i64::try_from(ms).is_err()) {
        return Err(ApiError::bad_request("from_ms must not be after to_ms, and both must be times"));
    }
    let samples = app.sandboxes().history(&access.owner, &record.id, from, to)?;
    Ok(Json(samples.into_iter().map(Sample::from).collect()))
}
