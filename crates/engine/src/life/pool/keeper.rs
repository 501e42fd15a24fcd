//! Keeps pools as large as they should be.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use sloplet_policy::Spec;
use tokio::sync::Notify;

use super::super::clock::now_ms;
use super::super::error::LifeError;
use super::super::sandboxes::{Inner, Sandboxes};
use super::Pool;
use super::config::{PoolRecord, Spent};
use super::sizing::{Bound, Wish};
use super::state::Inside;
use super::warm::{Warm, answers};

/// Longest time between two looks, while there are pools.
const TICK: Duration = Duration::from_secs(1);

/// Without a claim for so long, nobody is in a hurry: then machines are made.
const LULL: Duration = Duration::from_millis(20);

/// However many are claimed, they are made after so long.
const PATIENCE: Duration = Duration::from_millis(200);

/// Between attempts after too many failures.
const LATER: Duration = Duration::from_secs(60);

/// How often it is written down what waiting has cost.
const NOTE_EVERY_MS: u64 = 30_000;

/// How often prices are read.
const PRICES_EVERY: Duration = Duration::from_secs(10);

const HOUR_MS: f64 = 3_600_000.0;
const DAY_MS: u64 = 86_400_000;
const GIB: f64 = 1_073_741_824.0;

/// Runs as long as the registry exists.
pub(in crate::life) async fn run(registry: Weak<Inner>) {
    loop {
        let (wait, changed) = {
            let Some(inner) = registry.upgrade() else { return };
            let this = Sandboxes(inner);
            this.wait_for_lull().await;
            (this.tend_all(), this.0.pools.changed.clone())
        };
        match wait {
            Some(wait) => {
                let _ = tokio::time::timeout(wait, changed.notified()).await;
            }
            None => changed.notified().await,
        }
    }
}

/// What everybody has, at one moment.
#[derive(Default)]
struct Census {
    /// By owner: sandboxes, bytes of their memory, and those that came through a pool that there is.
    sandboxes: HashMap<String, (u64, u64, u32)>,
    /// By pool: its owner, machines that wait or are being made, and the memory of one.
    warm: HashMap<String, (String, u32, u64)>,
}

impl Census {
    /// What forbids a pool to be larger.
    fn caps(&self, record: &PoolRecord, price: f64, server: Option<u32>) -> Vec<(u32, Bound)> {
        let config = &record.config;
        let (active, memory, through_pools) = self.sandboxes.get(&record.owner).copied().unwrap_or_default();
        let others = || self.warm.iter().filter(|(id, _)| **id != record.id).map(|(_, other)| other);
        let of_owner = || others().filter(|(owner, ..)| *owner == record.owner);
        let warm: u32 = of_owner().map(|(_, count, _)| count).sum();
        let warm_memory: u64 = of_owner().map(|(_, count, each)| u64::from(*count).saturating_mul(*each)).sum();
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let mut caps = Vec::new();
        if record.drained {
            caps.push((0, Bound::Drained));
        }
        if let Some(most) = record.quota.sandboxes {
            caps.push((small(most.saturating_sub(active + u64::from(warm))), Bound::Quota));
        }
        if let Some(most) = record.quota.memory {
            let left = most.saturating_sub(memory.saturating_add(warm_memory));
            caps.push((small(left / record.spec.limits.memory.0.max(1)), Bound::Quota));
        }
        if let Some(most) = config.max_total {
            caps.push((most.saturating_sub(through_pools).saturating_sub(warm), Bound::Total));
        }
        if let Some(most) = server {
            let all: u32 = others().map(|(_, count, _)| count).sum();
            caps.push((most.saturating_sub(all), Bound::Server));
        }
        if let Some(ceiling) = config.max_cost_per_hour.filter(|_| price > 0.0) {
            caps.push(((ceiling / price + 1e-9) as u32, Bound::Cost));
        }
        if config.max_cost_per_day.is_some_and(|ceiling| record.spent.dollars >= ceiling) {
            caps.push((0, Bound::Cost));
        }
        caps
    }
}

