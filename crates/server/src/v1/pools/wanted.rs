//! A pool as it is asked for.

use serde::{Deserialize, Serialize};
use sloplet_engine::life::pool::{OnEmpty, PoolConfig};
use sloplet_policy::{Cpus, Isolation, Limits, Span, Spec};
use utoipa::ToSchema;

use super::super::extract::{optional_unit, unit};
use super::super::sandbox::IsolationLevel;
use crate::error::ApiError;

/// Longest name of an image.
const IMAGE_LENGTH: usize = 512;

/// A pool to be made, or changed. Everything may be left out, and then is as usual, whatever it was before.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SetPool {
    /// What its machines start from: `host`, a stored image, a snapshot or a template.
    #[schema(example = "host", max_length = 512)]
    pub image: Option<String>,
    /// How strong their wall is.
    #[schema(value_type = Option<IsolationLevel>)]
    pub isolation: Option<Isolation>,
    /// Which wall, by its driver's name, where several are as strong.
    #[schema(pattern = "^[a-z][a-z0-9:-]{0,31}$")]
    pub driver: Option<String>,
    /// Memory of all processes together; a claim may ask for another.
    #[schema(example = "512MiB", pattern = "^[0-9]{1,6}[KMGT]iB$")]
    pub memory: Option<String>,
    /// Processors; a claim may ask for others.
    #[schema(minimum = 0.01, maximum = 1024, example = 1.0)]
    pub cpus: Option<f64>,
    /// Processes and threads at once; a claim may ask for another number.
    #[schema(minimum = 4, maximum = 4_194_304)]
    pub pids: Option<u32>,
    /// Bytes that may be written.
    #[schema(example = "1GiB", pattern = "^[0-9]{1,6}[KMGT]iB$")]
    pub disk: Option<String>,
    /// Files that may be made.
    #[schema(minimum = 64, maximum = 4_294_967_296i64)]
    pub inodes: Option<u64>,
    /// Who commands run as: name, uid or uid:gid.
    #[schema(example = "user")]
    pub user: Option<String>,
    /// Their host name.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9-]{0,62}$")]
    pub hostname: Option<String>,
    /// Start even if this host cannot enforce every limit.
    pub best_effort: bool,
    /// So many are kept ready, whatever the demand; none if left out.
    #[schema(minimum = 0, maximum = 10_000, example = 1)]
    pub target_ready: Option<u32>,
    /// Never more than these; the greater of 10 and `target_ready` if left out.
    #[schema(minimum = 0, maximum = 10_000, example = 2)]
    pub max_ready: Option<u32>,
    /// So many are left when it is idle; `target_ready` if left out.
    #[schema(minimum = 0, maximum = 10_000)]
    pub min_ready: Option<u32>,
    /// Whether demand raises what is kept, between the target and the most; it does if left out.
    pub adaptive: Option<bool>,
    /// Without claims for so long, it is idle; 1m if left out.
    #[schema(example = "60s", pattern = "^[1-9][0-9]{0,4}(ms|s|m|h)$")]
    pub idle_timeout: Option<String>,
    /// Between two machines that are given up while it shrinks; 1m if left out.
    #[schema(example = "60s", pattern = "^[1-9][0-9]{0,4}(ms|s|m|h)$")]
    pub scale_down_delay: Option<String>,
    /// For so long after a claim it does not shrink, and a burst is remembered; 2m if left out.
    #[schema(example = "2m", pattern = "^[1-9][0-9]{0,4}(ms|s|m|h)$")]
    pub cooldown_after_acquire: Option<String>,
    /// One that has waited for so long is replaced; 30m if left out.
    #[schema(example = "30m", pattern = "^[1-9][0-9]{0,4}(s|m|h)$")]
    pub max_warm_age: Option<String>,
    /// How often those that wait are asked whether they are well; 1m if left out.
    #[schema(example = "60s", pattern = "^[1-9][0-9]{0,4}(s|m|h)$")]
    pub health_check_interval: Option<String>,
    /// What happens to a claim when none is ready.
    #[schema(value_type = WhenEmpty)]
    pub on_empty: OnEmpty,
    /// After so many failures in a row it tries only once a minute; 3 if left out.
    #[schema(minimum = 0, maximum = 1000)]
    pub create_retries: Option<u32>,
    /// Between two attempts; 5s if left out.
    #[schema(example = "5s", pattern = "^[1-9][0-9]{0,4}(ms|s|m|h)$")]
    pub create_retry_delay: Option<String>,
    /// Machines of all the key's pools together, those in use included.
    #[schema(minimum = 0, maximum = 1_000_000)]
    pub max_total: Option<u32>,
    /// What those that wait may cost in an hour, in dollars. Takes prices: see `docs/pools.md`.
    #[schema(minimum = 0.0, maximum = 1e9)]
    pub max_cost_per_hour: Option<f64>,
    /// What waiting may cost in a day (of UTC), in dollars.
    #[schema(minimum = 0.0, maximum = 1e9)]
    pub max_cost_per_day: Option<f64>,
    /// Whether its machines can be given secrets or a budget for LLM calls.
    pub secrets: bool,
    /// It is removed when the key has neither set, looked at, filled nor claimed from it for so long.
    #[schema(example = "10m", pattern = "^[1-9][0-9]{0,4}(s|m|h)$")]
    pub lease: Option<String>,
}

