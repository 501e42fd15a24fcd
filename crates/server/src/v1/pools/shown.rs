//! A pool as it is told.

use std::collections::BTreeMap;

use serde::Serialize;
use sloplet_engine::life::pool::{PoolConfig, PoolStatus, Source};
use sloplet_policy::Isolation;
use utoipa::ToSchema;

use super::super::sandbox::IsolationLevel;
use super::wanted::WhenEmpty;

/// A pool.
#[derive(Debug, Serialize, ToSchema)]
pub struct Pool {
    /// Letters and digits.
    pub id: String,
    /// The key's name for it.
    pub name: String,
    /// What its machines start from.
    pub image: String,
    /// How strong their wall is.
    #[schema(value_type = IsolationLevel)]
    pub isolation: Isolation,
    /// Which wall, if it was chosen by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Memory of all processes together.
    pub memory: String,
    /// Processors.
    pub cpus: f64,
    /// Processes and threads at once.
    pub pids: u32,
    /// Bytes that may be written.
    pub disk: String,
    /// Who commands run as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Their host name.
    pub hostname: String,
    /// How many, and for how long.
    #[schema(value_type = PoolSettings)]
    pub config: PoolConfig,
    /// Whether nothing is kept ready until it is filled or set again.
    pub drained: bool,
    /// What came of it, since the server started.
    pub metrics: Figures,
    /// How many machines are wanted, and why; left out until it was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sizing: Option<Sizing>,
    /// Why the last machine could not be made, while none can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
}

/// How many machines a pool keeps, and for how long.
#[derive(Debug, Serialize, ToSchema)]
pub struct PoolSettings {
    target_ready: u32,
    max_ready: u32,
    min_ready: Option<u32>,
    adaptive: bool,
    idle_timeout: String,
    scale_down_delay: String,
    cooldown_after_acquire: String,
    max_warm_age: String,
    health_check_interval: String,
    on_empty: WhenEmpty,
    create_retries: u32,
    create_retry_delay: String,
    max_total: Option<u32>,
    max_cost_per_hour: Option<f64>,
    max_cost_per_day: Option<f64>,
    secrets: bool,
    lease: Option<String>,
}

/// What came of a pool.
#[derive(Debug, Serialize, ToSchema)]
pub struct Figures {
    /// Machines that wait.
    pub ready: u32,
    /// Machines that are being made.
    pub creating: u32,
    /// Sandboxes that came through it and are not gone.
    pub in_use: u32,
    /// Claims that were served.
    pub total_acquires: u64,
    /// By a machine that waited.
    pub acquires_from_pool: u64,
    /// By one that had to be made.
    pub acquires_cold_start: u64,
    /// Claims that were not served.
    pub acquires_refused: u64,
    /// Of those that were served, how many found a machine.
    pub pool_hit_rate: f64,
    /// How long a claim took, on average.
    pub avg_acquire_latency_ms: f64,
    /// Why machines that waited did not do.
    pub misfits: BTreeMap<String, u64>,
    /// Machines that were made ahead.
    pub created: u64,
    /// Machines that could not be made.
    pub failed_creates: u64,
    /// Machines that were begun because more were wanted.
    pub scale_up_events: u64,
    /// Machines that were given up because fewer were wanted.
    pub scale_down_events: u64,
    /// Machines that were given up because they were dead or did not answer.
    pub health_check_removals: u64,
    /// Machines that were given up because of their age, or of another image.
    pub expired: u64,
    /// What a machine that waits costs in an hour, in dollars.
    pub price_per_hour: f64,
    /// What waiting has cost today (of UTC), in dollars.
    pub spent_today: f64,
}

/// How many machines are wanted, and why.
#[derive(Debug, Serialize, ToSchema)]
pub struct Sizing {
    /// Claims a second, smoothed.
    pub demand_per_second: f64,
    /// Seconds that making a machine takes.
    pub lead_seconds: f64,
    /// Claims that are expected until a claimed machine is replaced.
    pub expected: f64,
    /// What is kept beyond that for bursts.
    pub headroom: f64,
    /// So many are to be ready.
    pub wanted: u32,
    /// What that comes from: target, demand, idle, max, quota, total, server, cost or drained.
    pub bound: &'static str,
}

impl From<PoolStatus> for Pool {
    fn from(status: PoolStatus) -> Self {
        let PoolStatus { record, ready, creating, in_use, counters, wish, last_error, price_per_hour } = status;
        let spec = record.spec;
        let metrics = Figures {
            ready,
            creating,
            in_use,
            total_acquires: counters.acquires(),
            acquires_from_pool: counters.latency(Source::Pool).count,
            acquires_cold_start: counters.latency(Source::ColdStart).count,
            acquires_refused: counters.refused,
            pool_hit_rate: counters.hit_rate(),
            avg_acquire_latency_ms: counters.average_ms(),
            misfits: counters.misfits.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            created: counters.created,
            failed_creates: counters.failed_creates,
            scale_up_events: counters.scale_up_events,
            scale_down_events: counters.scale_down_events,
            health_check_removals: counters.health_check_removals,
            expired: counters.expired,
            price_per_hour,
            spent_today: record.spent.dollars,
        };
        let sizing = wish.map(|wish| Sizing {
            demand_per_second: wish.rate,
            lead_seconds: wish.lead,
            expected: wish.expected,
            headroom: wish.headroom,
            wanted: wish.wanted,
            bound: wish.bound.name(),
        });
        Self {
            id: record.id,
            name: record.name,
            image: record.called,
            isolation: spec.isolation,
            driver: spec.driver,
            memory: spec.limits.memory.to_string(),
            cpus: spec.limits.cpus.into(),
            pids: spec.limits.pids,
            disk: spec.limits.disk.to_string(),
            user: spec.user,
            hostname: spec.hostname,
            config: record.config,
            drained: record.drained,
            metrics,
            sizing,
            last_error,
            created_ms: record.created_ms,
        }
    }
}