impl Sandboxes {
    /// Machines are made beside claims only if those do not end: each would make the other slower.
    async fn wait_for_lull(&self) {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let claimed = *self.0.pools.claimed.lock().unwrap_or_else(PoisonError::into_inner);
            let left = claimed.and_then(|claimed| LULL.checked_sub(claimed.elapsed()));
            match left.filter(|left| !left.is_zero()) {
                Some(left) => tokio::time::sleep(left).await,
                None => return,
            }
        }
    }

    /// Looks at every pool, and says when to look again; never, if there is none.
    fn tend_all(&self) -> Option<Duration> {
        let pools = self.0.pools.every();
        if pools.is_empty() {
            return None;
        }
        let mut census = self.take_census(&pools);
        let mut wait = TICK;
        for pool in pools {
            self.tend(&pool, &mut census);
            let shortest = pool.with_record(|record| {
                let config = &record.config;
                let lease = config.lease.unwrap_or(config.max_warm_age);
                [config.idle_timeout, config.scale_down_delay, config.max_warm_age, config.health_check_interval, lease]
                    .map(|span| span.0)
                    .into_iter()
                    .min()
            });
            wait = wait.min(shortest.unwrap_or(TICK) / 2).max(Duration::from_millis(20));
        }
        Some(wait)
    }

    fn take_census(&self, pools: &[Arc<Pool>]) -> Census {
        let mut census = Census::default();
        for pool in pools {
            let inside = pool.lock();
            let each = inside.record.spec.limits.memory.0;
            census.warm.insert(pool.id.clone(), (pool.owner.clone(), inside.size(), each));
        }
        for slot in self.slots().values() {
            slot.with_record(|record| {
                let (count, memory, pooled) = census.sandboxes.entry(record.owner.clone()).or_default();
                *count += 1;
                *memory = memory.saturating_add(record.request.spec.limits.memory.0);
                let through = record.claimed_from.as_ref().is_some_and(|from| census.warm.contains_key(from));
                *pooled += u32::from(through);
            });
        }
        census
    }

    fn tend(&self, pool: &Arc<Pool>, census: &mut Census) {
        let (now, moment) = (now_ms(), Instant::now());
        let spec = pool.with_record(|record| record.spec.clone());
        let price = self.recent_price(pool, &spec, moment);
        let digest = match self.0.engine.has_own_images(&spec) {
            Ok(false) => self.0.engine.resolve(&spec.image).ok().map(|image| image.digest),
            _ => None,
        };
        let mut inside = pool.lock();
        if inside.gone {
            return;
        }
        if inside.record.config.lease.is_some_and(|lease| inside.touched.elapsed() > lease.0) {
            let (this, owner, id) = (self.clone(), pool.owner.clone(), pool.id.clone());
            inside.touched = moment;
            tracing::info!(pool = inside.record.name, "nobody has asked for a pool for long: removed");
            tokio::spawn(async move { this.remove_pool(&owner, &id).await });
            return;
        }
        self.pay(&mut inside, now);
        inside.demand.pass(now);
        let caps = census.caps(&inside.record, price, self.0.pools.most);
        let wish = Wish::of(&inside.record.config, &inside.demand, now, &caps);
        inside.wish = Some(wish);
        let mut given_up = inside.take_unfit(now, digest.as_deref());
        given_up.extend(inside.shrink(&wish, now, moment));
        let missing = match inside.not_before.is_some_and(|when| when > moment) {
            true => 0,
            false => wish.wanted.saturating_sub(inside.size()),
        };
        inside.creating += missing;
        inside.counters.scale_up_events += u64::from(missing);
        let due = inside.checked.elapsed() >= inside.record.config.health_check_interval.0;
        if due {
            inside.checked = moment;
        }
        if let Some((_, size, _)) = census.warm.get_mut(&pool.id) {
            *size = inside.size();
        }
        drop(inside);
        given_up.into_iter().for_each(|warm| drop(self.discard(warm)));
        for _ in 0..missing {
            let (this, pool) = (self.clone(), pool.clone());
            tokio::spawn(async move { this.add(&pool).await });
        }
        if due {
            let (this, pool) = (self.clone(), pool.clone());
            tokio::spawn(async move { this.check_health(&pool).await });
        }
    }

    /// Makes a machine for a pool.
    async fn add(&self, pool: &Pool) {
        let _turn = self.0.pools.turns.acquire().await;
        let record = pool.with_record(Clone::clone);
        let wanted = !pool.lock().gone && !record.drained;
        let began = Instant::now();
        let made = match wanted {
            true => self.make_warm(&record).await.map(Some),
            false => Ok(None),
        };
        let unwanted = pool.lock().added(made, &record, began.elapsed(), &self.0.pools.changed);
        if let Some(unwanted) = unwanted {
            self.end_warm(unwanted).await;
            pool.lock().finish_one();
        }
        self.0.pools.changed.notify_one();
    }

    /// Asks the agents of those that wait whether they are well.
    async fn check_health(&self, pool: &Pool) {
        let agents: Vec<(String, sloplet_client::Agent)> = {
            let inside = pool.lock();
            inside.ready.iter().map(|warm| (warm.sandbox.id().to_owned(), warm.sandbox.agent().clone())).collect()
        };
        for (id, agent) in agents {
            if answers(&agent).await {
                continue;
            }
            let mut inside = pool.lock();
            // It may have been claimed meanwhile: whoever did has asked it, too.
            let Some(index) = inside.ready.iter().position(|warm| warm.sandbox.id() == id) else { continue };
            let ill = inside.ready.remove(index);
            inside.counters.health_check_removals += 1;
            drop(inside);
            ill.into_iter().for_each(|warm| drop(self.discard(warm)));
            self.0.pools.changed.notify_one();
        }
    }

    /// Counts what waiting has cost since the last time.
    fn pay(&self, inside: &mut Inside, now: u64) {
        let hours = now.saturating_sub(inside.paid_ms) as f64 / HOUR_MS;
        inside.paid_ms = now;
        let more = inside.price * hours * inside.ready.len() as f64;
        let spent = &mut inside.record.spent;
        if spent.day != now / DAY_MS {
            *spent = Spent { day: now / DAY_MS, dollars: 0.0 };
        }
        spent.dollars += more;
        if more > 0.0 && now.saturating_sub(inside.noted_ms) >= NOTE_EVERY_MS {
            inside.noted_ms = now;
            if let Err(error) = self.0.pools.records.put(&inside.record) {
                tracing::error!(%error, pool = inside.record.name, "cannot remember what a pool has cost");
            }
        }
    }

    /// The same as `price_of`, read not so long ago: the operator's file seldom changes.
    fn recent_price(&self, pool: &Pool, spec: &Spec, moment: Instant) -> f64 {
        let old = |when: Instant| moment.duration_since(when) >= PRICES_EVERY;
        if pool.lock().priced.is_none_or(old) {
            let price = self.price_of(spec).unwrap_or(0.0);
            let mut inside = pool.lock();
            (inside.price, inside.priced) = (price, Some(moment));
        }
        pool.lock().price
    }

    /// Dollars for a machine like this that waits for an hour.
    pub(super) fn price_of(&self, spec: &Spec) -> Result<f64, LifeError> {
        let rates = self.0.engine.prices()?.compute();
        let memory = spec.limits.memory.0 as f64 / GIB;
        Ok(f64::from(spec.limits.cpus) * rates.cpu_hour + memory * rates.memory_gib_hour)
    }
}

