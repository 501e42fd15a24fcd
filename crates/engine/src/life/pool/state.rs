//! One pool: what is in it, and how others see it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::super::clock::now_ms;
use super::super::record::Record;
use super::super::sandboxes::Sandboxes;
use super::config::PoolRecord;
use super::metrics::Counters;
use super::sizing::{Demand, Wish};
use super::warm::Warm;

/// One pool.
pub(in crate::life) struct Pool {
    pub(super) id: String,
    pub(super) owner: String,
    pub(super) inside: Mutex<Inside>,
}

pub(super) struct Inside {
    pub(super) record: PoolRecord,
    /// The oldest first.
    pub(super) ready: VecDeque<Warm>,
    pub(super) creating: u32,
    pub(super) demand: Demand,
    pub(super) counters: Counters,
    pub(super) wish: Option<Wish>,
    pub(super) shrunk: Option<Instant>,
    pub(super) checked: Instant,
    /// When its owner last had to do with it.
    pub(super) touched: Instant,
    /// In a row.
    pub(super) failures: u32,
    pub(super) not_before: Option<Instant>,
    pub(super) last_error: Option<String>,
    /// Dollars for a machine that waits for an hour.
    pub(super) price: f64,
    /// When that was read.
    pub(super) priced: Option<Instant>,
    /// Until when waiting was paid for, and when that was last written down.
    pub(super) paid_ms: u64,
    pub(super) noted_ms: u64,
    /// It was removed: what is being made for it is not wanted any more.
    pub(super) gone: bool,
}

/// A pool as others see it.
#[derive(Debug, Clone)]
pub struct PoolStatus {
    /// What it was asked to be.
    pub record: PoolRecord,
    /// Machines that wait.
    pub ready: u32,
    /// Machines that are being made.
    pub creating: u32,
    /// Sandboxes that came through it and are not gone.
    pub in_use: u32,
    /// What was counted.
    pub counters: Counters,
    /// How many are wanted, and why; absent until its keeper has looked.
    pub wish: Option<Wish>,
    /// Why the last machine could not be made, while none can.
    pub last_error: Option<String>,
    /// Dollars for a machine that waits for an hour.
    pub price_per_hour: f64,
}

impl Pool {
    pub(super) fn new(record: PoolRecord) -> Self {
        let now = now_ms();
        let inside = Inside {
            ready: VecDeque::new(),
            creating: 0,
            demand: Demand::since(now),
            counters: Counters::default(),
            wish: None,
            shrunk: None,
            checked: Instant::now(),
            touched: Instant::now(),
            failures: 0,
            not_before: None,
            last_error: None,
            price: 0.0,
            priced: None,
            paid_ms: now,
            noted_ms: now,
            gone: false,
            record,
        };
        Self { id: inside.record.id.clone(), owner: inside.record.owner.clone(), inside: Mutex::new(inside) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn with_record<T>(&self, look: impl FnOnce(&PoolRecord) -> T) -> T {
        look(&self.lock().record)
    }
}

impl Inside {
    /// Machines that wait or are being made.
    pub(super) fn size(&self) -> u32 {
        (self.ready.len() as u32).saturating_add(self.creating)
    }
}

impl Sandboxes {
    /// Sandboxes of an owner that came through pools that there are.
    pub(super) fn in_use_of(&self, owner: &str) -> u32 {
        let pools: Vec<String> = self.0.pools.of(owner).iter().map(|pool| pool.id.clone()).collect();
        let counts = |record: &Record| record.claimed_from.as_ref().is_some_and(|from| pools.contains(from));
        self.slots().values().filter(|slot| slot.with_record(counts)).count() as u32
    }

    pub(super) fn status_of(&self, pool: &Pool) -> PoolStatus {
        let counts = |record: &Record| record.claimed_from.as_ref() == Some(&pool.id);
        let in_use = self.slots().values().filter(|slot| slot.with_record(counts)).count();
        let inside = pool.lock();
        PoolStatus {
            record: inside.record.clone(),
            ready: inside.ready.len() as u32,
            creating: inside.creating,
            in_use: in_use as u32,
            counters: inside.counters.clone(),
            wish: inside.wish,
            last_error: inside.last_error.clone(),
            price_per_hour: inside.price,
        }
    }
}
