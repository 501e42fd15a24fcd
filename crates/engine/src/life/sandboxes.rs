//! The registry: all sandboxes of a server.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sloplet_store::{Collection, Store, StoreError};
use tokio::sync::Notify;
use tracing::Instrument as _;

use super::activity::Activity;
use super::error::LifeError;
use super::history::{self, History};
use super::lease::Lease;
use super::live::{Live, Reached};
use super::pool::Pools;
use super::private::{self, Secrets, Spent};
use super::record::{Record, State};
use super::snapshot::Snapshot;
use super::to_the_end::ToTheEnd;
use super::volume::{Volume, Volumes};
use crate::Engine;
use crate::aside::{Aside, take_away};
use crate::driver::Usage;
use crate::failpoint::{Point, reach};
use crate::outward::approvals::Approvals;

/// All sandboxes of a server; clones share them.
#[derive(Clone)]
pub struct Sandboxes(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) engine: Arc<Engine>,
    pub(super) records: Collection<Record>,
    pub(super) snapshots: Collection<Snapshot>,
    pub(super) volumes: Volumes,
    pub(super) secrets: Collection<Secrets>,
    pub(super) spent: Collection<Spent>,
    pub(super) histories: Collection<history::Written>,
    pub(super) approvals: Approvals,
    pub(super) pools: Pools,
    pub(super) slots: Mutex<HashMap<String, Arc<Slot>>>,
    /// Ids of volumes that are being removed.
    leaving: Mutex<HashSet<String>>,
    aside: Aside,
    /// Something changed about when somebody's time is over.
    pub(super) rescheduled: Notify,
}

/// A volume that is being removed, until this is dropped.
struct Leaving<'a> {
    sandboxes: &'a Sandboxes,
    volume: String,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.sandboxes.leaving().remove(&self.volume);
    }
}

/// One sandbox.
pub(super) struct Slot {
    record: Mutex<Record>,
    /// Held while a changed record is written down, which may take a while: the record itself can be read meanwhile.
    writing: Mutex<()>,
    /// None while it is being made, stopped or failed.
    live: Mutex<Option<Arc<Live>>>,
    pub(super) activity: Arc<Activity>,
    /// Until when somebody holds it.
    pub(super) lease: Lease,
    /// Held while its state changes.
    pub(super) changing: Arc<tokio::sync::Mutex<()>>,
    /// Held while its files are saved, or what was saved is used. Taken before `changing` by those who need both.
    pub(super) saving: tokio::sync::Mutex<()>,
    /// How often it was woken: what was saved before is out of date.
    pub(super) wakes: AtomicU64,
    /// It is not remembered any more: nobody may write it down again.
    gone: AtomicBool,
    history: Mutex<History>,
}

/// What a key may have at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Quota {
    /// Sandboxes that are not gone.
    pub sandboxes: Option<u64>,
    /// Sum of their memory limits, in bytes.
    pub memory: Option<u64>,
    /// Requests in a minute.
    pub requests_per_minute: Option<u32>,
}

/// Which sandboxes are wanted.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// In one of these states; all if empty.
    pub states: Vec<State>,
    /// With all of these metadata.
    pub metadata: Vec<(String, String)>,
    /// Made after this, in milliseconds since 1970.
    pub since_ms: Option<u64>,
    /// Of this template.
    pub template: Option<String>,
}

impl Filter {
    fn takes(&self, record: &Record) -> bool {
        let request = &record.request;
        let has = |(key, value): &(String, String)| request.metadata.get(key) == Some(value);
        (self.states.is_empty() || self.states.contains(&record.state))
            && self.metadata.iter().all(has)
            && self.since_ms.is_none_or(|since| record.created_ms > since)
            && self.template.as_ref().is_none_or(|template| template == record.template())
    }
}

