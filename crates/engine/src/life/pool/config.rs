//! What a pool is asked to be.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sloplet_policy::{Span, Spec};
use sloplet_store::Document;

use super::super::error::LifeError;
use super::super::sandboxes::Quota;

/// Most machines that one pool can keep ready.
pub const MOST_READY: u32 = 10_000;

/// Most machines that an owner's pools can have together.
const MOST_TOTAL: u32 = 1_000_000;

/// Most failures in a row before it tries less often.
const MOST_RETRIES: u32 = 1000;

/// The highest ceiling.
const MOST_DOLLARS: f64 = 1e9;

/// Longest time that can be asked for anywhere in a pool.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// What happens to a claim when no machine is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnEmpty {
    /// A sandbox is made.
    #[default]
    Create,
    /// It is refused.
    Fail,
}

/// How many machines a pool keeps ready, and for how long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// So many are kept, whatever the demand.
    pub target_ready: u32,
    /// Never more than these.
    pub max_ready: u32,
    /// So many are left when nobody has claimed one for `idle_timeout`; `target_ready` if absent.
    pub min_ready: Option<u32>,
    /// Whether demand raises what is kept, between the target and the most.
    pub adaptive: bool,
    /// Without claims for so long, it is idle.
    pub idle_timeout: Span,
    /// Between two machines that are given up while it shrinks.
    pub scale_down_delay: Span,
    /// For so long after a claim it does not shrink; and so long a burst is remembered.
    pub cooldown_after_acquire: Span,
    /// One that has waited for so long is replaced.
    pub max_warm_age: Span,
    /// How often the agents of those that wait are asked whether they are well.
    pub health_check_interval: Span,
    /// What happens to a claim when none is ready.
    pub on_empty: OnEmpty,
    /// After so many failures in a row it tries only once a minute.
    pub create_retries: u32,
    /// Between two attempts.
    pub create_retry_delay: Span,
    /// Machines of all the owner's pools together, those in use included.
    pub max_total: Option<u32>,
    /// What those that wait may cost in an hour, in dollars.
    pub max_cost_per_hour: Option<f64>,
    /// What waiting may cost in a day (of UTC), in dollars.
    pub max_cost_per_day: Option<f64>,
    /// Whether its machines can be given secrets, headers, or a budget for LLM calls: each is then made with an authority of
    /// its own, which programs inside trust from the start.
    pub secrets: bool,
    /// It is removed when its owner has neither set, looked at, filled nor claimed from it for so long: for programs that may be
    /// killed before they remove it.
    pub lease: Option<Span>,
}

impl Default for PoolConfig {
    fn default() -> Self {
        let seconds = |count| Span(Duration::from_secs(count));
        Self {
            target_ready: 0,
            max_ready: 10,
            min_ready: None,
            adaptive: true,
            idle_timeout: seconds(60),
            scale_down_delay: seconds(60),
            cooldown_after_acquire: seconds(120),
            max_warm_age: seconds(1800),
            health_check_interval: seconds(60),
            on_empty: OnEmpty::Create,
            create_retries: 3,
            create_retry_delay: seconds(5),
            max_total: None,
            max_cost_per_hour: None,
            max_cost_per_day: None,
            secrets: false,
            lease: None,
        }
    }
}

impl PoolConfig {
    /// What is left of it when it is idle.
    pub fn least(&self) -> u32 {
        self.min_ready.unwrap_or(self.target_ready)
    }

    /// Whether it has a ceiling on what waiting costs.
    pub fn has_ceiling(&self) -> bool {
        self.max_cost_per_hour.is_some() || self.max_cost_per_day.is_some()
    }