/// What happens to a claim when no machine is ready.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WhenEmpty {
    /// A sandbox is made.
    Create,
    /// It is refused.
    Fail,
}

impl SetPool {
    pub fn config(&self) -> Result<PoolConfig, ApiError> {
        let usual = PoolConfig::default();
        let span = |name, text: &Option<String>, usual: Span| -> Result<Span, ApiError> {
            Ok(optional_unit(name, text.as_ref())?.unwrap_or(usual))
        };
        let target_ready = self.target_ready.unwrap_or(usual.target_ready);
        Ok(PoolConfig {
            target_ready,
            max_ready: self.max_ready.unwrap_or(usual.max_ready.max(target_ready)),
            min_ready: self.min_ready,
            adaptive: self.adaptive.unwrap_or(usual.adaptive),
            idle_timeout: span("idle_timeout", &self.idle_timeout, usual.idle_timeout)?,
            scale_down_delay: span("scale_down_delay", &self.scale_down_delay, usual.scale_down_delay)?,
            cooldown_after_acquire: span(
                "cooldown_after_acquire",
                &self.cooldown_after_acquire,
                usual.cooldown_after_acquire,
            )?,
            max_warm_age: span("max_warm_age", &self.max_warm_age, usual.max_warm_age)?,
            health_check_interval: span(
                "health_check_interval",
                &self.health_check_interval,
                usual.health_check_interval,
            )?,
            on_empty: self.on_empty,
            create_retries: self.create_retries.unwrap_or(usual.create_retries),
            create_retry_delay: span("create_retry_delay", &self.create_retry_delay, usual.create_retry_delay)?,
            max_total: self.max_total,
            max_cost_per_hour: self.max_cost_per_hour,
            max_cost_per_day: self.max_cost_per_day,
            secrets: self.secrets,
            lease: optional_unit("lease", self.lease.as_ref())?,
        })
    }

    pub fn spec(&self) -> Result<Spec, ApiError> {
        if self.image.as_ref().is_some_and(|image| image.is_empty() || image.len() > IMAGE_LENGTH) {
            return Err(ApiError::bad_request(format!("image: its name has 1 to {IMAGE_LENGTH} bytes")));
        }
        let usual = Limits::default();
        let limits = Limits {
            memory: optional_unit("memory", self.memory.as_ref())?.unwrap_or(usual.memory),
            cpus: self.cpus.map(|cpus| unit::<Cpus>("cpus", &cpus.to_string())).transpose()?.unwrap_or(usual.cpus),
            pids: self.pids.unwrap_or(usual.pids),
            disk: optional_unit("disk", self.disk.as_ref())?.unwrap_or(usual.disk),
            inodes: self.inodes,
            ..usual
        };
        let usual = Spec::default();
        Ok(Spec {
            image: self.image.clone().unwrap_or(usual.image.clone()),
            isolation: self.isolation.unwrap_or_default(),
            driver: self.driver.clone(),
            limits,
            user: self.user.clone(),
            hostname: self.hostname.clone().unwrap_or(usual.hostname.clone()),
            best_effort: self.best_effort,
            ..usual
        })
    }
}
