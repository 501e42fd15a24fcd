//! Machines made ahead, for requests that are likely to come.
//!
//! A warm machine has nobody's name, variables or files: it gets them when it is claimed. It is not remembered: if the
//! server dies, the next one removes it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sloplet_policy::Spec;
use tokio::sync::Notify;

use super::making::FOREVER;
use crate::Engine;
use crate::engine::{EngineError, new_id};
use crate::outward::Patron;
use crate::sandbox::{Command, Sandbox};

/// So many machines of a kind are kept ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// What they are.
    pub spec: Spec,
    /// How many.
    pub count: usize,
}

/// Machines that wait for somebody.
pub(super) struct Warm {
    wanted: Vec<Wanted>,
    ready: Mutex<Vec<Sandbox>>,
    taken: Notify,
}

impl Warm {
    /// Keeps these ready from now on.
    pub(super) fn keep(engine: &Arc<Engine>, wanted: Vec<Wanted>) -> Arc<Self> {
        let wanted: Vec<Wanted> =
            wanted.into_iter().map(|wanted| Wanted { spec: kind(&wanted.spec), ..wanted }).collect();
        let idle = wanted.is_empty();
        let warm = Arc::new(Self { wanted, ready: Mutex::default(), taken: Notify::new() });
        if !idle {
            tokio::spawn(fill(Arc::downgrade(&warm), engine.clone()));
        }
        warm
    }

    /// A machine like this, if one is ready and its image is still what that name means.
    pub(super) fn take(&self, engine: &Engine, spec: &Spec) -> Option<Sandbox> {
        if self.wanted.is_empty() || !spec.mounts.is_empty() || !spec.data.is_empty() {
            return None;
        }
        let (wanted, digest) = (kind(spec), engine.resolve(&spec.image).ok()?.digest);
        let mut ready = self.lock();
        let index = ready.iter().position(|one| *one.spec() == wanted && one.image().digest == digest)?;
        let taken = ready.swap_remove(index);
        self.taken.notify_one();
        Some(taken)
    }

    /// Takes all, to be destroyed.
    pub(super) fn drain(&self) -> Vec<Sandbox> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Sandbox>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn missing(&self) -> Option<Spec> {
        let ready = self.lock();
        let short = |wanted: &&Wanted| ready.iter().filter(|one| *one.spec() == wanted.spec).count() < wanted.count;
        self.wanted.iter().find(short).map(|wanted| wanted.spec.clone())
    }
}

/// What a machine is made of, without what it gets when it is claimed.
fn kind(spec: &Spec) -> Spec {
    let (network, budget) = Default::default();
    let mut kind = Spec { env: Vec::new(), workdir: None, network, budget, ..spec.clone() };
    kind.limits.timeout = FOREVER;
    kind
}

async fn fill(warm: Weak<Warm>, engine: Arc<Engine>) {
    loop {
        let Some(warm) = warm.upgrade() else { return };
        match warm.missing() {
            Some(spec) => match make(&engine, spec).await {
                Ok(sandbox) => warm.lock().push(sandbox),
                Err(error) => {
                    tracing::warn!(%error, "cannot make a machine ahead");
                    tokio::time::sleep(std::time::Duration::from_secs(30)).await;
                }
            },
            None => warm.taken.notified().await,
        }
    }
}

async fn make(engine: &Engine, spec: Spec) -> Result<Sandbox, EngineError> {
    let image = engine.image_of(&spec).await?;
    let patron = Patron { outlets: engine.can_reach_out(&spec), ..Patron::plain("warm") };
    let sandbox = engine.create_lasting(new_id(), spec, image, Vec::new(), &patron).await?;
    // The first command is the slowest: let it be this one.
    let first = Command { user: Some("0".into()), ..Command::new(["/bin/true"]) };
    if let Ok(process) = sandbox.exec(first).await {
        let _ = process.output(0).await;
    }
    Ok(sandbox)
}