impl Inside {
    /// One was made, or could not be. Returns it if nobody wants it any more: it is still being made then.
    fn added(
        &mut self,
        made: Result<Option<Warm>, LifeError>,
        described: &PoolRecord,
        took: Duration,
        changed: &Arc<Notify>,
    ) -> Option<Warm> {
        match made {
            Ok(Some(warm)) => {
                self.counters.created += 1;
                self.demand.made(took);
                (self.failures, self.not_before, self.last_error) = (0, None, None);
                let same = self.record.spec == described.spec && self.record.config.secrets == described.config.secrets;
                if self.gone || self.record.drained || !same {
                    return Some(warm);
                }
                warm.watch(changed);
                self.ready.push_back(warm);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, pool = described.name, "cannot make a machine for a pool");
                self.counters.failed_creates += 1;
                self.failures = self.failures.saturating_add(1);
                let config = &self.record.config;
                let wait = match self.failures > config.create_retries {
                    true => config.create_retry_delay.0.max(LATER),
                    false => config.create_retry_delay.0,
                };
                self.not_before = Instant::now().checked_add(wait);
                self.last_error = Some(error.to_string());
            }
        }
        self.finish_one();
        None
    }

    fn finish_one(&mut self) {
        self.creating = self.creating.saturating_sub(1);
    }

    /// Takes out those that are dead, too old, or of another image than the name means now.
    fn take_unfit(&mut self, now: u64, digest: Option<&str>) -> Vec<Warm> {
        let mut unfit = Vec::new();
        for warm in std::mem::take(&mut self.ready) {
            let stale = warm.age(now) > self.record.config.max_warm_age.0
                || digest.is_some_and(|digest| warm.sandbox.image().digest != digest)
                || warm.sandbox.spec().image != self.record.spec.image;
            match (warm.lives(), stale) {
                (true, false) => self.ready.push_back(warm),
                (false, _) => {
                    self.counters.health_check_removals += 1;
                    unfit.push(warm);
                }
                (true, true) => {
                    self.counters.expired += 1;
                    unfit.push(warm);
                }
            }
        }
        unfit
    }

    /// Takes out those that are too many: at once if something forbids them, else one after the other.
    fn shrink(&mut self, wish: &Wish, now: u64, moment: Instant) -> Vec<Warm> {
        let beyond = |bound: u32| (self.size().saturating_sub(bound) as usize).min(self.ready.len());
        let (surplus, forbidden) = (beyond(wish.wanted), beyond(wish.ceiling));
        let config = &self.record.config;
        let calm = self.demand.quiet(now) > config.cooldown_after_acquire.0;
        let rested = self.shrunk.is_none_or(|shrunk| moment.duration_since(shrunk) >= config.scale_down_delay.0);
        let count = match (calm && rested, forbidden) {
            (true, 0) => surplus.min(1),
            _ => forbidden,
        };
        if count > 0 {
            self.shrunk = Some(moment);
            self.counters.scale_down_events += count as u64;
        }
        // The oldest would be replaced soon anyway.
        self.ready.drain(..count).collect()
    }
}
