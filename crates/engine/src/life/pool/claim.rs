//! Giving a machine that waits to somebody.

use std::future::{poll_fn, ready};
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sloplet_policy::Spec;

use super::super::clock::now_ms;
use super::super::error::LifeError;
use super::super::record::NewSandbox;
use super::super::sandboxes::Sandboxes;
use super::config::OnEmpty;
use super::metrics::Source;
use super::warm::{Warm, answers};
use super::{Pool, Pools};
use crate::Engine;
use crate::sandbox::Sandbox;

/// Why a machine that waits cannot become what somebody asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Misfit {
    /// It starts from something else.
    Image,
    /// It is behind another wall.
    Wall,
    /// Its commands run as somebody else.
    User,
    /// Its wall cannot change what it is called.
    Hostname,
    /// Its wall cannot change these limits while it runs.
    Limits,
    /// Its wall mounts volumes only when a machine is made; or they are to be written to, and what the image starts runs
    /// already, without the filter for that.
    Volumes,
    /// The same of host folders.
    Mounts,
    /// Masked files are there when a machine is made.
    Data,
    /// Devices are, too.
    Devices,
    /// Its programs trust no authority: the pool does not say `secrets`.
    Secrets,
    /// It was made without a way out.
    Network,
    /// It is to go on from a memory of its own.
    Memory,
    /// It is to start with a command of its own.
    Start,
    /// It must hold more than the other accepts.
    BestEffort,
}

impl Misfit {
    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Wall => "wall",
            Self::User => "user",
            Self::Hostname => "hostname",
            Self::Limits => "limits",
            Self::Volumes => "volumes",
            Self::Mounts => "mounts",
            Self::Data => "data",
            Self::Devices => "devices",
            Self::Secrets => "secrets",
            Self::Network => "network",
            Self::Memory => "memory",
            Self::Start => "start",
            Self::BestEffort => "best_effort",
        }
    }
}

/// A claim under way. Whoever gives it up, or is cut off, gives the machine back.
pub(in crate::life) struct Claim {
    sandboxes: Sandboxes,
    pool: Arc<Pool>,
    began: Instant,
    /// The request names the pool.
    by_name: bool,
    warm: Option<Warm>,
    /// Its limits are the claimer's already.
    changed: bool,
    /// Whether it is well: asked, and not answered yet.
    asked: Option<BoxFuture<'static, bool>>,
}

impl Claim {
    /// The pool's id.
    pub(in crate::life) fn pool(&self) -> &str {
        &self.pool.id
    }

    /// The machine's id, if there is one.
    pub(in crate::life) fn machine(&self) -> Option<&str> {
        self.warm.as_ref().map(|warm| warm.sandbox.id())
    }

    /// Whether nothing of this request enters the machine before it is the claimer's: until then it can go back to its pool,
    /// also by way of a server that starts anew.
    pub(in crate::life) fn leaves_no_trace(&self, request: &NewSandbox) -> bool {
        let as_made = |warm: &Warm| is_as_made(warm.sandbox.spec(), request);
        self.warm.as_ref().is_some_and(as_made) && !request.spec.is_read_along()
    }

    /// Whether the machine's programs trust an authority already.
    pub(in crate::life) fn is_trusting(&self) -> bool {
        self.warm.as_ref().is_some_and(|warm| warm.trusting)
    }

    /// Asks the machine whether it is well. The answer comes while other things are done.
    async fn ask(&mut self) {
        let Some(agent) = self.warm.as_ref().map(|warm| warm.sandbox.agent().clone()) else { return };
        let mut asked = async move { answers(&agent).await }.boxed();
        let first = poll_fn(|context| Poll::Ready(asked.poll_unpin(context))).await;
        self.asked = Some(match first {
            Poll::Ready(well) => ready(well).boxed(),
            Poll::Pending => asked,
        });
    }

    /// Waits until the machine has said that it is well. One that does not is replaced.
    pub(in crate::life) async fn answers(&mut self) -> bool {
        let well = match self.asked.take() {
            Some(asked) => asked.await,
            None => true,
        };
        if !well {
            self.give_up();
        }
        well
    }

    /// The machine is not well.
    fn give_up(&mut self) {
        self.pool.lock().counters.health_check_removals += 1;
        self.warm.take().into_iter().for_each(|warm| drop(self.sandboxes.discard(warm)));
    }

    /// The machine; it is the claimer's from now on.
    pub(in crate::life) fn take(&mut self) -> Option<Sandbox> {
        self.warm.take().map(|warm| warm.sandbox)
    }

