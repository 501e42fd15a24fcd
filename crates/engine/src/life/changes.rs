//! Pausing, resuming, prolonging and ending sandboxes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::clock::{now_ms, until_ms};
use super::error::LifeError;
use super::live::Live;
use super::record::{OnTimeout, Record, State};
use super::sandboxes::{Sandboxes, Slot};
use crate::driver::{End, Overdue};
use crate::engine::EngineError;
use crate::failpoint::{Point, reach};
use crate::journal::Journal;
use sloplet_egress::Counters;
use sloplet_ledger::Event;
use sloplet_ledger::event::{PolicyChanged, SandboxChanged, SandboxGone};
use sloplet_policy::{Budget, HeaderRule, Network};

/// How much later than the registry the spawner ends a sandbox: it is for when there is no server.
const GRACE: Duration = Duration::from_secs(2);

/// What clients of another API say besides the network rules that theirs become.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// The rules, in their own words.
    pub rules: serde_json::Value,
    /// Headers that are set on its requests.
    pub headers: Vec<HeaderRule>,
}

impl Sandboxes {
    /// Sets how long it lives from now on; `None`: until it is destroyed.
    pub async fn set_timeout(&self, owner: &str, id: &str, timeout: Option<Duration>) -> Result<Record, LifeError> {
        let slot = self.slot(owner, id)?;
        let _changing = slot.changing.lock().await;
        let (now, timeout) = (now_ms(), timeout.map(|timeout| timeout.as_millis() as u64));
        let record = slot.update(&self.0.records, |record| match record.state {
            State::Running | State::Creating => record.ends_ms = timeout.map(|timeout| now.saturating_add(timeout)),
            _ => record.remaining_ms = timeout,
        })?;
        self.schedule(&slot).await;
        Ok(record)
    }

    /// Resumes it if it is paused or stopped, and makes sure that it lives at least so long from now on. The flag tells
    /// whether it was resumed.
    pub async fn connect(&self, owner: &str, id: &str, timeout: Option<Duration>) -> Result<(Record, bool), LifeError> {
        let slot = self.slot(owner, id)?;
        let this = self.clone();
        self.carry_out(async move {
            let _changing = slot.changing.lock().await;
            let resumed = slot.record().state != State::Running;
            if resumed {
                this.wake(&slot).await?;
            }
            let least = timeout.map(|timeout| now_ms().saturating_add(timeout.as_millis() as u64));
            let record = slot.update(&this.0.records, |record| {
                if let (Some(ends), Some(least)) = (record.ends_ms, least) {
                    record.ends_ms = Some(ends.max(least));
                }
            })?;
            this.schedule(&slot).await;
            Ok((record, resumed))
        })
        .await
    }

    /// Freezes its processes. Its clock stands still meanwhile. `Conflict` if it does not run.
    pub async fn pause(&self, owner: &str, id: &str) -> Result<Record, LifeError> {
        let slot = self.slot(owner, id)?;
        let this = self.clone();
        self.carry_out(async move {
            let _changing = slot.changing.lock().await;
            this.freeze(&slot).await
        })
        .await
    }

    /// Goes on where `pause` stopped. `Conflict` if it runs.
    pub async fn resume(&self, owner: &str, id: &str) -> Result<Record, LifeError> {
        let slot = self.slot(owner, id)?;
        let this = self.clone();
        self.carry_out(async move {
            let _changing = slot.changing.lock().await;
            if slot.record().state == State::Running {
                return Err(LifeError::Conflict(format!("sandbox '{}' is running", slot.record().id)));
            }
            this.wake(&slot).await?;
            this.schedule(&slot).await;
            Ok(slot.record())
        })
        .await
    }