impl Sandboxes {
    /// Opens the registry of a data folder: finds the sandboxes that an earlier server left, and removes half-made ones.
    /// At most `warm` machines wait in all pools together.
    pub async fn open(engine: Arc<Engine>, store: &Store, data: &Path, warm: Option<u32>) -> Result<Self, LifeError> {
        // Before any machine is made ahead, or it would be taken for one that was left.
        let adoption = engine.adopt().await?;
        engine.set_accounts(private::accounts(store.collection())?);
        let inner = Inner {
            volumes: Volumes::open(store, data)?,
            secrets: store.collection(),
            spent: store.collection(),
            histories: store.collection(),
            approvals: Approvals::default(),
            pools: Pools::open(store, warm)?,
            engine,
            records: store.collection(),
            snapshots: store.collection(),
            slots: Mutex::default(),
            leaving: Mutex::default(),
            aside: Aside::default(),
            rescheduled: Notify::new(),
        };
        let sandboxes = Self(Arc::new(inner));
        sandboxes.find_again(adoption).await?;
        sandboxes.sweep()?;
        sandboxes.0.volumes.forgotten()?.into_iter().for_each(|folder| sandboxes.remove_aside(folder));
        reach(Point::AfterSweep);
        tokio::spawn(super::reaper::run(Arc::downgrade(&sandboxes.0)));
        tokio::spawn(history::run(Arc::downgrade(&sandboxes.0)));
        tokio::spawn(super::pool::keep(Arc::downgrade(&sandboxes.0)));
        // Nobody waits for these.
        let restored = sandboxes.clone();
        tokio::task::spawn_blocking(move || restored.restore_histories());
        Ok(sandboxes)
    }

    /// The engine below.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }

    /// The volumes.
    pub fn volumes(&self) -> &Volumes {
        &self.0.volumes
    }

    /// Connections that wait for a person.
    pub fn approvals(&self) -> &Approvals {
        &self.0.approvals
    }

    /// Finds a sandbox by id or name.
    pub fn get(&self, owner: &str, id: &str) -> Result<Record, LifeError> {
        Ok(self.slot(owner, id)?.record())
    }

    /// The id of a sandbox, by id or name.
    pub fn id_of(&self, owner: &str, id: &str) -> Result<String, LifeError> {
        Ok(self.slot(owner, id)?.with_record(|record| record.id.clone()))
    }

    /// Finds a sandbox whoever owns it: for those who show its token.
    pub fn get_any(&self, id: &str) -> Result<Record, LifeError> {
        Ok(self.slot_of_any(id)?.record())
    }

    /// The sandbox whose token is the right one: for those who show what they made with it, and do not name the sandbox. At most
    /// so many are tried.
    pub fn find_by_token(&self, most: usize, is_right: impl Fn(&str) -> bool) -> Option<String> {
        let slots: Vec<Arc<Slot>> = self.slots().values().take(most).cloned().collect();
        slots.iter().find_map(|slot| slot.with_record(|record| is_right(&record.token).then(|| record.id.clone())))
    }

    /// An owner's sandboxes, newest first.
    pub fn list(&self, owner: &str, filter: &Filter) -> Vec<Record> {
        let mut found = self.all();
        found.retain(|record| record.owner == owner && filter.takes(record));
        found
    }

    /// Everybody's sandboxes, newest first.
    pub fn all(&self) -> Vec<Record> {
        let mut found: Vec<Record> = self.slots().values().map(|slot| slot.record()).collect();
        found.sort_unstable_by(|a, b| (b.created_ms, &a.id).cmp(&(a.created_ms, &b.id)));
        found
    }