    /// Whether a sandbox may be made where no machine can become it.
    pub(in crate::life) fn may_be_made(&self) -> bool {
        !self.by_name || self.pool.with_record(|record| record.config.on_empty == OnEmpty::Create)
    }

    /// The machine could not become what was asked for after all.
    pub(in crate::life) fn failed_to_fit(&self, request: &NewSandbox) {
        let misfit = match (request.volumes.is_empty(), request.spec.mounts.is_empty()) {
            (false, _) => Misfit::Volumes,
            (true, false) => Misfit::Mounts,
            (true, true) => Misfit::Hostname,
        };
        self.pool.lock().counters.misfit(misfit);
    }

    /// It was served, or not, from where it was.
    pub(in crate::life) fn finish(&self, source: Source, served: bool) {
        let mut inside = self.pool.lock();
        match served {
            true => inside.counters.served(source, self.began.elapsed()),
            false => inside.counters.refused += 1,
        }
    }
}

impl Drop for Claim {
    /// Nothing of the claim is in the machine yet, unless its limits were changed.
    fn drop(&mut self) {
        let Some(warm) = self.warm.take() else { return };
        let mut inside = self.pool.lock();
        if self.changed || inside.gone {
            drop(inside);
            drop(self.sandboxes.discard(warm));
        } else {
            inside.ready.push_front(warm);
        }
    }
}

impl Sandboxes {
    /// Finds a machine for a request: in the pool that it names, or in one of the owner's that it fits. `None` where that is no
    /// pool's business.
    pub(in crate::life) async fn claim(&self, owner: &str, request: &NewSandbox) -> Result<Option<Claim>, LifeError> {
        let (engine, pools) = (&self.0.engine, &self.0.pools);
        let (pool, misfit) = match &request.pool {
            Some(name) => {
                let pool = pools.named(owner, name)?;
                let misfit = pool.misfit(engine, request);
                (pool, misfit)
            }
            None => match pools.fitting(engine, owner, request) {
                Some(pool) => (pool, None),
                None => return Ok(None),
            },
        };
        let (sandboxes, began) = (self.clone(), Instant::now());
        let by_name = request.pool.is_some();
        let mut claim =
            Claim { sandboxes, pool: pool.clone(), began, by_name, warm: None, changed: false, asked: None };
        pool.lock().demand.claimed(now_ms());
        pools.note_claim();
        if let Some(misfit) = misfit {
            pool.lock().counters.misfit(misfit);
        } else {
            self.find_well(&mut claim, request).await;
        }
        let (on_empty, name) = pool.with_record(|record| (record.config.on_empty, record.name.clone()));
        if claim.warm.is_none() && request.pool.is_some() {
            let refused = match (on_empty, misfit) {
                (OnEmpty::Create, _) => self.check_total(&pool),
                (OnEmpty::Fail, Some(misfit)) => Err(LifeError::Conflict(format!(
                    "the machines of pool '{name}' cannot become this sandbox ({}), and it makes no others: ask without \
                     the pool, or set its on_empty to 'create'",
                    misfit.name()
                ))),
                (OnEmpty::Fail, None) => Err(LifeError::PoolEmpty(name)),
            };
            if let Err(error) = refused {
                pool.lock().counters.refused += 1;
                return Err(error);
            }
        }
        Ok(Some(claim))
    }

    /// Takes the machine that has waited longest and lives, and asks whether it is well. Those that do not are replaced.
    async fn find_well(&self, claim: &mut Claim, request: &NewSandbox) {
        let limits = &request.spec.limits;
        loop {
            claim.warm = self.take_ready(&claim.pool, request);
            let Some(warm) = &claim.warm else { return };
            let made = &warm.sandbox.spec().limits;
            claim.changed = (made.memory, made.cpus, made.pids) != (limits.memory, limits.cpus, limits.pids);
            if !warm.lives() {
                claim.give_up();
                continue;
            }
            claim.ask().await;
            if !claim.changed {
                return;
            }
            if !claim.answers().await {
                continue;
            }
            let Some(warm) = &claim.warm else { return };
            if warm.sandbox.machine().set_limits(limits).await.is_ok() {
                return;
            }
            claim.give_up();
        }
    }

    fn take_ready(&self, pool: &Pool, request: &NewSandbox) -> Option<Warm> {
        let digest = match self.0.engine.has_own_images(&request.spec) {
            Ok(false) => Some(self.0.engine.resolve(&request.spec.image).ok()?.digest),
            // The wall's own names; the keeper looks whether they mean the same still.
            _ => None,
        };
        let mut inside = pool.lock();
        let fits = |warm: &Warm| {
            digest.as_ref().is_none_or(|digest| warm.sandbox.image().digest == *digest)
                && (!warm.foreign || is_as_made(warm.sandbox.spec(), request))
        };
        let index = inside.ready.iter().position(fits)?;
        inside.ready.remove(index)
    }

