//! Making sandboxes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sloplet_policy::{Bind, Span, Spec};
use tokio::sync::OwnedMutexGuard;

use super::clock::now_ms;
use super::error::LifeError;
use super::live::Live;
use super::pool::Source;
use super::pool::claim::Claim;
use super::private::Values;
use super::record::{NewSandbox, Record, State, VolumeMount};
use super::sandboxes::{Quota, Sandboxes, Slot};
use super::tenant::tenant_of;
use super::volume::Volume;
use crate::engine::{EngineError, SavedMemory, new_id, new_secret};
use crate::failpoint::{Point, reach};
use crate::outward::Patron;
use crate::outward::private::Private;
use crate::sandbox::{Command, Sandbox};

/// How long a sandbox may take to become ready.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// How long after a claim that is done which nobody waits for.
const AFTERWARDS: Duration = Duration::from_millis(10);

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
        let radius = self.0.engine.radius();
        radius.check_env(&request.spec.env).map_err(EngineError::from)?;
        radius.check_spec(&request.spec).map_err(EngineError::from)?;
        if !request.spec.mounts.is_empty() {
            self.0.engine.check_mounts(&mut request.spec.clone())?;
        }
        // A machine that does not answer is not asked again.
        loop {
            if let Some(record) = self.attempt(owner, &request, &values, quota).await? {
                return Ok(record);
            }
        }
    }

    /// Makes a sandbox, out of a machine that waits or anew; `None` if that machine was not well.
    async fn attempt(
        &self,
        owner: &str,
        request: &NewSandbox,
        values: &Values,
        quota: &Quota,
    ) -> Result<Option<Record>, LifeError> {
        let mut claim = match self.is_known(owner, request) {
            true => None,
            false => self.claim(owner, request).await?,
        };
        let machine = claim.as_ref().and_then(Claim::machine);
        let id = machine.map_or_else(new_id, str::to_owned);
        let (slot, changing) = match self.reserve(owner, id, request.clone(), quota, claim.as_ref()) {
            Ok(Reserved::New(slot, changing)) => (slot, changing),
            other => {
                drop(claim);
                let slot = match other? {
                    Reserved::New(slot, _) | Reserved::Known(slot) => slot,
                };
                // Asked for before: wait until it is made, or not.
                drop(slot.changing.lock().await);
                let record = slot.record();
                return match record.state {
                    State::Creating => Err(LifeError::Conflict("it could not be made: try again".into())),
                    _ => Ok(Some(record)),
                };
            }
        };
        let (this, values) = (self.clone(), values.clone());
        let making = async move {
            let _changing = changing;
            let record = slot.record();
            let id = record.id.clone();
            if let Some(claim) = &mut claim
                && !claim.answers().await
            {
                this.forget(&id)?;
                return Ok(None);
            }
            let trusting = claim.as_ref().is_some_and(Claim::is_trusting);
            let warm = claim.as_mut().and_then(Claim::take);
            let made = match this.keep_secrets(&record, &values, trusting) {
                Ok(private) => this.bring_up_warm(&slot, claim.as_mut(), warm, private).await,
                Err(error) => {
                    if let Some(warm) = warm {
                        let _ = warm.machine().destroy().await;
                    }
                    Err(error)
                }
            };
            if let Some(claim) = claim {
                claim.finish(made.as_ref().map_or(Source::ColdStart, |(_, source)| *source), made.is_ok());
            }
            match made {
                Ok((record, _)) => Ok(Some(record)),
                Err(error) => {
                    if let Some(live) = slot.set_live(None) {
                        let _ = live.sandbox.tear_down().await;
                    }
                    this.0.pools.warm.remove(&id)?;
                    this.forget(&id)?;
                    Err(error)
                }
            }
        };
        self.carry_out(making).await
    }

    /// Gives a slot the machine that was claimed for it, if there is one and it can become what was asked for; otherwise one
    /// is made, if that is what the pool does then.
    async fn bring_up_warm(
        &self,
        slot: &Arc<Slot>,
        claim: Option<&mut Claim>,
        warm: Option<Sandbox>,
        private: Private,
    ) -> Result<(Record, Source), LifeError> {
        let Some(warm) = warm else {
            return Ok((self.bring_up_with(slot, None, private).await?, Source::ColdStart));
        };
        let record = slot.record();
        let mut spec = record.request.spec.clone();
        spec.limits.timeout = FOREVER;
        let volumes = match self.binds_of(&record) {
            Ok(volumes) => volumes,
            Err(error) => {
                let _ = warm.machine().destroy().await;
                return Err(error);
            }
        };
        match Box::pin(self.0.engine.claim(warm, spec, volumes)).await {
            Ok(warm) => {
                reach(Point::AfterClaimed);
                Ok((self.bring_up_with(slot, Some(warm), private).await?, Source::Pool))
            }
            Err(error) => {
                tracing::warn!(%error, sandbox = record.id, "a machine of a pool cannot become what was asked for");
                let Some(claim) = claim.filter(|claim| claim.may_be_made()) else { return Err(error.into()) };
                claim.failed_to_fit(&record.request);
                Ok((self.bring_up_with(slot, None, private).await?, Source::ColdStart))
            }
        }
    }

    /// Whether the same was asked for before, by its idempotency key.
    fn is_known(&self, owner: &str, request: &NewSandbox) -> bool {
        let same = |record: &Record| record.owner == owner && record.request.idempotency_key == request.idempotency_key;
        request.idempotency_key.is_some() && self.slots().values().any(|slot| slot.with_record(same))
    }

    /// Takes the id, the name, the volumes and the share of the quota.
    fn reserve(
        &self,
        owner: &str,
        id: String,
        request: NewSandbox,
        quota: &Quota,
        claim: Option<&Claim>,
    ) -> Result<Reserved, LifeError> {
        let wanted = request.volumes.iter().map(|mount| self.0.volumes.get(owner, &mount.volume));
        let volumes: Vec<Volume> = wanted.collect::<Result<_, _>>()?;
        let mut slots = self.slots();
        // Looked at where they are: there may be thousands.
        let (mut count, mut memory, mut known, mut named) = (0u64, 0u64, None, false);
        for slot in slots.values() {
            slot.with_record(|record| {
                if tenant_of(&record.owner) == tenant_of(owner) {
                    count += 1;
                    memory = memory.saturating_add(record.request.spec.limits.memory.0);
                }
                if record.owner != owner {
                    return;
                }
                named |= request.name.is_some() && record.request.name == request.name;
                if request.idempotency_key.is_some() && record.request.idempotency_key == request.idempotency_key {
                    known = Some((slot.clone(), record.request == request));
                }
            });
        }
        if let (Some((slot, same)), Some(key)) = (known, &request.idempotency_key) {
            if !same {
                let message = format!("the idempotency key '{key}' was used for another request");
                return Err(LifeError::Conflict(message));
            }
            return Ok(Reserved::Known(slot));
        }
        if let Some(name) = request.name.as_ref().filter(|_| named) {
            return Err(LifeError::Conflict(format!("there is a sandbox '{name}' already")));
        }
        if quota.sandboxes.is_some_and(|most| count >= most) {
            return Err(LifeError::Quota(format!("this key may have {count} sandboxes at once, and has them")));
        }
        let more = request.spec.limits.memory.0;
        if quota.memory.is_some_and(|most| memory.saturating_add(more) > most) {
            let message = format!("this key's sandboxes have {memory} bytes of memory, {more} more are too many");
            return Err(LifeError::Quota(message));
        }
        let existing: Vec<Record> = match request.volumes.is_empty() {
            true => Vec::new(),
            false => slots.values().map(|slot| slot.record()).collect(),
        };
        for (volume, mount) in volumes.iter().zip(&request.volumes) {
            if self.leaving().contains(&volume.id) {
                return Err(LifeError::NotFound { kind: "volume", id: mount.volume.clone() });
            }
            check_free(volume, mount, &existing)?;
        }
        let now = now_ms();
        let record = Record {
            id,
            owner: owner.to_owned(),
            state: State::Creating,
            ends_ms: request.timeout.map(|timeout| now.saturating_add(timeout.as_millis() as u64)),
            request,
            image: None,
            origin: None,
            saved: None,
            token: new_secret(),
            created_ms: now,
            started_ms: now,
            remaining_ms: None,
            failure: None,
            claimed_from: claim.map(|claim| claim.pool().to_owned()),
        };
        let slot = Arc::new(Slot::new(record.clone(), None));
        // Before anybody can find it: whoever does waits until it is made.
        let changing = slot.changing.clone().try_lock_owned();
        let changing = changing.map_err(|_| LifeError::Conflict("it is changing: try again".into()))?;
        slots.insert(record.id.clone(), slot.clone());
        // Everything is taken: what follows waits for the disk, and nobody should wait for that.
        drop(slots);
        if let Err(error) = self.write_down(&record, claim) {
            self.slots().remove(&record.id);
            return Err(error);
        }
        Ok(Reserved::New(slot, changing))
    }

    /// Remembers a sandbox that is about to be made, unless one of its volumes was removed meanwhile.
    fn write_down(&self, record: &Record, claim: Option<&Claim>) -> Result<(), LifeError> {
        for mount in &record.request.volumes {
            self.0.volumes.get(&record.owner, &mount.volume)?;
        }
        reach(Point::BeforeRecord);
        match claim.filter(|claim| claim.machine().is_some()) {
            // Written when it is made: a server that starts anew before that finds a machine that waits.
            Some(claim) if claim.leaves_no_trace(&record.request) => {}
            // Nobody else can claim the machine from here on, whatever happens to this server.
            Some(_) => self.0.records.put_instead_of(record, &self.0.pools.warm)?,
            None => self.0.records.insert(record)?,
        }
        reach(Point::AfterRecord);
        Ok(())
    }

    /// Gives the slot of a stopped sandbox a machine. If that fails it is stopped as before.
    pub(super) async fn bring_up(&self, slot: &Arc<Slot>) -> Result<Record, LifeError> {
        let private = self.secrets_of(&slot.record())?;
        let made = self.bring_up_with(slot, None, private).await;
        if made.is_err()
            && let Some(live) = slot.set_live(None)
        {
            let _ = live.sandbox.tear_down().await;
        }
        made
    }

    /// Gives a slot a machine: one that was made ahead, and is what it asks for by now; or a new one.
    async fn bring_up_with(
        &self,
        slot: &Arc<Slot>,
        warm: Option<Sandbox>,
        mut private: Private,
    ) -> Result<Record, LifeError> {
        let record = slot.record();
        let mut spec = record.request.spec.clone();
        spec.limits.timeout = FOREVER;
        if let Some(saved) = &record.saved {
            spec.image = saved.clone();
        }
        if private.is_late() {
            private = private.in_time();
            self.keep_private(&record.id, &record.owner, &private)?;
        }
        let patron = self.patron(&record, private);
        // Once: what was stopped starts afresh on its files.
        let memory = match (&record.request.memory, &record.saved) {
            (Some(snapshot), None) => Some(self.memory_of(&record.owner, snapshot)?),
            _ => None,
        };
        let ahead = warm.is_some();
        let sandbox = match warm {
            Some(warm) => warm,
            // In a box: those who claim one should not carry its size along.
            None => Box::pin(self.make(&record, spec, memory.as_ref(), &patron)).await?,
        };
        let sandbox = self.0.engine.settle(sandbox, &patron).await?;
        reach(Point::AfterSettled);
        let image = sandbox.image().clone();
        let live = Arc::new(Live::new(sandbox, self.0.engine.allowances().of(&record.owner)));
        slot.set_live(Some(live.clone()));
        let started = ahead && live.sandbox.image().config.start.is_some();
        match (memory, ahead) {
            (None, true) if !started => {}
            (Some(_), _) | (None, true) => Box::pin(live.processes.find_again()).await?,
            (None, false) => Box::pin(self.start_service(&record, &live)).await?,
        }
        let now = now_ms();
        let timeout = record.request.timeout.map(|timeout| timeout.as_millis() as u64);
        let remember = |record: &Record| match ahead {
            true => self.0.records.put_instead_of(record, &self.0.pools.warm),
            false => self.0.records.put(record),
        };
        let updated = slot.update_by(remember, |record| {
            record.state = State::Running;
            let before = record.image.replace(image);
            record.origin = record.origin.take().or(before);
            record.started_ms = now;
            record.remaining_ms = None;
            record.ends_ms = timeout.map(|timeout| now.saturating_add(timeout));
            // What was saved is older than what will be written now.
            record.saved = None;
        })?;
        slot.activity.touch();
        match ahead {
            // It has a deadline already. Its claimer has something to do with it now, and should not share the processor with
            // what can be done a moment later.
            true => drop(tokio::spawn({
                let (this, slot) = (self.clone(), slot.clone());
                async move {
                    tokio::time::sleep(AFTERWARDS).await;
                    this.watch(&slot, live);
                    this.schedule(&slot).await;
                }
            })),
            false => {
                self.watch(slot, live);
                self.schedule(slot).await;
            }
        }
        Ok(updated)
    }

    /// Makes a machine for a record, which goes on from a memory where there is one.
    async fn make(
        &self,
        record: &Record,
        spec: Spec,
        memory: Option<&SavedMemory>,
        patron: &Patron,
    ) -> Result<Sandbox, LifeError> {
        let volumes = self.binds_of(record)?;
        let image = self.0.engine.image_of(&spec).await?;
        let (engine, id) = (&self.0.engine, record.id.clone());
        Ok(match memory {
            Some(memory) => engine.restore_lasting(id, spec, image, volumes, memory, patron).await?,
            None => engine.create_lasting(id, spec, image, volumes, patron).await?,
        })
    }

    /// Where its volumes are.
    pub(super) fn binds_of(&self, record: &Record) -> Result<Vec<Bind>, LifeError> {
        let bind = |mount: &VolumeMount| {
            let volume = self.0.volumes.get(&record.owner, &mount.volume)?;
            let from = self.0.volumes.source_of(&volume);
            let bind = Bind {
                from,
                to: mount.path.clone().into(),
                writable: !mount.read_only,
                volume: true,
                ..Bind::default()
            };
            bind.check().map_err(|error| LifeError::Invalid(error.to_string()))?;
            Ok(bind)
        };
        record.request.volumes.iter().map(bind).collect()
    }

    /// Starts what the image or the request wants started, and waits until it is ready.
    async fn start_service(&self, record: &Record, live: &Arc<Live>) -> Result<(), LifeError> {
        let config = &live.sandbox.image().config;
        let (start, ready) = (&record.request.start, &record.request.ready);
        // What the image brings along starts where it always does: the folder that was asked for may be yet to be made.
        let cwd = if start.is_none() { live.sandbox.usual_workdir() } else { None };
        let Some(start) = start.as_ref().or(config.start.as_ref()) else { return Ok(()) };
        live.start(Command { tag: Some(START_TAG.into()), cwd: cwd.clone(), ..shell(start) }).await?;
        let Some(ready) = ready.as_ref().or(config.ready.as_ref()) else { return Ok(()) };
        await_ready(&live.sandbox, ready, cwd).await
    }

    /// The same, for a machine that nobody has claimed: whoever does finds it running.
    pub(super) async fn start_service_of_image(&self, sandbox: &Sandbox) -> Result<(), LifeError> {
        let config = &sandbox.image().config;
        let Some(start) = &config.start else { return Ok(()) };
        let cwd = sandbox.usual_workdir();
        sandbox
            .exec(Command { tag: Some(START_TAG.into()), background: true, cwd: cwd.clone(), ..shell(start) })
            .await?;
        match &config.ready {
            Some(ready) => await_ready(sandbox, ready, cwd).await,
            None => Ok(()),
        }
    }
}

