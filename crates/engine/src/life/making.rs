//! Making sandboxes.

use std::sync::Arc;
use std::time::Duration;

use sloplet_policy::{Bind, Span};

use super::clock::now_ms;
use super::error::LifeError;
use super::live::Live;
use super::private::Values;
use super::record::{NewSandbox, Record, State, VolumeMount};
use super::sandboxes::{Quota, Sandboxes, Slot};
use super::volume::Volume;
use crate::engine::{EngineError, new_id, new_secret};
use crate::sandbox::{Command, Sandbox};

/// How long a sandbox may take to become ready.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Most metadata.
const METADATA: usize = 64;

/// Longest name, and longest name or value of metadata.
const LONGEST: usize = 4096;

/// The spawner's own deadline is for when there is no server: sandboxes have their time from the registry.
pub(super) const FOREVER: Span = Span(Duration::from_secs(100 * 365 * 86_400));

/// The label of what an image wants started.
pub const START_TAG: &str = "start";

impl Sandboxes {
    /// Makes a sandbox and waits until it is ready. The values of its secrets come from where their rules say, on this host.
    pub async fn create(&self, owner: &str, request: NewSandbox, quota: &Quota) -> Result<Record, LifeError> {
        self.create_with(owner, request, Values::new(), quota).await
    }

    /// The same with values of secrets that whoever asks has brought along.
    pub async fn create_with(
        &self,
        owner: &str,
        mut request: NewSandbox,
        values: Values,
        quota: &Quota,
    ) -> Result<Record, LifeError> {
        check(&request)?;
        if request.spec.driver.is_some() {
            request.spec.isolation = self.0.engine.isolation_of(&request.spec)?;
        }
        // Before a machine made ahead is taken, which was checked without them.
        self.0.engine.radius().check_env(&request.spec.env).map_err(EngineError::from)?;
        // A machine that was made ahead trusts nobody's authority.
        let plain = !request.spec.is_read_along();
        let mut warm = match request.volumes.is_empty() && plain && request.memory.is_none() {
            true => self.0.warm.take(&self.0.engine, &request.spec),
            false => None,
        };
        let id = warm.as_ref().map_or_else(new_id, |warm| warm.id().to_owned());
        let reserved = self.reserve(owner, id, request, quota);
        if !matches!(reserved, Ok(Reserved::New(_)))
            && let Some(unused) = warm.take()
        {
            tokio::spawn(unused.destroy());
        }
        let slot = match reserved? {
            Reserved::New(slot) => slot,
            Reserved::Known(slot) => {
                // Asked for before: wait until it is made, or not.
                drop(slot.changing.lock().await);
                let record = slot.record();
                return match record.state {
                    State::Creating => Err(LifeError::Conflict("it could not be made: try again".into())),
                    _ => Ok(record),
                };
            }
        };
        let this = self.clone();
        self.carry_out(async move {
            let _changing = slot.changing.lock().await;
            let id = slot.record().id;
            let made = match this.keep_secrets(&slot.record(), &values) {
                Ok(_) => this.bring_up(&slot, warm).await,
                Err(error) => Err(error),
            };
            match made {
                Ok(record) => Ok(record),
                Err(error) => {
                    if let Some(live) = slot.set_live(None) {
                        let _ = live.sandbox.machine().destroy().await;
                    }
                    this.forget(&id)?;
                    Err(error)
                }
            }
        })
        .await
    }

    /// Takes the id, the name, the volumes and the share of the quota.
    fn reserve(&self, owner: &str, id: String, request: NewSandbox, quota: &Quota) -> Result<Reserved, LifeError> {
        let mut slots = self.slots();
        let existing: Vec<Record> = slots.values().map(|slot| slot.record()).collect();
        let mine = || existing.iter().filter(|record| record.owner == owner);
        if let Some(key) = &request.idempotency_key
            && let Some(known) = mine().find(|record| record.request.idempotency_key.as_ref() == Some(key))
        {
            if known.request != request {
                let message = format!("the idempotency key '{key}' was used for another request");
                return Err(LifeError::Conflict(message));
            }
            return slots.get(&known.id).cloned().map(Reserved::Known).ok_or_else(|| LifeError::no_sandbox(&known.id));
        }
        if let Some(name) = &request.name
            && mine().any(|record| record.request.name.as_ref() == Some(name))
        {
            return Err(LifeError::Conflict(format!("there is a sandbox '{name}' already")));
        }
        let count = mine().count() as u64;
        if quota.sandboxes.is_some_and(|most| count >= most) {
            return Err(LifeError::Quota(format!("this key may have {count} sandboxes at once, and has them")));
        }
        let memory = mine().map(|record| record.request.spec.limits.memory.0).sum::<u64>();
        let more = request.spec.limits.memory.0;
        if quota.memory.is_some_and(|most| memory.saturating_add(more) > most) {
            let message = format!("this key's sandboxes have {memory} bytes of memory, {more} more are too many");
            return Err(LifeError::Quota(message));
        }
        for mount in &request.volumes {
            let volume = self.0.volumes.get(owner, &mount.volume)?;
            check_free(&volume, mount, &existing)?;
        }
        let now = now_ms();
        let record = Record {
            id,
            owner: owner.to_owned(),
            state: State::Creating,
            ends_ms: request.timeout.map(|timeout| now.saturating_add(timeout.as_millis() as u64)),
            request,
            image: None,
            saved: None,
            token: new_secret(),
            created_ms: now,
            started_ms: now,
            remaining_ms: None,
            failure: None,
        };
        self.0.records.insert(&record)?;
        let slot = Arc::new(Slot::new(record.clone(), None));
        slots.insert(record.id, slot.clone());
        Ok(Reserved::New(slot))
    }

