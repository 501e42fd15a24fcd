//! All pools of a server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sloplet_store::{Collection, Store};
use tokio::sync::{Notify, Semaphore};

use super::super::error::LifeError;
use super::config::PoolRecord;
use super::state::Pool;
use super::warm::WarmRecord;

/// All pools of a server.
pub(in crate::life) struct Pools {
    pub(super) records: Collection<PoolRecord>,
    pub(in crate::life) warm: Collection<WarmRecord>,
    pub(super) all: Mutex<HashMap<String, Arc<Pool>>>,
    /// Machines that may wait in all pools together.
    pub(super) most: Option<u32>,
    /// Something happened that the keeper should look at.
    pub(super) changed: Arc<Notify>,
    /// Machines that may be made at once.
    pub(super) turns: Arc<Semaphore>,
    pub(super) claimed: Mutex<Option<Instant>>,
}

impl Pools {
    /// Those that are remembered.
    pub(in crate::life) fn open(store: &Store, most: Option<u32>) -> Result<Self, LifeError> {
        let records: Collection<PoolRecord> = store.collection();
        let all = records.all()?.into_iter().map(|record| (record.id.clone(), Arc::new(Pool::new(record))));
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        Ok(Self {
            all: Mutex::new(all.collect()),
            records,
            warm: store.collection(),
            most,
            changed: Arc::default(),
            turns: Arc::new(Semaphore::new((2 * processors).clamp(2, 10))),
            claimed: Mutex::default(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Pool>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn every(&self) -> Vec<Arc<Pool>> {
        self.lock().values().cloned().collect()
    }

    /// An owner's, by name.
    pub(super) fn of(&self, owner: &str) -> Vec<Arc<Pool>> {
        let all = self.lock();
        if all.is_empty() {
            return Vec::new();
        }
        let mut found: Vec<Arc<Pool>> = all.values().filter(|pool| pool.owner == owner).cloned().collect();
        drop(all);
        found.sort_by_cached_key(|pool| pool.with_record(|record| record.name.clone()));
        found
    }

    /// By name or id.
    pub(super) fn named(&self, owner: &str, name: &str) -> Result<Arc<Pool>, LifeError> {
        let is = |pool: &Arc<Pool>| pool.id == name || pool.with_record(|record| record.name == name);
        let missing = || LifeError::NotFound { kind: "pool", id: name.escape_debug().take(100).collect() };
        let pool = self.of(owner).into_iter().find(is).ok_or_else(missing)?;
        pool.lock().touched = Instant::now();
        Ok(pool)
    }

    /// Machines that wait or are being made for an owner.
    pub(super) fn warm_of(&self, owner: &str) -> u32 {
        self.of(owner).iter().map(|pool| pool.lock().size()).sum()
    }

    /// Machines should not be made while many are claimed.
    pub(super) fn note_claim(&self) {
        *self.claimed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.changed.notify_one();
    }
}