    /// A running sandbox, to be used. One that is paused is resumed if it wakes by itself.
    pub async fn reach(&self, id: &str) -> Result<Reached, LifeError> {
        loop {
            let slot = self.slot_of_any(id)?;
            if let (State::Running, Some(live)) = (slot.with_record(|record| record.state), slot.live()) {
                return Ok(Reached { live, _in_use: slot.activity.begin() });
            }
            // It may be changing right now: look again when that is done.
            drop(slot.changing.lock().await);
            let record = slot.record();
            match record.state {
                State::Running if slot.live().is_some() => {}
                State::Paused | State::Stopped if record.request.auto_resume => {
                    let timeout = record.request.timeout;
                    self.connect(&record.owner, &record.id, timeout).await?;
                }
                State::Paused | State::Stopped => return Err(LifeError::Paused(id.to_owned())),
                _ => return Err(LifeError::no_sandbox(id)),
            }
        }
    }

    /// What it uses right now.
    pub async fn usage(&self, owner: &str, id: &str) -> Result<Usage, LifeError> {
        let slot = self.slot(owner, id)?;
        match slot.live() {
            Some(live) => Ok(live.sandbox.machine().usage().await?),
            None => Ok(Usage::default()),
        }
    }

    /// What every running sandbox uses right now.
    pub async fn usage_of_all(&self) -> Vec<(Record, Usage)> {
        let slots: Vec<Arc<Slot>> = self.slots().values().cloned().collect();
        let mut all = Vec::with_capacity(slots.len());
        for slot in slots {
            if let Some(live) = slot.live()
                && let Ok(usage) = live.sandbox.machine().usage().await
            {
                all.push((slot.record(), usage));
            }
        }
        all
    }

    /// Makes an empty volume. With a size it is a disk of its own, where this host can make one.
    pub fn create_volume(&self, owner: &str, name: &str, size: Option<u64>) -> Result<Volume, LifeError> {
        let volume = self.0.volumes.begin(owner, name, size)?;
        let made = self.fill_volume(&volume).and_then(|()| self.0.volumes.remember(&volume));
        if let Err(error) = made {
            self.0.engine.remove_folder(&self.0.volumes.home_of(&volume))?;
            return Err(error);
        }
        Ok(volume)
    }

    /// Makes the disk of a volume that has a size.
    fn fill_volume(&self, volume: &Volume) -> Result<(), LifeError> {
        let Some(bytes) = volume.size else { return Ok(()) };
        self.0.engine.make_disk(&self.0.volumes.source_of(volume), bytes)?;
        reach(Point::AfterVolumeDisk);
        Ok(())
    }

    /// Forgets a volume. Its content is out of reach at once, and goes away meanwhile. `Conflict` while a sandbox has it.
    pub fn remove_volume(&self, owner: &str, id: &str) -> Result<(), LifeError> {
        let volume = self.0.volumes.get(owner, id)?;
        let _leaving = self.let_volume_go(&volume)?;
        self.0.volumes.forget(&volume)?;
        let home = self.0.volumes.home_of(&volume);
        match take_away(&home) {
            Ok(away) => self.remove_aside(away),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(LifeError::Io(format!("cannot move {}", home.display()), error)),
        }
        reach(Point::AfterVolumeEmptied);
        Ok(())
    }

