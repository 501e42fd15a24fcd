//! Finding sandboxes again after the server was killed.

use std::collections::HashMap;
use std::sync::Arc;

use super::clock::now_ms;
use super::error::LifeError;
use super::live::Live;
use super::making::FOREVER;
use super::record::{Record, State};
use super::sandboxes::{Sandboxes, Slot};
use crate::driver::{Adopted, Adoption, End};

impl Sandboxes {
    /// Takes over the machines that an earlier server left, and removes half-made ones.
    pub(super) async fn find_again(&self, adoption: Adoption) -> Result<(), LifeError> {
        let mut living: HashMap<String, Adopted> =
            adoption.living.into_iter().map(|adopted| (adopted.id.clone(), adopted)).collect();
        let ended: HashMap<String, End> = adoption.ended.into_iter().collect();
        let mut known = Vec::new();
        for record in self.0.records.all()? {
            known.push(record.id.clone());
            let adopted = living.remove(&record.id);
            match (record.state, adopted) {
                (State::Running | State::Paused, Some(adopted)) => self.take_over(record, adopted).await?,
                (State::Creating, Some(half_made)) => {
                    living.insert(record.id.clone(), half_made);
                    self.forget(&record.id)?;
                }
                (State::Creating, None) => {
                    self.forget(&record.id)?;
                }
                (State::Running | State::Paused, None) => self.bury(record, &ended)?,
                (State::Stopped | State::Failed, _) => self.keep(Slot::new(record, None)),
            }
        }
        self.find_warm(&mut living, &known).await?;
        // Nobody remembers these.
        for orphan in living.into_values() {
            tracing::info!(sandbox = orphan.id, "removing a half-made sandbox");
            orphan.machine.destroy().await?;
        }
        Ok(())
    }

    async fn take_over(&self, record: Record, adopted: Adopted) -> Result<(), LifeError> {
        let frozen = adopted.frozen;
        let Some(image) = record.image.clone() else {
            self.forget(&record.id)?;
            adopted.machine.destroy().await?;
            return Ok(());
        };
        let mut spec = record.request.spec.clone();
        spec.limits.timeout = FOREVER;
        let patron = self.patron(&record, self.secrets_of(&record)?);
        let mut sandbox = self.0.engine.take_over(adopted, spec, image, &patron).await?;
        self.0.engine.open_way_out(&mut sandbox, &patron)?;
        let live = Arc::new(Live::new(sandbox));
        let slot = Arc::new(Slot::new(record.clone(), Some(live.clone())));
        self.slots().insert(record.id.clone(), slot.clone());
        match (record.state, frozen) {
            // Its time was over while there was no server.
            (State::Running, true) => {
                slot.update(&self.0.records, |record| {
                    record.state = State::Paused;
                    record.remaining_ms = record.ends_ms.take().map(|ends| ends.saturating_sub(now_ms()));
                })?;
            }
            // The server was killed between a thaw and its record, or between a record and its thaw.
            (State::Paused, false) => live.sandbox.pause(true).await?,
            _ => {}
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

    /// Its machine is gone.
    fn bury(&self, record: Record, ended: &HashMap<String, End>) -> Result<(), LifeError> {
        let timed_out = ended.get(&record.id).is_some_and(|end| end.timed_out);
        let overdue = record.state == State::Running && record.ends_ms.is_some_and(|ends| ends <= now_ms());
        if timed_out || overdue {
            self.forget(&record.id)?;
            return Ok(());
        }
        let slot = Slot::new(record, None);
        slot.update(&self.0.records, |record| {
            record.state = if record.saved.is_some() { State::Stopped } else { State::Failed };
            record.failure = Some("its machine ended while there was no server".into());
            record.ends_ms = None;
        })?;
        self.keep(slot);
        Ok(())
    }

    fn keep(&self, slot: Slot) {
        self.slots().insert(slot.record().id, Arc::new(slot));
    }
}
