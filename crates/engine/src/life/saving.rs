//! Snapshots and forks.
//!
//! While a sandbox is paused its files stand still, so they are saved in the background: forks of it then start at once,
//! and its files outlive its machine. Waking it gives that up.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use sloplet_image::{ImageConfig, Pattern};
use tokio::sync::MutexGuard;

use super::error::LifeError;
use super::record::{NewSandbox, Record, State};
use super::sandboxes::{Quota, Sandboxes, Slot};
use super::snapshot::{Memory, Snapshot, image_name};
use crate::driver::SnapshotReport;
use crate::engine::{SavedMemory, new_id};
use crate::failpoint::{Point, reach};

/// Not for every short pause.
const SAVE_AFTER: Duration = Duration::from_millis(500);

/// The folder of saved memories, below the data.
pub(super) const MEMORY: &str = "memory";

/// How names of images begin that a fork starts from and nobody else.
pub(super) const FORK: &str = "fork-";

/// How names of images begin that hold the files of a paused or stopped sandbox.
pub(super) const SAVED: &str = "saved-";

/// Most forks at once.
const FORKS: usize = 100;

impl Sandboxes {
    /// Saves its files as an image; a name may be given. Its processes are frozen meanwhile.
    pub async fn snapshot(
        &self,
        owner: &str,
        id: &str,
        name: Option<&str>,
        metadata: BTreeMap<String, String>,
    ) -> Result<Snapshot, LifeError> {
        let slot = self.to_be_saved(owner, id, name)?;
        let (this, name) = (self.clone(), name.map(str::to_owned));
        self.carry_out(async move {
            let id = new_id();
            let report = this.save(&slot, &image_name(&id), |_| ()).await?;
            let snapshot = Snapshot::of(&slot.record(), id, name, metadata, &report);
            if let Err(error) = this.remember_snapshot(&snapshot) {
                this.drop_image(&snapshot.image());
                return Err(error);
            }
            Ok(snapshot)
        })
        .await
    }

    /// Saves its files but for what fits one of the patterns, which the snapshot tells.
    pub async fn snapshot_without(
        &self,
        owner: &str,
        id: &str,
        name: Option<&str>,
        metadata: BTreeMap<String, String>,
        excluded: Vec<String>,
    ) -> Result<Snapshot, LifeError> {
        let patterns: Result<Vec<Pattern>, String> = excluded.iter().map(|text| Pattern::new(text)).collect();
        let patterns = patterns.map_err(LifeError::Invalid)?;
        let slot = self.to_be_saved(owner, id, name)?;
        let (this, name) = (self.clone(), name.map(str::to_owned));
        self.carry_out(async move {
            let _saving = slot.saving.lock().await;
            let _changing = slot.changing.lock().await;
            let record = slot.record();
            let (State::Running, Some(live)) = (record.state, slot.live()) else {
                let message = format!("sandbox '{}' is {}: resume it first", record.id, record.state.name());
                return Err(LifeError::Conflict(message));
            };
            let (id, config) = (new_id(), live.sandbox.image().config.clone());
            let image = image_name(&id);
            let (_, report) = this.0.engine.snapshot_without(&live.sandbox, Some(&image), config, &patterns).await?;
            let snapshot = Snapshot { excluded, ..Snapshot::of(&record, id, name, metadata, &report) };
            if let Err(error) = this.remember_snapshot(&snapshot) {
                this.drop_image(&snapshot.image());
                return Err(error);
            }
            Ok(snapshot)
        })
        .await
    }

    /// Saves its files and its processes with their memory. They stand still meanwhile; connections to it break, and commands
    /// that somebody waits for end.
    pub async fn snapshot_with_memory(
        &self,
        owner: &str,
        id: &str,
        name: Option<&str>,
        metadata: BTreeMap<String, String>,
    ) -> Result<Snapshot, LifeError> {
        let slot = self.to_be_saved(owner, id, name)?;
        let (this, name) = (self.clone(), name.map(str::to_owned));
        self.carry_out(async move {
            let _saving = slot.saving.lock().await;
            let _changing = slot.changing.lock().await;
            let record = slot.record();
            let (State::Running, Some(live)) = (record.state, slot.live()) else {
                let message = format!("sandbox '{}' is {}: resume it first", record.id, record.state.name());
                return Err(LifeError::Conflict(message));
            };
            let id = new_id();
            let (folder, config) = (this.memory_folder(&id), live.sandbox.image().config.clone());
            let saved = this.0.engine.checkpoint(&live.sandbox, &folder, Some(&image_name(&id)), config).await;
            // However it went, the old connection may be broken.
            live.sandbox.renew().await?;
            let (_, memory, report) = saved?;
            live.processes.find_again().await?;
            let mut request = record.request.clone();
            request.template = Some(record.template().to_owned());
            let snapshot = Snapshot {
                memory: Some(Memory { driver: memory.driver, bytes: report.memory_bytes, request }),
                ..Snapshot::of(&record, id, name, metadata, &report.files)
            };
            if let Err(error) = this.remember_snapshot(&snapshot) {
                this.drop_image(&snapshot.image());
                let _ = std::fs::remove_dir_all(&memory.folder);
                return Err(error);
            }
            Ok(snapshot)
        })
        .await
    }

