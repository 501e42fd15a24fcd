//! A machine that waits for somebody: nobody's name, variables, files or secrets are in it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sloplet_image::Image;
use sloplet_policy::Spec;
use sloplet_store::Document;
use sloplet_wire::Exec;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::super::clock::now_ms;
use super::super::error::LifeError;
use super::super::making::FOREVER;
use super::super::sandboxes::Sandboxes;
use super::config::PoolRecord;
use crate::driver::{Adopted, MachineState, Overdue};
use crate::engine::new_id;
use crate::failpoint::{Point, reach};
use crate::outward::Patron;
use crate::outward::private::Private;
use crate::sandbox::{PATH, Sandbox};

/// How much later than the registry the spawner ends a machine that waits: it is for when there is no server.
const GRACE: Duration = Duration::from_secs(30);

/// How long an agent that is well may take to say so.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// A machine that waits.
pub(super) struct Warm {
    pub(super) sandbox: Sandbox,
    pub(super) born_ms: u64,
    /// Its keeper may be of another build, and not know how to change it.
    pub(super) foreign: bool,
    /// Its programs trust an authority, which is remembered.
    pub(super) trusting: bool,
}

impl Warm {
    /// How long it has waited.
    pub(super) fn age(&self, now_ms: u64) -> Duration {
        Duration::from_millis(now_ms.saturating_sub(self.born_ms))
    }

    /// Whether its processes run.
    pub(super) fn lives(&self) -> bool {
        *self.sandbox.machine().state().borrow() == MachineState::Running
    }

    /// Tells when its machine ends.
    pub(super) fn watch(&self, changed: &Arc<Notify>) {
        let (mut state, changed) = (self.sandbox.machine().state(), changed.clone());
        tokio::spawn(async move {
            let _ = state.wait_for(|state| matches!(state, MachineState::Ended(_))).await;
            changed.notify_one();
        });
    }
}

/// Whether an agent answers in time.
pub(super) async fn answers(agent: &sloplet_client::Agent) -> bool {
    matches!(tokio::time::timeout(ANSWERS_WITHIN, agent.ping()).await, Ok(Ok(())))
}

/// What is remembered of a machine that waits.
#[derive(Serialize, Deserialize)]
pub(in crate::life) struct WarmRecord {
    pub(super) id: String,
    pub(super) owner: String,
    /// Its pool's id.
    pub(super) pool: String,
    pub(super) spec: Spec,
    /// Not before it can be claimed.
    pub(super) image: Option<Image>,
    pub(super) born_ms: u64,
}

impl Document for WarmRecord {
    const KIND: &'static str = "warm";

    fn id(&self) -> &str {
        &self.id
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    fn created_ms(&self) -> u64 {
        self.born_ms
    }
}

impl Sandboxes {
    /// Makes a machine for a pool. It is remembered before it exists, so that whatever is left of it is found.
    pub(super) async fn make_warm(&self, pool: &PoolRecord) -> Result<Warm, LifeError> {
        let id = new_id();
        let mut spec = pool.spec.clone();
        spec.limits.timeout = FOREVER;
        let mut record = WarmRecord {
            id: id.clone(),
            owner: pool.owner.clone(),
            pool: pool.id.clone(),
            spec: spec.clone(),
            image: None,
            born_ms: now_ms(),
        };
        reach(Point::BeforeWarmRecord);
        self.0.pools.warm.insert(&record)?;
        reach(Point::AfterWarmRecord);
        let trusting = pool.config.secrets;
        let making = async {
            let image = self.0.engine.image_of(&spec).await?;
            let private = match trusting {
                true => self.authority_ahead(pool, &id)?,
                false => Private::default(),
            };
            let patron = self.nobody(pool, &spec, private);
            let sandbox = self.0.engine.create_lasting(id.clone(), spec, image, Vec::new(), &patron).await?;
            match self.warm_up(pool, &sandbox).await {
                Ok(()) => Ok(sandbox),
                Err(error) => {
                    let _ = sandbox.tear_down().await;
                    Err(error)
                }
            }
        };
        let sandbox = match making.await {
            Ok(sandbox) => sandbox,
            Err(error) => {
                self.forget_warm(&id)?;
                return Err(error);
            }
        };
        (record.image, record.born_ms) = (Some(sandbox.image().clone()), now_ms());
        self.0.pools.warm.put(&record)?;
        reach(Point::AfterWarmReady);
        Ok(Warm { sandbox, born_ms: record.born_ms, foreign: false, trusting })
    }