    /// Marks a volume that no sandbox has: none can take it from here on.
    fn let_volume_go(&self, volume: &Volume) -> Result<Leaving<'_>, LifeError> {
        let slots = self.slots();
        let user = slots.values().map(|slot| slot.record()).find(|record| record.uses_volume(volume));
        if let Some(user) = user {
            return Err(LifeError::Conflict(format!("sandbox '{}' has the volume '{}'", user.id, volume.name)));
        }
        if !self.leaving().insert(volume.id.clone()) {
            return Err(LifeError::NotFound { kind: "volume", id: volume.id.clone() });
        }
        Ok(Leaving { sandboxes: self, volume: volume.id.clone() })
    }

    /// Volumes that are being removed. Taken after the slots by those who need both.
    pub(super) fn leaving(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a folder that nobody finds any more, however long that takes.
    fn remove_aside(&self, folder: PathBuf) {
        let engine = self.0.engine.clone();
        self.0.aside.later(move || {
            if let Err(error) = engine.remove_folder(&folder) {
                tracing::warn!(%error, folder = %folder.display(), "cannot remove a folder: the next start tries again");
            }
        });
    }

    pub(super) fn slots(&self) -> MutexGuard<'_, HashMap<String, Arc<Slot>>> {
        self.0.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// By id or name.
    pub(super) fn slot(&self, owner: &str, id: &str) -> Result<Arc<Slot>, LifeError> {
        let slots = self.slots();
        if let Some(slot) = slots.get(id).filter(|slot| slot.with_record(|record| record.owner == owner)) {
            return Ok(slot.clone());
        }
        let named = slots.values().find(|slot| {
            let record = slot.lock_record();
            record.owner == owner && record.request.name.as_deref() == Some(id)
        });
        named.cloned().ok_or_else(|| LifeError::no_sandbox(id))
    }

    pub(super) fn slot_of_any(&self, id: &str) -> Result<Arc<Slot>, LifeError> {
        self.slots().get(id).cloned().ok_or_else(|| LifeError::no_sandbox(id))
    }

    /// Forgets a sandbox that is gone.
    pub(super) fn forget(&self, id: &str) -> Result<(), LifeError> {
        reach(Point::BeforeRecordRemoved);
        self.0.records.remove(id)?;
        reach(Point::AfterRecordRemoved);
        self.leave(id)
    }

    /// Forgets all the rest of a sandbox that is gone and has no record any more.
    pub(super) fn leave(&self, id: &str) -> Result<(), LifeError> {
        if let Some(slot) = self.slots().remove(id) {
            slot.set_gone(true);
        }
        self.0.histories.remove(id)?;
        self.forget_secrets(id)?;
        reach(Point::AfterForgotten);
        Ok(())
    }

    /// Carries out a change to the end, even if whoever asked for it does not wait.
    pub(super) async fn carry_out<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, LifeError>> + Send + 'static,
    ) -> Result<T, LifeError> {
        // In a box before it is moved: some are large.
        ToTheEnd::new(Box::pin(change).in_current_span()).await
    }
}

impl Slot {
    pub(super) fn new(record: Record, live: Option<Arc<Live>>) -> Self {
        Self {
            record: Mutex::new(record),
            writing: Mutex::default(),
            live: Mutex::new(live),
            activity: Arc::default(),
            lease: Lease::default(),
            changing: Arc::default(),
            saving: tokio::sync::Mutex::default(),
            wakes: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            history: Mutex::default(),
        }
    }

    fn lock_record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record(&self) -> Record {
        self.lock_record().clone()
    }

    /// Looks at the record without a copy of it.
    pub(super) fn with_record<T>(&self, look: impl FnOnce(&Record) -> T) -> T {
        look(&self.lock_record())
    }

    /// Changes the record, and remembers that.
    pub(super) fn update(
        &self,
        records: &Collection<Record>,
        change: impl FnOnce(&mut Record),
    ) -> Result<Record, LifeError> {
        self.update_by(|changed| records.put(changed), change)
    }

    /// The same, remembered in a way of its own.
    pub(super) fn update_by(
        &self,
        remember: impl FnOnce(&Record) -> Result<(), StoreError>,
        change: impl FnOnce(&mut Record),
    ) -> Result<Record, LifeError> {
        let _turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = self.record();
        if self.is_gone() {
            return Err(LifeError::no_sandbox(&changed.id));
        }
        change(&mut changed);
        reach(Point::BeforeRecord);
        remember(&changed)?;
        reach(Point::AfterRecord);
        *self.lock_record() = changed.clone();
        Ok(changed)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    pub(super) fn set_gone(&self, gone: bool) {
        self.gone.store(gone, Ordering::Relaxed);
    }

    pub(super) fn live(&self) -> Option<Arc<Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_live(&self, live: Option<Arc<Live>>) -> Option<Arc<Live>> {
        std::mem::replace(&mut *self.live.lock().unwrap_or_else(PoisonError::into_inner), live)
    }
}