    /// Gives a slot a machine: a warm or new one, or that of a stopped sandbox.
    pub(super) async fn bring_up(&self, slot: &Arc<Slot>, warm: Option<Sandbox>) -> Result<Record, LifeError> {
        let record = slot.record();
        let mut spec = record.request.spec.clone();
        spec.limits.timeout = FOREVER;
        if let Some(saved) = &record.saved {
            spec.image = saved.clone();
        }
        let patron = self.patron(&record, self.secrets_of(&record)?);
        // Once: what was stopped starts afresh on its files.
        let memory = match (&record.request.memory, &record.saved) {
            (Some(snapshot), None) => Some(self.memory_of(&record.owner, snapshot)?),
            _ => None,
        };
        let sandbox = match warm {
            Some(warm) => warm.with_spec(spec),
            None => {
                let volumes = self.binds_of(&record)?;
                let image = self.0.engine.image_of(&spec).await?;
                let (engine, id) = (&self.0.engine, record.id.clone());
                match &memory {
                    Some(memory) => engine.restore_lasting(id, spec, image, volumes, memory, &patron).await?,
                    None => engine.create_lasting(id, spec, image, volumes, &patron).await?,
                }
            }
        };
        let sandbox = self.0.engine.settle(sandbox, &patron).await?;
        let image = sandbox.image().clone();
        let live = Arc::new(Live::new(sandbox));
        slot.set_live(Some(live.clone()));
        match memory {
            Some(_) => live.processes.find_again().await?,
            None => self.start_service(&record, &live).await?,
        }
        let now = now_ms();
        let timeout = record.request.timeout.map(|timeout| timeout.as_millis() as u64);
        let updated = slot.update(&self.0.records, |record| {
            record.state = State::Running;
            record.image = Some(image);
            record.started_ms = now;
            record.remaining_ms = None;
            record.ends_ms = timeout.map(|timeout| now.saturating_add(timeout));
        })?;
        slot.activity.touch();
        self.watch(slot, live);
        self.schedule(slot).await;
        Ok(updated)
    }

    /// Where its volumes are.
    pub(super) fn binds_of(&self, record: &Record) -> Result<Vec<Bind>, LifeError> {
        let bind = |mount: &VolumeMount| {
            let volume = self.0.volumes.get(&record.owner, &mount.volume)?;
            let from = self.0.volumes.source_of(&volume);
            let bind = Bind { from, to: mount.path.clone().into(), writable: !mount.read_only, volume: true };
            bind.check().map_err(|error| LifeError::Invalid(error.to_string()))?;
            Ok(bind)
        };
        record.request.volumes.iter().map(bind).collect()
    }

    /// Starts what the image or the request wants started, and waits until it is ready.
    async fn start_service(&self, record: &Record, live: &Arc<Live>) -> Result<(), LifeError> {
        let config = &live.sandbox.image().config;
        let (start, ready) = (&record.request.start, &record.request.ready);
        let Some(start) = start.as_ref().or(config.start.as_ref()) else { return Ok(()) };
        let shell = |line: &str| Command::new(["/bin/bash", "-l", "-c", line]);
        live.start(Command { tag: Some(START_TAG.into()), ..shell(start) }).await?;
        let Some(ready) = ready.as_ref().or(config.ready.as_ref()) else { return Ok(()) };
        let deadline = tokio::time::Instant::now() + READY_WITHIN;
        loop {
            let check = Command { timeout: Some(Duration::from_secs(10)), ..shell(ready) };
            let probe = live.sandbox.exec(check).await?;
            if probe.output(1024).await?.exit.code == Some(0) {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                let state = live.processes.tagged(START_TAG).map_or("it has ended", |_| "it runs");
                let message = format!("it did not become ready within {READY_WITHIN:?}; its start command: {state}");
                return Err(LifeError::Conflict(message));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

enum Reserved {
    New(Arc<Slot>),
    Known(Arc<Slot>),
}

fn check(request: &NewSandbox) -> Result<(), LifeError> {
    let invalid = |message: String| Err(LifeError::Invalid(message));
    if let Some(name) = &request.name {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > 128 || !name.bytes().all(fits) || !name.as_bytes()[0].is_ascii_alphanumeric()
        {
            let advice = "use up to 128 letters, digits, '-', '_' and '.', and begin with a letter or digit";
            return invalid(format!("'{name}' cannot name a sandbox: {advice}"));
        }
    }
    if request.metadata.len() > METADATA {
        return invalid(format!("at most {METADATA} metadata can be given"));
    }
    let long = |text: &String| text.len() > LONGEST;
    if request.metadata.iter().any(|(key, value)| long(key) || long(value)) {
        return invalid(format!("names and values of metadata can have {LONGEST} bytes at most"));
    }
    if request.idempotency_key.as_ref().is_some_and(long) {
        return invalid(format!("an idempotency key can have {LONGEST} bytes at most"));
    }
    request.spec.check().map_err(|error| LifeError::Invalid(error.to_string()))
}

/// One writer, or many readers.
fn check_free(volume: &Volume, wanted: &VolumeMount, existing: &[Record]) -> Result<(), LifeError> {
    for record in existing.iter().filter(|record| record.uses_volume(volume)) {
        let writes = record.request.volumes.iter().any(|mount| volume.is_called(&mount.volume) && !mount.read_only);
        if writes || !wanted.read_only {
            let message = format!(
                "sandbox '{}' has the volume '{}'{}: one may write to it, or many may read it",
                record.id,
                volume.name,
                if writes { " for writing" } else { "" }
            );
            return Err(LifeError::Conflict(message));
        }
    }
    Ok(())
}