    fn remember_snapshot(&self, snapshot: &Snapshot) -> Result<(), LifeError> {
        reach(Point::BeforeSnapshotRecord);
        self.0.snapshots.insert(snapshot)?;
        reach(Point::AfterSnapshotRecord);
        Ok(())
    }

    /// A sandbox of which a snapshot of that name can be taken.
    fn to_be_saved(&self, owner: &str, id: &str, name: Option<&str>) -> Result<Arc<Slot>, LifeError> {
        let slot = self.slot(owner, id)?;
        match name {
            Some(name) if self.0.snapshots.named(owner, name)?.is_some() => {
                Err(LifeError::Conflict(format!("there is a snapshot '{name}' already")))
            }
            _ => Ok(slot),
        }
    }

    /// Makes `count` sandboxes that go on from a snapshot with memory. Volumes that the original may write to are not theirs.
    pub async fn fork_snapshot(
        &self,
        owner: &str,
        id: &str,
        count: usize,
        quota: &Quota,
        change: &(dyn Fn(&mut NewSandbox) + Send + Sync),
    ) -> Result<Vec<Result<Record, LifeError>>, LifeError> {
        if count == 0 || count > FORKS {
            return Err(LifeError::Invalid(format!("1 to {FORKS} forks can be made at once")));
        }
        let snapshot = self.get_snapshot(owner, id)?;
        let Some(memory) = &snapshot.memory else {
            let message = format!("snapshot '{id}' has no memory: make sandboxes from it with its name as the image");
            return Err(LifeError::Invalid(message));
        };
        if memory.request.volumes.iter().any(|mount| !mount.read_only) {
            let message = "its original can write to a volume, which two sandboxes cannot: make one without it";
            return Err(LifeError::Conflict(message.into()));
        }
        let mut request = memory.request.clone();
        request.spec.image = snapshot.image();
        request.memory = Some(snapshot.id.clone());
        request.name = None;
        request.idempotency_key = None;
        request.pool = None;
        let fork = |_| {
            // For each: their names must differ.
            let mut request = request.clone();
            change(&mut request);
            self.create(owner, request, quota)
        };
        Ok(join_all((0..count).map(fork)).await)
    }

    /// The memory of a snapshot.
    pub(super) fn memory_of(&self, owner: &str, id: &str) -> Result<SavedMemory, LifeError> {
        let snapshot = self.get_snapshot(owner, id)?;
        let driver = snapshot.memory.map(|memory| memory.driver);
        let driver = driver.ok_or_else(|| LifeError::Invalid(format!("snapshot '{id}' has no memory")))?;
        Ok(SavedMemory { driver, folder: self.memory_folder(&snapshot.id) })
    }

    fn memory_folder(&self, id: &str) -> PathBuf {
        self.0.engine.places().data.join(MEMORY).join(id)
    }

    /// Saves its files as an image of that name, with a changed configuration.
    pub async fn save_as(
        &self,
        owner: &str,
        id: &str,
        image: &str,
        adjust: impl FnOnce(&mut ImageConfig) + Send + 'static,
    ) -> Result<(), LifeError> {
        let slot = self.slot(owner, id)?;
        let (this, image) = (self.clone(), image.to_owned());
        self.carry_out(async move { this.save(&slot, &image, adjust).await.map(|_| ()) }).await
    }

    /// Makes `count` sandboxes that start from its files. Volumes that it may write to are not theirs.
    pub async fn fork(
        &self,
        owner: &str,
        id: &str,
        count: usize,
        quota: &Quota,
        change: &(dyn Fn(&mut NewSandbox) + Send + Sync),
    ) -> Result<Vec<Result<Record, LifeError>>, LifeError> {
        if count == 0 || count > FORKS {
            return Err(LifeError::Invalid(format!("1 to {FORKS} forks can be made at once")));
        }
        let slot = self.slot(owner, id)?;
        let saving = slot.saving.lock().await;
        self.save_paused(&slot, &saving).await?;
        let source = slot.record();
        let (image, temporary) = match (&source.saved, source.state) {
            (Some(saved), State::Paused | State::Stopped) => (saved.clone(), false),
            _ => {
                let image = format!("{FORK}{}", new_id());
                let (this, slot, name) = (self.clone(), slot.clone(), image.clone());
                self.carry_out(async move { this.save_running(&slot, &name, |_| ()).await }).await?;
                (image, true)
            }
        };
        let values = self.values_of(&source)?;
        let mut request = source.request.clone();
        request.template = Some(source.template().to_owned());
        request.spec.image.clone_from(&image);
        request.name = None;
        request.idempotency_key = None;
        request.pool = None;
        request.volumes.retain(|mount| mount.read_only);
        if request.spec.lacks("forked-limits") {
            (request.spec.limits, request.spec.network) = Default::default();
        }
        let fork = |_| {
            // For each: their names must differ.
            let mut request = request.clone();
            change(&mut request);
            self.create_with(owner, request, values.clone(), quota)
        };
        let forks = join_all((0..count).map(fork)).await;
        if temporary {
            self.drop_image(&image);
        }
        drop(saving);
        Ok(forks)
    }

