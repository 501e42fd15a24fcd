//! What sandboxes use.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use axum::extract::State;
use serde::Serialize;
use sloplet_engine::life::clock::now_ms;
use sloplet_engine::life::{LifeError, Record, Sample, State as Life};

use super::extract::Path;
use super::query::Query;
use super::time;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// Between the two looks from which the load is told.
const LOOK: Duration = Duration::from_millis(50);

/// Sandboxes asked for at once.
const MAX_SANDBOXES: usize = 100;

/// Seconds by which a client's clock, or its rounding, may be off.
const SLACK: i64 = 5;

/// What a sandbox uses at one moment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    timestamp: String,
    timestamp_unix: i64,
    cpu_count: u64,
    cpu_used_pct: f64,
    mem_used: u64,
    mem_total: u64,
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

/// What it used in the time that was asked for, and uses now if that is within it.
pub async fn of_one(
    State(app): State<App>,
    access: Access,
    Path(id): Path<String>,
    query: Query,
) -> Result<axum::Json<Vec<Metric>>, ApiError> {
    let record = app.sandboxes().get(&access.owner, &id)?;
    let (start, end) = (query.number::<i64>("start")?, query.number::<i64>("end")?);
    if let (Some(start), Some(end)) = (start, end)
        && start > end
    {
        return Err(ApiError::bad_request("the start must not be after the end"));
    }
    // Whole seconds: the last one counts to its end.
    let ms = |seconds: i64| u64::try_from(seconds).unwrap_or(0).saturating_mul(1000);
    let (from, to) = (start.map_or(0, ms), end.map_or(u64::MAX, |end| ms(end).saturating_add(999)));
    let samples = app.sandboxes().history(&access.owner, &record.id, from, to)?;
    let mut metrics: Vec<Metric> = samples.iter().map(|sample| past(&record, sample)).collect();
    let now = (now_ms() / 1000) as i64;
    let wanted = start.is_none_or(|start| start <= now + SLACK) && end.is_none_or(|end| end >= now - SLACK);
    if wanted {
        metrics.extend(measure(&app, &record).await?);
    }
    Ok(axum::Json(metrics))
}

fn past(record: &Record, sample: &Sample) -> Metric {
    let limits = &record.request.spec.limits;
    Metric {
        timestamp: time::format(sample.at_ms),
        timestamp_unix: (sample.at_ms / 1000) as i64,
        cpu_count: u64::from(limits.cpus.millis).div_ceil(1000),
        cpu_used_pct: f64::from(sample.load) / 100.0,
        mem_used: sample.memory,
        mem_total: limits.memory.0,
        mem_cache: sample.cache,
        disk_used: sample.disk_used,
        disk_total: limits.disk.0,
    }
}

#[derive(Debug, Serialize)]
pub struct Several {
    sandboxes: BTreeMap<String, Metric>,
}

pub async fn of_several(State(app): State<App>, access: Access, query: Query) -> Result<axum::Json<Several>, ApiError> {
    let ids = query.all("sandbox_ids");
    if ids.is_empty() || ids.len() > MAX_SANDBOXES {
        return Err(ApiError::bad_request(format!("name 1 to {MAX_SANDBOXES} sandboxes with 'sandbox_ids'")));
    }
    let records: Vec<Record> = ids.iter().filter_map(|id| app.sandboxes().get(&access.owner, id).ok()).collect();
    let all = futures_util::future::join_all(records.iter().map(|record| measure(&app, record))).await;
    let mut sandboxes = BTreeMap::new();
    for (record, metric) in records.iter().zip(all) {
        if let Some(metric) = metric? {
            sandboxes.insert(record.id.clone(), metric);
        }
    }
    Ok(axum::Json(Several { sandboxes }))
}

async fn measure(app: &App, record: &Record) -> Result<Option<Metric>, ApiError> {
    if record.state != Life::Running {
        return Ok(None);
    }
    let look = || app.sandboxes().usage(&record.owner, &record.id);
    let since = Instant::now();
    let (before, after) = match (look().await, tokio::time::sleep(LOOK).await, look().await) {
        (Ok(before), (), Ok(after)) => (before, after),
        // It ended meanwhile.
        (Err(LifeError::NotFound { .. }), ..) | (.., Err(LifeError::NotFound { .. })) => return Ok(None),
        (Err(error), ..) | (.., Err(error)) => return Err(error.into()),
    };
    let elapsed = since.elapsed().as_micros().max(1) as f64;
    let limits = &record.request.spec.limits;
    let now = now_ms();
    Ok(Some(Metric {
        timestamp: time::format(now),
        timestamp_unix: (now / 1000) as i64,
        cpu_count: u64::from(limits.cpus.millis).div_ceil(1000),
        cpu_used_pct: (after.cpu_us.saturating_sub(before.cpu_us) as f64 / elapsed * 10_000.0).round() / 100.0,
        mem_used: after.memory,
        mem_total: limits.memory.0,
        mem_cache: after.cache,
        disk_used: after.disk_used,
        disk_total: if after.disk_total == 0 { limits.disk.0 } else { after.disk_total },
    }))
}