    /// Saves its files and ends its processes: it costs nothing but disk until it is resumed, which starts it afresh.
    pub async fn stop(&self, owner: &str, id: &str) -> Result<Record, LifeError> {
        let slot = self.slot(owner, id)?;
        let this = self.clone();
        self.carry_out(async move {
            let saving = slot.saving.lock().await;
            {
                let _changing = slot.changing.lock().await;
                if slot.record().state == State::Running {
                    this.freeze(&slot).await?;
                }
            }
            this.save_paused(&slot, &saving).await?;
            let _changing = slot.changing.lock().await;
            let record = slot.record();
            if (record.state, record.saved.is_some()) != (State::Paused, true) {
                return Err(LifeError::Conflict(format!("sandbox '{}' was woken meanwhile", record.id)));
            }
            let stopped = slot.update(&this.0.records, |record| record.state = State::Stopped)?;
            if let Some(live) = slot.set_live(None)
                && let Err(error) = live.sandbox.tear_down().await
            {
                // It is still there, and can be resumed or stopped again.
                slot.set_live(Some(live));
                slot.update(&this.0.records, |record| record.state = State::Paused)?;
                return Err(error.into());
            }
            this.note_state(&stopped, State::Paused, None);
            Ok(stopped)
        })
        .await
    }

    /// Kills everything in it and forgets it.
    pub async fn destroy(&self, owner: &str, id: &str) -> Result<(), LifeError> {
        let slot = self.slot(owner, id)?;
        let this = self.clone();
        self.carry_out(async move {
            let _changing = slot.changing.lock().await;
            this.end(&slot).await
        })
        .await
    }

    /// Destroys all sandboxes of everybody.
    pub async fn destroy_all(&self) {
        self.empty_pools().await;
        for record in self.all() {
            let _ = self.destroy(&record.owner, &record.id).await;
        }
    }

    /// Replaces its network rules; `said` is how a client of another API put them. They hold at once, for connections that stand, too.
    pub async fn set_network(
        &self,
        owner: &str,
        id: &str,
        network: Network,
        said: Option<Said>,
    ) -> Result<Record, LifeError> {
        network.check().map_err(|error| LifeError::Invalid(error.to_string()))?;
        self.0.engine.radius().check_network(&network).map_err(EngineError::from)?;
        let slot = self.slot(owner, id)?;
        let _changing = slot.changing.lock().await;
        let live = slot.live();
        let outward = live.as_ref().and_then(|live| live.sandbox.outward());
        if live.is_some() && outward.is_none() && !network.is_nothing() {
            let message = "this sandbox was made without a way out: see 'sloplet doctor', and make it anew";
            return Err(LifeError::Conflict(message.into()));
        }
        let headers = said.as_ref().map(|said| said.headers.clone());
        if let Some(headers) = &headers {
            HeaderRule::check_all(headers).map_err(|error| LifeError::Invalid(error.to_string()))?;
            let trusted = self.trusts_gateway(&slot)?;
            if !headers.is_empty() && !trusted {
                let message = "headers cannot be set on its requests: programs inside trust no gateway; make it anew with \
                               a rule that sets one";
                return Err(LifeError::Conflict(message.into()));
            }
        }
        let before = slot.record().request.spec;
        let record = slot.update(&self.0.records, |record| {
            record.request.spec.network = network.clone();
            if let Some(said) = said {
                record.request.network = Some(said.rules);
                record.request.spec.headers = said.headers;
            }
        })?;
        if let Some(outward) = outward {
            outward.set_network(network.clone());
            outward.set_headers(record.request.spec.headers.clone());
        }
        let (before, before_headers) = (before.network, before.headers);
        if before_headers != record.request.spec.headers {
            self.note_policy(&record, "headers", &before_headers, &record.request.spec.headers);
        }
        self.note_policy(&record, "network", &before, &network);
        Ok(record)
    }

    /// Replaces its budget. What is spent stays spent.
    pub async fn set_budget(&self, owner: &str, id: &str, budget: Budget) -> Result<Record, LifeError> {
        budget.check().map_err(|error| LifeError::Invalid(error.to_string()))?;
        let slot = self.slot(owner, id)?;
        let _changing = slot.changing.lock().await;
        let before = slot.record().request.spec.budget;
        if budget.counts_calls() && !before.counts_calls() && !self.trusts_gateway(&slot)? {
            let message =
                "its LLM calls cannot be counted: programs inside trust no gateway; make it anew with a budget";
            return Err(LifeError::Conflict(message.into()));
        }
        let record = slot.update(&self.0.records, |record| record.request.spec.budget = budget.clone())?;
        if let Some(live) = slot.live() {
            live.sandbox.account().set_budget(budget.clone());
            if let Some(outward) = live.sandbox.outward() {
                outward.set_budget(budget.clone());
            }
        }
        self.note_policy(&record, "budget", &before, &budget);
        Ok(record)
    }

