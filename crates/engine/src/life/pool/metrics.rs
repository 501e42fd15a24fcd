//! What a pool did, and why it is as large as it is.

use std::collections::BTreeMap;
use std::time::Duration;

use super::claim::Misfit;

/// Upper bounds of the times that claims took, in milliseconds.
pub const BUCKETS: [f64; 11] = [0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 500.0, 1000.0, 10_000.0];

/// Where a claim was served from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A machine that waited.
    Pool,
    /// A machine that had to be made.
    ColdStart,
}

impl Source {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Pool, Self::ColdStart];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::ColdStart => "cold_start",
        }
    }
}

/// How long claims took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Latency {
    /// Claims within each of [`BUCKETS`].
    pub within: [u64; BUCKETS.len()],
    /// All.
    pub count: u64,
    /// All together, in milliseconds.
    pub sum_ms: f64,
}

impl Latency {
    fn add(&mut self, took: Duration) {
        let ms = took.as_secs_f64() * 1e3;
        self.within.iter_mut().zip(BUCKETS).filter(|(_, bound)| ms <= *bound).for_each(|(count, _)| *count += 1);
        self.count += 1;
        self.sum_ms += ms;
    }
}

/// What was counted since the server started.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counters {
    /// Claims that were served by a machine that waited.
    pub from_pool: Latency,
    /// Claims for which one had to be made.
    pub cold_start: Latency,
    /// Claims that were refused because none was ready, or too many were there.
    pub refused: u64,
    /// Why machines that waited did not do.
    pub misfits: BTreeMap<&'static str, u64>,
    /// Machines that were made ahead.
    pub created: u64,
    /// Machines that could not be made.
    pub failed_creates: u64,
    /// Begun to be made because more were wanted.
    pub scale_up_events: u64,
    /// Given up because fewer were wanted.
    pub scale_down_events: u64,
    /// Given up because they were dead or did not answer.
    pub health_check_removals: u64,
    /// Given up because of their age, or because their image is another one now.
    pub expired: u64,
}

impl Counters {
    /// A claim was served.
    pub(super) fn served(&mut self, source: Source, took: Duration) {
        match source {
            Source::Pool => self.from_pool.add(took),
            Source::ColdStart => self.cold_start.add(took),
        }
    }

    pub(super) fn misfit(&mut self, misfit: Misfit) {
        *self.misfits.entry(misfit.name()).or_default() += 1;
    }

    /// How long claims from a source took.
    pub fn latency(&self, source: Source) -> &Latency {
        match source {
            Source::Pool => &self.from_pool,
            Source::ColdStart => &self.cold_start,
        }
    }

    /// Claims that were served.
    pub fn acquires(&self) -> u64 {
        self.from_pool.count + self.cold_start.count
    }

    /// Of the claims that were served, how many found a machine.
    pub fn hit_rate(&self) -> f64 {
        if self.acquires() == 0 { 0.0 } else { self.from_pool.count as f64 / self.acquires() as f64 }
    }

    /// How long a claim took, on average.
    pub fn average_ms(&self) -> f64 {
        let sum = self.from_pool.sum_ms + self.cold_start.sum_ms;
        if self.acquires() == 0 { 0.0 } else { sum / self.acquires() as f64 }
    }
}
