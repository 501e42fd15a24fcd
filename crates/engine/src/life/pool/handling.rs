//! What owners do with their pools.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::clock::now_ms;
use super::super::error::LifeError;
use super::super::sandboxes::{Quota, Sandboxes};
use super::config::{NewPool, PoolRecord, Spent};
use super::state::{Pool, PoolStatus};
use crate::engine::new_id;
use crate::failpoint::{Point, reach};

/// Most pools of one owner.
const MOST_POOLS: usize = 256;

/// Between two looks at a pool that somebody waits for.
const LOOK: Duration = Duration::from_millis(5);

impl Sandboxes {
    /// Makes a pool, or changes the one of that name. Machines of an earlier description are replaced.
    pub fn set_pool(&self, owner: &str, wanted: NewPool, quota: &Quota) -> Result<PoolStatus, LifeError> {
        wanted.config.check()?;
        let mut spec = wanted.spec;
        spec.check().map_err(|error| LifeError::Invalid(error.to_string()))?;
        if spec.driver.is_some() {
            spec.isolation = self.0.engine.isolation_of(&spec)?;
        }
        self.0.engine.driver_name(&spec)?;
        if wanted.config.has_ceiling() && self.price_of(&spec)? <= 0.0 {
            let message = "a ceiling on costs needs prices: say what a processor and a GiB cost under [compute] in \
                           prices.toml of the data folder (see docs/pools.md)";
            return Err(LifeError::Invalid(message.into()));
        }
        let pools = &self.0.pools;
        let (status, old) = match pools.named(owner, &wanted.name) {
            Ok(pool) => {
                let mut inside = pool.lock();
                let mut record = inside.record.clone();
                record.quota = *quota;
                (record.template, record.called, record.drained) = (wanted.template, wanted.called, false);
                let remade = record.spec != spec || record.config.secrets != wanted.config.secrets;
                (record.spec, record.config) = (spec, wanted.config);
                pools.records.put(&record)?;
                inside.record = record;
                (inside.failures, inside.not_before, inside.last_error) = (0, None, None);
                (inside.wish, inside.priced) = (None, None);
                inside.demand.wake(now_ms());
                let old = if remade { std::mem::take(&mut inside.ready) } else { VecDeque::new() };
                drop(inside);
                (self.status_of(&pool), old)
            }
            Err(_) => {
                if pools.of(owner).len() >= MOST_POOLS {
                    return Err(LifeError::Quota(format!("a key may have {MOST_POOLS} pools, and has them")));
                }
                let record = PoolRecord {
                    id: new_id(),
                    owner: owner.to_owned(),
                    name: wanted.name,
                    spec,
                    template: wanted.template,
                    called: wanted.called,
                    config: wanted.config,
                    quota: *quota,
                    drained: false,
                    created_ms: now_ms(),
                    spent: Spent::default(),
                };
                pools.records.insert(&record)?;
                reach(Point::AfterPoolRecord);
                let pool = Arc::new(Pool::new(record));
                pools.lock().insert(pool.id.clone(), pool.clone());
                (self.status_of(&pool), VecDeque::new())
            }
        };
        old.into_iter().for_each(|warm| drop(self.discard(warm)));
        pools.changed.notify_one();
        Ok(status)
    }

    /// A template of an owner's has this image from now on: pools of it make such machines.
    pub fn follow_template(&self, owner: &str, template: &str, image: &str) -> Result<(), LifeError> {
        for pool in self.0.pools.of(owner) {
            let follows =
                |record: &PoolRecord| record.template.as_deref() == Some(template) && record.spec.image != image;
            if pool.with_record(follows) {
                self.change(&pool, |record| record.spec.image = image.to_owned())?;
                self.0.pools.changed.notify_one();
            }
        }
        Ok(())
    }

    /// An owner's pools, by name.
    pub fn pools(&self, owner: &str) -> Vec<PoolStatus> {
        self.0.pools.of(owner).iter().map(|pool| self.status_of(pool)).collect()
    }