    /// What went through its way out since it was opened.
    pub fn traffic(&self, owner: &str, id: &str) -> Result<Counters, LifeError> {
        let live = self.slot(owner, id)?.live();
        Ok(live.and_then(|live| live.sandbox.outward().map(|outward| outward.counters())).unwrap_or_default())
    }

    pub(super) fn note_policy<T: serde::Serialize>(&self, record: &Record, policy: &str, before: &T, after: &T) {
        let digest = |value: &T| sloplet_ledger::sha256(&serde_json::to_vec(value).unwrap_or_default());
        let event = PolicyChanged {
            policy: policy.into(),
            before: digest(before).into(),
            after: digest(after).into(),
            value: serde_json::to_value(after).unwrap_or_default(),
        };
        self.note(record, Event::PolicyChanged(event));
    }

    /// Writes down what happened to a sandbox, whether it has a machine or not.
    pub(super) fn note(&self, record: &Record, event: Event) {
        Journal::new(self.0.engine.ledger(), &record.id, &format!("key:{}", record.owner)).note(event);
    }

    pub(super) fn note_state(&self, record: &Record, from: State, reason: Option<&str>) {
        self.note(
            record,
            Event::SandboxChanged(SandboxChanged {
                from: from.name().into(),
                to: record.state.name().into(),
                reason: reason.map(Into::into),
            }),
        );
    }

    /// `changing` is held.
    pub(super) async fn freeze(&self, slot: &Arc<Slot>) -> Result<Record, LifeError> {
        let record = slot.record();
        let (State::Running, Some(live)) = (record.state, slot.live()) else {
            return Err(LifeError::Conflict(format!("sandbox '{}' is not running", record.id)));
        };
        live.sandbox.pause(true).await?;
        // Before it is paused for whoever looks: nobody may end it then because its time is over.
        self.set_deadline(&live, None, OnTimeout::Destroy).await;
        let now = now_ms();
        let written = slot.update(&self.0.records, |record| {
            record.state = State::Paused;
            record.remaining_ms = record.ends_ms.take().map(|ends| ends.saturating_sub(now));
        });
        let record = match written {
            Ok(record) => record,
            Err(error) => {
                // It runs, as it is remembered.
                let _ = live.sandbox.pause(false).await;
                self.schedule(slot).await;
                return Err(error);
            }
        };
        self.note_state(&record, State::Running, None);
        self.0.rescheduled.notify_one();
        self.save_meanwhile(slot);
        Ok(record)
    }

    /// `changing` is held.
    async fn wake(&self, slot: &Arc<Slot>) -> Result<(), LifeError> {
        let record = slot.record();
        if slot.is_gone() {
            return Err(LifeError::no_sandbox(&record.id));
        }
        slot.wakes.fetch_add(1, Ordering::Relaxed);
        match (record.state, slot.live()) {
            (State::Paused, Some(live)) => self.thaw(slot, &live).await?,
            (State::Stopped, _) => drop(self.bring_up(slot).await?),
            (state, _) => {
                return Err(LifeError::Conflict(format!("sandbox '{}' is {}", record.id, state.name())));
            }
        }
        self.note_state(&slot.record(), record.state, None);
        if let Some(saved) = record.saved {
            let (this, slot) = (self.clone(), slot.clone());
            tokio::spawn(async move {
                // A fork may be about to use it.
                let _saving = slot.saving.lock().await;
                this.drop_image(&saved);
            });
        }
        slot.activity.touch();
        Ok(())
    }

    /// Lets a paused one go on, and remembers that. `changing` is held.
    async fn thaw(&self, slot: &Arc<Slot>, live: &Arc<Live>) -> Result<(), LifeError> {
        live.sandbox.pause(false).await?;
        let now = now_ms();
        let written = slot.update(&self.0.records, |record| {
            record.state = State::Running;
            record.started_ms = now;
            if let Some(remaining) = record.remaining_ms.take() {
                // One whose time was over gets it anew: it was woken to be used.
                let usual = record.request.timeout.map_or(0, |timeout| timeout.as_millis() as u64);
                let rest = if remaining == 0 { usual } else { remaining };
                record.ends_ms = Some(now.saturating_add(rest));
            }
            // What was saved is older than what will be written now.
            record.saved = None;
        });
        if let Err(error) = written {
            // It stands still, as it is remembered.
            live.sandbox.pause(true).await?;
            return Err(error);
        }
        Ok(())
    }