    /// Refuses what makes no sense.
    pub fn check(&self) -> Result<(), LifeError> {
        let invalid = |message: String| Err(LifeError::Invalid(message));
        if self.max_ready > MOST_READY {
            return invalid(format!("max_ready can be {MOST_READY} at most, not {}", self.max_ready));
        }
        if self.max_total.is_some_and(|total| total > MOST_TOTAL) {
            return invalid(format!("max_total can be {MOST_TOTAL} at most"));
        }
        if self.create_retries > MOST_RETRIES {
            return invalid(format!("create_retries can be {MOST_RETRIES} at most, not {}", self.create_retries));
        }
        if self.target_ready > self.max_ready {
            let (target, most) = (self.target_ready, self.max_ready);
            return invalid(format!("target_ready is 0 to max_ready ({most}), not {target}"));
        }
        if self.least() > self.target_ready {
            let (least, target) = (self.least(), self.target_ready);
            return invalid(format!("min_ready is 0 to target_ready ({target}), not {least}"));
        }
        for (name, span) in [
            ("idle_timeout", self.idle_timeout),
            ("scale_down_delay", self.scale_down_delay),
            ("cooldown_after_acquire", self.cooldown_after_acquire),
            ("max_warm_age", self.max_warm_age),
            ("health_check_interval", self.health_check_interval),
            ("create_retry_delay", self.create_retry_delay),
            ("lease", self.lease.unwrap_or(self.create_retry_delay)),
        ] {
            if span.0 > LONGEST {
                return invalid(format!("{name} can be 366d at most, not {span}"));
            }
        }
        for (name, ceiling) in
            [("max_cost_per_hour", self.max_cost_per_hour), ("max_cost_per_day", self.max_cost_per_day)]
        {
            if ceiling.is_some_and(|dollars| !(0.0..=MOST_DOLLARS).contains(&dollars)) {
                return invalid(format!("{name} is a number of dollars, 0 to {MOST_DOLLARS}"));
            }
        }
        Ok(())
    }
}

/// A pool as it is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct NewPool {
    /// Its owner's name for it.
    pub name: String,
    /// What its machines are; what a claim brings along is not part of it.
    pub spec: Spec,
    /// The template that the image is of.
    pub template: Option<String>,
    /// What the owner called the image.
    pub called: String,
    /// How many.
    pub config: PoolConfig,
}

/// A pool as it is remembered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolRecord {
    /// Letters and digits.
    pub id: String,
    /// Whose it is: nobody else can claim from it.
    pub owner: String,
    /// Their name for it.
    pub name: String,
    /// What its machines are.
    pub spec: Spec,
    /// The template that the image is of: it follows that one's builds.
    pub template: Option<String>,
    /// What the owner called the image.
    pub called: String,
    /// How many.
    pub config: PoolConfig,
    /// What the key may have that asked for it.
    pub quota: Quota,
    /// Whether nothing is kept ready until somebody says so.
    pub drained: bool,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// What waiting has cost on a day.
    pub spent: Spent,
}

/// What waiting has cost on a day.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Spent {
    /// Days since 1970.
    pub day: u64,
    /// On that day, so far.
    pub dollars: f64,
}

impl Document for PoolRecord {
    const KIND: &'static str = "pool";

    fn id(&self) -> &str {
        &self.id
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    fn name(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn created_ms(&self) -> u64 {
        self.created_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused() {
        PoolConfig::default().check().unwrap();
        let broken: [fn(&mut PoolConfig); 9] = [
            |config| config.max_total = Some(MOST_TOTAL + 1),
            |config| config.create_retries = MOST_RETRIES + 1,
            |config| config.target_ready = 11,
            |config| config.max_ready = MOST_READY + 1,
            |config| config.min_ready = Some(1),
            |config| config.max_cost_per_hour = Some(-1.0),
            |config| config.max_cost_per_day = Some(f64::NAN),
            |config| config.max_warm_age = Span(Duration::from_secs(1 << 40)),
            |config| config.idle_timeout = Span(Duration::MAX),
        ];
        for (case, breaks) in broken.iter().enumerate() {
            let mut config = PoolConfig::default();
            breaks(&mut config);
            assert!(matches!(config.check(), Err(LifeError::Invalid(_))), "case {case}");
        }
    }
}