    /// What makes its first user wait no longer than its second.
    async fn warm_up(&self, pool: &PoolRecord, sandbox: &Sandbox) -> Result<(), LifeError> {
        match sandbox.image().config.start {
            Some(_) => self.start_service_of_image(sandbox).await?,
            // The first command is the slowest. Not in the record: nobody has asked for it.
            None => {
                let first = Exec {
                    argv: vec![b"/bin/true".to_vec().into()],
                    env: vec![format!("PATH={PATH}").into_bytes().into()],
                    user: Some("0".into()),
                    ..Exec::default()
                };
                if let Ok(process) = sandbox.agent().exec(first).await {
                    let _ = process.output(0).await;
                }
            }
        }
        // A wall that cannot do that leaves it to the keeper.
        let life = pool.config.max_warm_age.0.saturating_add(GRACE);
        let _ = sandbox.machine().set_deadline(Some(life), Overdue::Destroy).await;
        Ok(())
    }

    /// An authority that its programs trust, for the secrets that it may be given.
    fn authority_ahead(&self, pool: &PoolRecord, id: &str) -> Result<Private, LifeError> {
        let private = Private::without_secrets().map_err(|error| LifeError::Invalid(error.to_string()))?;
        self.keep_private(id, &pool.owner, &private)?;
        Ok(private)
    }

    /// Whom a machine acts for that nobody has claimed.
    fn nobody(&self, pool: &PoolRecord, spec: &Spec, private: Private) -> Patron {
        let outlets = self.0.engine.can_reach_out(spec);
        Patron { outlets, private, claimable: true, ..Patron::plain(&format!("pool:{}", pool.name)) }
    }

    /// Takes over a machine that waited when an earlier server ended; `None` if it cannot be claimed any more.
    pub(super) async fn adopt_warm(
        &self,
        pool: &PoolRecord,
        record: WarmRecord,
        adopted: Adopted,
    ) -> Result<Option<Warm>, LifeError> {
        let Some(image) = record.image.filter(|_| !adopted.frozen) else {
            return self.end_adopted(&record.id, adopted).await;
        };
        let mut spec = pool.spec.clone();
        spec.limits.timeout = FOREVER;
        let old = Duration::from_millis(now_ms().saturating_sub(record.born_ms)) > pool.config.max_warm_age.0;
        if spec != record.spec || old {
            return self.end_adopted(&record.id, adopted).await;
        }
        let patron = self.nobody(pool, &spec, Private::default());
        let foreign = !adopted.same_build;
        let trusting = self.0.secrets.get(&record.id)?.is_some();
        let sandbox = self.0.engine.take_over(adopted, spec, image, &patron).await?;
        Ok(Some(Warm { sandbox, born_ms: record.born_ms, foreign, trusting }))
    }

    /// Takes over the machines that waited when an earlier server ended. Those of no pool are left in `living`; `known` are
    /// sandboxes, which may have been claimed just then.
    pub(in crate::life) async fn find_warm(
        &self,
        living: &mut HashMap<String, Adopted>,
        known: &[String],
    ) -> Result<(), LifeError> {
        for record in self.0.pools.warm.all()? {
            if known.contains(&record.id) {
                self.0.pools.warm.remove(&record.id)?;
                continue;
            }
            // One whose pool is gone stays among those that are nobody's.
            let pool = self.0.pools.lock().get(&record.pool).cloned();
            let ours = pool.and_then(|pool| Some((pool, living.remove(&record.id)?)));
            let Some((pool, adopted)) = ours else {
                self.forget_warm(&record.id)?;
                continue;
            };
            let described = pool.with_record(Clone::clone);
            if let Some(warm) = self.adopt_warm(&described, record, adopted).await? {
                warm.watch(&self.0.pools.changed);
                let mut inside = pool.lock();
                inside.ready.push_back(warm);
                inside.ready.make_contiguous().sort_by_key(|warm| warm.born_ms);
            }
        }
        Ok(())
    }

    async fn end_adopted(&self, id: &str, adopted: Adopted) -> Result<Option<Warm>, LifeError> {
        adopted.machine.destroy().await?;
        self.forget_warm(id)?;
        Ok(None)
    }

    /// Destroys a machine that nobody has claimed, whether or not somebody waits for that.
    pub(super) fn discard(&self, warm: Warm) -> JoinHandle<()> {
        let this = self.clone();
        tokio::spawn(async move { this.end_warm(warm).await })
    }

    /// Destroys a machine that nobody has claimed. It was nobody's sandbox: there is nothing to write down.
    pub(super) async fn end_warm(&self, warm: Warm) {
        let id = warm.sandbox.id().to_owned();
        if let Err(error) = warm.sandbox.tear_down().await {
            tracing::warn!(%error, machine = id, "cannot destroy a machine of a pool");
        }
        if let Err(error) = self.forget_warm(&id) {
            tracing::error!(%error, machine = id, "cannot forget a machine of a pool");
        }
    }

    pub(super) fn forget_warm(&self, id: &str) -> Result<(), LifeError> {
        self.0.pools.warm.remove(id)?;
        reach(Point::AfterWarmForgotten);
        self.forget_secrets(id)
    }
}