fn shell(line: &str) -> Command {
    Command::new(["/bin/bash", "-l", "-c", line])
}

/// Runs a command again and again, in this folder or the sandbox's usual one, until it succeeds.
async fn await_ready(sandbox: &Sandbox, ready: &str, cwd: Option<String>) -> Result<(), LifeError> {
    let deadline = tokio::time::Instant::now() + READY_WITHIN;
    loop {
        let check = Command { timeout: Some(Duration::from_secs(10)), cwd: cwd.clone(), ..shell(ready) };
        let probe = sandbox.exec(check).await?;
        if probe.output(1024).await?.exit.code == Some(0) {
            return Ok(());
        }
        if tokio::time::Instant::now() > deadline {
            let tagged = |process: &sloplet_wire::ProcessInfo| process.tag.as_deref() == Some(START_TAG);
            let runs = sandbox.agent().processes().await?.iter().any(tagged);
            let state = if runs { "it runs" } else { "it has ended" };
            let message = format!("it did not become ready within {READY_WITHIN:?}; its start command: {state}");
            return Err(LifeError::Conflict(message));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

enum Reserved {
    /// With the right to change it.
    New(Arc<Slot>, OwnedMutexGuard<()>),
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
    for mount in &request.volumes {
        let place =
            Bind { from: Path::new("/").into(), to: mount.path.clone().into(), volume: true, ..Bind::default() };
        place.check().map_err(|error| LifeError::Invalid(error.to_string()))?;
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