    /// `changing` is held.
    pub(super) async fn end(&self, slot: &Arc<Slot>) -> Result<(), LifeError> {
        let record = slot.record();
        if slot.is_gone() {
            return Err(LifeError::no_sandbox(&record.id));
        }
        let overdue = record.ends_ms.is_some_and(|ends| ends <= now_ms());
        // First the record: a server that starts anew destroys a machine that nobody remembers. Its slot stays until the
        // machine is gone: nobody else may have its name and its volumes before.
        reach(Point::BeforeRecordRemoved);
        self.0.records.remove(&record.id)?;
        reach(Point::AfterRecordRemoved);
        slot.set_gone(true);
        if let Some(live) = slot.set_live(None) {
            if let Err(error) = live.sandbox.tear_down().await {
                // It is still there, and so is whoever wants it to end.
                slot.set_live(Some(live));
                slot.set_gone(false);
                self.0.records.put(&record)?;
                return Err(error.into());
            }
            self.release_layers(live);
        }
        let reason = if overdue { "its time was over" } else { "it was asked to end" };
        self.note_gone(&record, reason);
        if let Some(saved) = &record.saved {
            self.drop_image(saved);
        }
        self.leave(&record.id)
    }

    pub(super) fn note_gone(&self, record: &Record, reason: &str) {
        let lifetime_ms = now_ms().saturating_sub(record.created_ms);
        self.note(record, Event::SandboxGone(SandboxGone { reason: reason.into(), lifetime_ms }));
    }

    /// Tells the spawner when its time is over, for when there is no server then.
    pub(super) async fn schedule(&self, slot: &Arc<Slot>) {
        self.0.rescheduled.notify_one();
        let record = slot.record();
        let Some(live) = slot.live() else { return };
        let (deadline, then) = match record.state {
            State::Running => (record.ends_ms.map(|ends| until_ms(ends) + GRACE), record.request.on_timeout),
            _ => (None, OnTimeout::Destroy),
        };
        self.set_deadline(&live, deadline, then).await;
    }

    async fn set_deadline(&self, live: &Live, deadline: Option<Duration>, then: OnTimeout) {
        let then = match then {
            OnTimeout::Destroy => Overdue::Destroy,
            // Saving its files takes a server: the next one finds it paused.
            OnTimeout::Pause | OnTimeout::Stop => Overdue::Freeze,
        };
        // A wall that cannot do that leaves it to the registry.
        reach(Point::BeforeDeadline);
        let _ = live.sandbox.machine().set_deadline(deadline, then).await;
        reach(Point::AfterDeadline);
    }

    /// Notices when its machine ends by itself.
    pub(super) fn watch(&self, slot: &Arc<Slot>, live: Arc<Live>) {
        let (slot, registry) = (Arc::downgrade(slot), Arc::downgrade(&self.0));
        tokio::spawn(async move {
            let end = live.sandbox.machine().ended().await;
            let (Some(slot), Some(registry)) = (slot.upgrade(), registry.upgrade()) else { return };
            let _changing = slot.changing.lock().await;
            // Destroyed on purpose, or replaced.
            if !slot.live().is_some_and(|current| Arc::ptr_eq(&current, &live)) {
                return;
            }
            let this = Self(registry);
            slot.set_live(None);
            this.release_layers(live);
            let record = slot.record();
            let result = if end.timed_out {
                this.note_gone(&record, "its time was over");
                this.forget(&record.id)
            } else {
                tracing::warn!(sandbox = record.id, oom_kills = end.oom_kills, "a sandbox ended by itself");
                slot.update(&this.0.records, |record| {
                    record.state = if record.saved.is_some() { State::Stopped } else { State::Failed };
                    record.failure = Some(why(&end));
                    record.ends_ms = None;
                })
                .map(|ended| this.note_state(&ended, record.state, Some(&why(&end))))
            };
            if let Err(error) = result {
                tracing::error!(%error, sandbox = record.id, "cannot remember the end of a sandbox");
            }
        });
    }
}

fn why(end: &End) -> String {
    if end.over_disk {
        return "it wrote more than it may".into();
    }
    match end.oom_kills {
        0 => "its first process ended".into(),
        _ => "it ran out of memory".into(),
    }
}