    /// Everybody's.
    pub fn all_pools(&self) -> Vec<PoolStatus> {
        self.0.pools.every().iter().map(|pool| self.status_of(pool)).collect()
    }

    /// An owner's pool, by name or id.
    pub fn pool(&self, owner: &str, name: &str) -> Result<PoolStatus, LifeError> {
        self.0.pools.named(owner, name).map(|pool| self.status_of(&pool))
    }

    /// What a pool is to be.
    pub fn pool_record(&self, owner: &str, name: &str) -> Result<PoolRecord, LifeError> {
        self.0.pools.named(owner, name).map(|pool| pool.with_record(Clone::clone))
    }

    /// Forgets a pool and destroys its machines; sandboxes that came through it stay.
    pub async fn remove_pool(&self, owner: &str, name: &str) -> Result<(), LifeError> {
        let pool = self.0.pools.named(owner, name)?;
        self.0.pools.records.remove(&pool.id)?;
        reach(Point::AfterPoolForgotten);
        self.0.pools.lock().remove(&pool.id);
        self.empty(&pool, true).await;
        Ok(())
    }

    /// Destroys a pool's machines, and keeps none ready until it is filled or set again.
    pub async fn drain_pool(&self, owner: &str, name: &str) -> Result<PoolStatus, LifeError> {
        let pool = self.0.pools.named(owner, name)?;
        self.change(&pool, |record| record.drained = true)?;
        self.empty(&pool, false).await;
        Ok(self.status_of(&pool))
    }

    /// Fills a pool and waits until it has its target, or all that something allows. `Conflict` if that takes too long.
    pub async fn fill_pool(&self, owner: &str, name: &str, within: Duration) -> Result<PoolStatus, LifeError> {
        let pool = self.0.pools.named(owner, name)?;
        self.change(&pool, |record| record.drained = false)?;
        let now = now_ms();
        {
            let mut inside = pool.lock();
            // Whoever fills it is going to use it.
            inside.demand.wake(now);
            (inside.wish, inside.not_before, inside.failures) = (None, None, 0);
        }
        self.0.pools.changed.notify_one();
        let deadline = Instant::now().checked_add(within);
        loop {
            let status = self.status_of(&pool);
            if pool.lock().gone {
                return Err(LifeError::NotFound { kind: "pool", id: name.to_owned() });
            }
            if status.wish.is_some_and(|wish| status.ready >= wish.wanted.min(status.record.config.target_ready)) {
                return Ok(status);
            }
            let given_up = {
                let inside = pool.lock();
                inside.failures > inside.record.config.create_retries
            };
            if given_up || deadline.is_some_and(|deadline| Instant::now() > deadline) {
                let (ready, target) = (status.ready, status.record.config.target_ready);
                let why = status.last_error.map(|error| format!("; the last attempt: {error}")).unwrap_or_default();
                let message = format!("pool '{name}' could not be filled: {ready} of {target} are ready{why}");
                return Err(LifeError::Conflict(message));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn change(&self, pool: &Pool, change: impl FnOnce(&mut PoolRecord)) -> Result<(), LifeError> {
        let mut inside = pool.lock();
        let mut record = inside.record.clone();
        change(&mut record);
        self.0.pools.records.put(&record)?;
        inside.record = record;
        Ok(())
    }

    /// Destroys what waits in a pool, and waits for what is being made.
    async fn empty(&self, pool: &Pool, gone: bool) {
        loop {
            let (ready, creating) = {
                let mut inside = pool.lock();
                inside.gone |= gone;
                (std::mem::take(&mut inside.ready), inside.creating)
            };
            let none = ready.is_empty();
            futures_util::future::join_all(ready.into_iter().map(|warm| self.discard(warm))).await;
            if none && creating == 0 {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Destroys what waits in all pools, which are filled again by the next server.
    pub(in crate::life) async fn empty_pools(&self) {
        for pool in self.0.pools.every() {
            self.empty(&pool, true).await;
        }
    }
}