    /// Refuses a sandbox beyond what the owner's pools may have together.
    fn check_total(&self, pool: &Pool) -> Result<(), LifeError> {
        let Some(most) = pool.with_record(|record| record.config.max_total) else { return Ok(()) };
        let (in_use, warm) = (self.in_use_of(&pool.owner), self.0.pools.warm_of(&pool.owner));
        if in_use + warm < most {
            return Ok(());
        }
        let message = format!(
            "there are {} sandboxes of pools already, as many as may be (max_total): remove some, or raise it",
            in_use + warm
        );
        Err(LifeError::Quota(message))
    }
}

impl Pools {
    /// A pool of the owner's that makes what is asked for; one with a machine ready before others.
    fn fitting(&self, engine: &Engine, owner: &str, request: &NewSandbox) -> Option<Arc<Pool>> {
        let mut of_owner: Vec<Arc<Pool>> = self.of(owner);
        of_owner.retain(|pool| pool.misfit(engine, request).is_none() && !pool.with_record(|record| record.drained));
        let ready = of_owner.iter().position(|pool| !pool.lock().ready.is_empty()).unwrap_or(0);
        (!of_owner.is_empty()).then(|| of_owner.swap_remove(ready))
    }
}

impl Pool {
    /// Why its machines cannot become what is asked for.
    fn misfit(&self, engine: &Engine, request: &NewSandbox) -> Option<Misfit> {
        self.with_record(|record| misfit(engine, &record.spec, record.config.secrets, request))
    }
}

/// Whether what a claim asks for takes no change of a machine that its keeper would have to make.
fn is_as_made(made: &Spec, request: &NewSandbox) -> bool {
    let bounds = |spec: &Spec| (spec.limits.memory, spec.limits.cpus, spec.limits.pids);
    let asked = &request.spec;
    bounds(made) == bounds(asked)
        && made.hostname == asked.hostname
        && asked.mounts.is_empty()
        && request.volumes.is_empty()
}

/// Whether a machine can be given the folders that are asked for.
fn can_be_shown(engine: &Engine, made: &Spec, request: &NewSandbox) -> bool {
    let mut volumes = request.volumes.iter();
    let writes = volumes.any(|mount| !mount.read_only) || request.spec.mounts.iter().any(|mount| mount.writable);
    let has_started = || engine.resolve(&made.image).is_ok_and(|image| image.config.start.is_some());
    engine.can_attach(made) && !(writes && has_started())
}

fn misfit(engine: &Engine, made: &Spec, secrets: bool, request: &NewSandbox) -> Option<Misfit> {
    let asked = &request.spec;
    let wall = |spec: &Spec| engine.driver_name(spec).ok();
    let same_limits = (asked.limits.memory, asked.limits.cpus, asked.limits.pids)
        == (made.limits.memory, made.limits.cpus, made.limits.pids)
        && (asked.limits.disk, asked.limits.inodes()) == (made.limits.disk, made.limits.inodes());
    let is_shown_more = !request.volumes.is_empty() || !asked.mounts.is_empty();
    let shows_too_much = is_shown_more && !can_be_shown(engine, made, request);
    [
        (asked.image != made.image, Misfit::Image),
        (asked.weaken != made.weaken || asked.aio != made.aio || wall(asked) != wall(made), Misfit::Wall),
        (asked.user != made.user, Misfit::User),
        (asked.hostname != made.hostname && !engine.can_attach(made), Misfit::Hostname),
        (shows_too_much && !request.volumes.is_empty(), Misfit::Volumes),
        (shows_too_much, Misfit::Mounts),
        (!asked.data.is_empty(), Misfit::Data),
        (!asked.gpu.is_empty(), Misfit::Devices),
        (asked.is_read_along() && !secrets, Misfit::Secrets),
        (asked.reaches_out() && !engine.has_spare_way_out(made), Misfit::Network),
        (request.memory.is_some(), Misfit::Memory),
        (request.start.is_some() || request.ready.is_some(), Misfit::Start),
        (made.best_effort && !asked.best_effort, Misfit::BestEffort),
        (!same_limits && !engine.can_change_limits(made, asked), Misfit::Limits),
    ]
    .into_iter()
    .find_map(|(misses, misfit)| misses.then_some(misfit))
}