    /// An owner's snapshots, newest first.
    pub fn snapshots(&self, owner: &str) -> Result<Vec<Snapshot>, LifeError> {
        Ok(self.0.snapshots.of(owner)?)
    }

    /// Finds a snapshot by id or name.
    pub fn get_snapshot(&self, owner: &str, id: &str) -> Result<Snapshot, LifeError> {
        let found = match self.0.snapshots.get(id)?.filter(|snapshot| snapshot.owner == owner) {
            Some(snapshot) => Some(snapshot),
            None => self.0.snapshots.named(owner, id)?,
        };
        found.ok_or_else(|| LifeError::NotFound { kind: "snapshot", id: id.to_owned() })
    }

    /// Forgets a snapshot. Sandboxes made from it are not touched.
    pub fn remove_snapshot(&self, owner: &str, id: &str) -> Result<(), LifeError> {
        let snapshot = self.get_snapshot(owner, id)?;
        self.0.snapshots.remove(&snapshot.id)?;
        reach(Point::AfterSnapshotForgotten);
        self.drop_image(&snapshot.image());
        if snapshot.memory.is_some() {
            let _ = std::fs::remove_dir_all(self.memory_folder(&snapshot.id));
        }
        Ok(())
    }

    /// Saves the files of a sandbox that was just paused, unless it is woken soon.
    pub(super) fn save_meanwhile(&self, slot: &Arc<Slot>) {
        let (registry, slot) = (Arc::downgrade(&self.0), Arc::downgrade(slot));
        tokio::spawn(async move {
            tokio::time::sleep(SAVE_AFTER).await;
            let (Some(registry), Some(slot)) = (registry.upgrade(), slot.upgrade()) else { return };
            let saving = slot.saving.lock().await;
            if let Err(error) = Self(registry).save_paused(&slot, &saving).await {
                tracing::debug!(%error, sandbox = slot.record().id, "its files were not saved");
            }
        });
    }

    /// Saves the files of a paused sandbox, if they are not. Nothing happens to one that is not paused.
    pub(super) async fn save_paused(&self, slot: &Arc<Slot>, _saving: &MutexGuard<'_, ()>) -> Result<(), LifeError> {
        let record = slot.record();
        let (State::Paused, None, Some(live)) = (record.state, &record.saved, slot.live()) else { return Ok(()) };
        let wakes = slot.wakes.load(Ordering::Relaxed);
        let image = format!("{SAVED}{}", new_id());
        let config = live.sandbox.image().config.clone();
        let saved = self.0.engine.snapshot(&live.sandbox, Some(&image), config).await;
        let _changing = slot.changing.lock().await;
        let current = slot.record().state == State::Paused && slot.wakes.load(Ordering::Relaxed) == wakes;
        match saved {
            Ok(_) if current => {
                slot.update(&self.0.records, |record| record.saved = Some(image))?;
            }
            Ok(_) => self.drop_image(&image),
            // Woken meanwhile: that is what gives up the copying.
            Err(_) if !current => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    async fn save(
        &self,
        slot: &Arc<Slot>,
        image: &str,
        adjust: impl FnOnce(&mut ImageConfig),
    ) -> Result<SnapshotReport, LifeError> {
        let saving = slot.saving.lock().await;
        self.save_paused(slot, &saving).await?;
        let record = slot.record();
        match (&record.saved, record.state) {
            (Some(saved), State::Paused | State::Stopped) => {
                let images = self.0.engine.images()?;
                let known = images.name_again(saved, image, adjust)?;
                let base = record.image.map_or(0, |image| image.size_bytes);
                Ok(SnapshotReport { bytes: known.size_bytes.saturating_sub(base), ..SnapshotReport::default() })
            }
            _ => self.save_running(slot, image, adjust).await,
        }
    }

    /// Freezes it, saves its files, and lets it go on.
    async fn save_running(
        &self,
        slot: &Arc<Slot>,
        image: &str,
        adjust: impl FnOnce(&mut ImageConfig),
    ) -> Result<SnapshotReport, LifeError> {
        let _changing = slot.changing.lock().await;
        let record = slot.record();
        let (State::Running | State::Paused, Some(live)) = (record.state, slot.live()) else {
            return Err(LifeError::Conflict(format!("sandbox '{}' is {}", record.id, record.state.name())));
        };
        let mut config = live.sandbox.image().config.clone();
        adjust(&mut config);
        let (_, report) = self.0.engine.snapshot(&live.sandbox, Some(image), config).await?;
        Ok(report)
    }

    /// Forgets an image that was made here.
    pub(super) fn drop_image(&self, image: &str) {
        reach(Point::BeforeImageDropped);
        let removed = self.0.engine.images().and_then(|images| images.remove(image));
        reach(Point::AfterImageDropped);
        if let Err(error) = removed {
            tracing::warn!(%error, image, "cannot remove an image");
        }
    }
}
