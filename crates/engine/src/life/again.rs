//! Finding sandboxes again after the server was killed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::clock::now_ms;
use super::error::LifeError;
use super::live::Live;
use super::making::FOREVER;
use super::reconcile::{Action, Found, Remembered, reconcile};
use super::record::{Record, State};
use super::sandboxes::{Sandboxes, Slot};
use crate::driver::{Adopted, Adoption, End, MachineState};
use crate::failpoint::{Point, reach};

/// How long the news of a machine's end may take.
const NEWS: Duration = Duration::from_secs(2);

impl Sandboxes {
    /// Takes over the machines that an earlier server left, and removes what nobody was promised.
    pub(super) async fn find_again(&self, adoption: Adoption) -> Result<(), LifeError> {
        let mut living: HashMap<String, Adopted> =
            adoption.living.into_iter().map(|adopted| (adopted.id.clone(), adopted)).collect();
        let ended: HashMap<String, End> = adoption.ended.into_iter().collect();
        let mut known = Vec::new();
        for record in self.0.records.all()? {
            known.push(record.id.clone());
            let adopted = living.remove(&record.id);
            let found = match &adopted {
                Some(Adopted { frozen: true, .. }) => Found::Frozen,
                Some(_) => Found::Running,
                None => Found::Gone { timed_out: ended.get(&record.id).is_some_and(|end| end.timed_out) },
            };
            let machine = adopted.as_ref().map(|adopted| adopted.machine.state());
            if let Err(error) = self.settle_one(record.clone(), adopted, found).await {
                // It may have ended since it was found; then that is what there is of it.
                let Some(end) = end_of(machine).await else { return Err(error) };
                self.settle_one(record, None, Found::Gone { timed_out: end.timed_out }).await?;
            }
        }
        self.find_warm(&mut living, &known).await?;
        // Nobody remembers these.
        for orphan in living.into_values() {
            end_orphan(Some(orphan)).await;
        }
        Ok(())
    }

    /// Brings together what is remembered of a sandbox and what is there of its machine.
    async fn settle_one(&self, record: Record, adopted: Option<Adopted>, found: Found) -> Result<(), LifeError> {
        match (reconcile(Some(remembered(&record)), found), adopted) {
            (Action::TakeOver { state, freeze, stale }, Some(adopted)) => {
                reach(Point::BeforeTakeOver);
                self.take_over(record, adopted, state, freeze, stale).await?;
                reach(Point::AfterTakeOver);
                Ok(())
            }
            (Action::Rest(state), adopted) => {
                end_orphan(adopted).await;
                self.rest(record, state)
            }
            (_, adopted) => {
                // First the machine: without its record, its volumes are anybody's.
                end_orphan(adopted).await;
                if let Some(saved) = &record.saved {
                    self.drop_image(saved);
                }
                self.forget(&record.id)
            }
        }
    }

    /// Makes a machine its sandbox's again, in this state.
    async fn take_over(
        &self,
        record: Record,
        adopted: Adopted,
        state: State,
        freeze: bool,
        stale: bool,
    ) -> Result<(), LifeError> {
        let Some(image) = record.image.clone() else {
            self.forget(&record.id)?;
            end_orphan(Some(adopted)).await;
            return Ok(());
        };
        let mut spec = record.request.spec.clone();
        spec.limits.timeout = FOREVER;
        let patron = self.patron(&record, self.secrets_of(&record)?);
        let mut sandbox = self.0.engine.take_over(adopted, spec, image, &patron).await?;
        self.0.engine.open_way_out(&mut sandbox, &patron)?;
        let live = Arc::new(Live::new(sandbox, self.0.engine.allowances().of(&record.owner)));
        let slot = Arc::new(Slot::new(record.clone(), Some(live.clone())));
        self.slots().insert(record.id.clone(), slot.clone());
        if freeze {
            live.sandbox.pause(true).await?;
        }
        if stale || state != record.state {
            slot.update(&self.0.records, |record| {
                record.state = state;
                record.saved = record.saved.take().filter(|_| !stale);
                if state == State::Paused
                    && let Some(ends) = record.ends_ms.take()
                {
                    record.remaining_ms = Some(ends.saturating_sub(now_ms()));
                }
            })?;
        }
        if let Some(saved) = record.saved.filter(|_| stale) {
            self.drop_image(&saved);
        }
        self.watch(&slot, live.clone());
        self.schedule(&slot).await;
        // In the background: an agent that does not answer, or is frozen, must not hold up the others.
        tokio::spawn(async move {
            if let Err(error) = live.processes.find_again().await {
                tracing::warn!(%error, sandbox = live.sandbox.id(), "cannot find its processes again");
            }
        });
        Ok(())
    }

    /// Keeps a sandbox without a machine, in this state.
    fn rest(&self, record: Record, state: State) -> Result<(), LifeError> {
        let slot = Slot::new(record, None);
        if slot.record().state != state {
            slot.update(&self.0.records, |record| {
                record.state = state;
                record.failure = Some("its machine ended while there was no server".into());
                record.ends_ms = None;
            })?;
        }
        self.slots().insert(slot.record().id, Arc::new(slot));
        Ok(())
    }
}

fn remembered(record: &Record) -> Remembered {
    let overdue = record.state == State::Running && record.ends_ms.is_some_and(|ends| ends <= now_ms());
    Remembered { state: record.state, saved: record.saved.is_some(), overdue }
}

/// How a machine ended, if it has, or is about to.
async fn end_of(machine: Option<watch::Receiver<MachineState>>) -> Option<End> {
    let mut machine = machine?;
    let ended = machine.wait_for(|state| matches!(state, MachineState::Ended(_)));
    match tokio::time::timeout(NEWS, ended).await {
        Ok(Ok(state)) => match &*state {
            MachineState::Ended(end) => Some(*end),
            _ => None,
        },
        // Whoever would tell is gone, and the machine with it.
        Ok(Err(_)) => Some(End { lost: true, ..End::default() }),
        Err(_) => None,
    }
}

/// Destroys a machine that is nobody's. One that resists does not keep the server from starting.
async fn end_orphan(orphan: Option<Adopted>) {
    let Some(orphan) = orphan else { return };
    tracing::info!(sandbox = orphan.id, "removing a machine that is nobody's");
    if let Err(error) = orphan.machine.destroy().await {
        tracing::error!(%error, sandbox = orphan.id, "cannot remove a machine that is nobody's");
    }
    reach(Point::AfterOrphan);
}
