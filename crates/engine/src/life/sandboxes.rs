//! The registry: all sandboxes of a server.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sloplet_store::{Collection, Store, StoreError};
use tokio::sync::Notify;

use super::activity::Activity;
use super::clock::{now_ms, until_ms};
use super::error::LifeError;
use super::live::{Live, Reached};
use super::record::{NewSandbox, OnTimeout, Record, State};
use super::snapshot::Snapshot;
use super::volume::Volumes;
use crate::Engine;
use crate::engine::{new_id, new_secret};

/// All sandboxes of a server; clones share them.
#[derive(Clone)]
pub struct Sandboxes(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) engine: Arc<Engine>,
    pub(super) records: Collection<Record>,
    pub(super) volumes: Volumes,
    pub(super) slots: Mutex<HashMap<String, Arc<Slot>>>,
    /// Something changed about when somebody's time is over.
    pub(super) rescheduled: Notify,
}

/// One sandbox.
pub(super) struct Slot {
    pub(super) record: Mutex<Record>,
    pub(super) live: Mutex<Option<Arc<Live>>>,
    pub(super) activity: Arc<Activity>,
    /// Held while its state changes.
    pub(super) changing: tokio::sync::Mutex<()>,
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

impl Sandboxes {
    /// Opens the registry of a data folder: finds the sandboxes that an earlier server left, and removes half-made ones.
    pub async fn open(engine: Arc<Engine>, store: &Store, data: &Path) -> Result<Self, LifeError> {
        let inner = Inner {
            volumes: Volumes::open(store, data)?,
            engine,
            records: store.collection(),
            slots: Mutex::default(),
            rescheduled: Notify::new(),
        };
        let sandboxes = Self(Arc::new(inner));
        sandboxes.find_again().await?;
        tokio::spawn(super::reaper::run(Arc::downgrade(&sandboxes.0)));
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

    /// Makes a sandbox and waits until it is ready.
    pub async fn create(&self, owner: &str, request: NewSandbox, quota: &Quota) -> Result<Record, LifeError> {
        let _ = (owner, request, quota);
        todo!()
    }

    /// Finds a sandbox by id or name.
    pub fn get(&self, owner: &str, id: &str) -> Result<Record, LifeError> {
        Ok(self.slot(owner, id)?.record())
    }

    /// Finds a sandbox whoever owns it: for those who show its token.
    pub fn get_any(&self, id: &str) -> Result<Record, LifeError> {
        Ok(self.slot_of_any(id)?.record())
    }

    /// An owner's sandboxes, newest first.
    pub fn list(&self, owner: &str, filter: &Filter) -> Vec<Record> {
        let _ = (owner, filter);
        todo!()
    }

    /// A running sandbox, to be used. One that is paused is resumed if it wakes by itself.
    pub async fn reach(&self, id: &str) -> Result<Reached, LifeError> {
        let _ = id;
        todo!()
    }

    /// Sets how long it lives from now on; `None`: until it is destroyed.
    pub async fn set_timeout(&self, owner: &str, id: &str, timeout: Option<Duration>) -> Result<Record, LifeError> {
        let _ = (owner, id, timeout);
        todo!()
    }

    /// Resumes it if it is paused, and makes sure that it lives at least so long from now on. The flag tells whether it
    /// was resumed.
    pub async fn connect(&self, owner: &str, id: &str, timeout: Option<Duration>) -> Result<(Record, bool), LifeError> {
        let _ = (owner, id, timeout);
        todo!()
    }

    /// Freezes its processes. Its clock stands still meanwhile. `Conflict` if it does not run.
    pub async fn pause(&self, owner: &str, id: &str) -> Result<Record, LifeError> {
        let _ = (owner, id);
        todo!()
    }

    /// Goes on where `pause` stopped. `Conflict` if it runs.
    pub async fn resume(&self, owner: &str, id: &str) -> Result<Record, LifeError> {
        let _ = (owner, id);
        todo!()
    }

    /// Kills everything in it and forgets it.
    pub async fn destroy(&self, owner: &str, id: &str) -> Result<(), LifeError> {
        let _ = (owner, id);
        todo!()
    }

    /// Saves its files as an image; a name may be given. Its processes are frozen meanwhile.
    pub async fn snapshot(&self, owner: &str, id: &str, name: Option<&str>) -> Result<Snapshot, LifeError> {
        let _ = (owner, id, name);
        todo!()
    }

    /// Makes `count` sandboxes that start from its files.
    pub async fn fork(
        &self,
        owner: &str,
        id: &str,
        count: usize,
        quota: &Quota,
        change: &(dyn Fn(&mut NewSandbox) + Send + Sync),
    ) -> Result<Vec<Result<Record, LifeError>>, LifeError> {
        let _ = (owner, id, count, quota, change);
        todo!()
    }

    /// An owner's snapshots, newest first.
    pub fn snapshots(&self, owner: &str) -> Result<Vec<Snapshot>, LifeError> {
        let _ = owner;
        todo!()
    }

    /// Finds a snapshot by id or name.
    pub fn get_snapshot(&self, owner: &str, id: &str) -> Result<Snapshot, LifeError> {
        let _ = (owner, id);
        todo!()
    }

    /// Forgets a snapshot. Sandboxes made from it are not touched.
    pub fn remove_snapshot(&self, owner: &str, id: &str) -> Result<(), LifeError> {
        let _ = (owner, id);
        todo!()
    }

    /// Replaces its network rules.
    pub async fn set_network(&self, owner: &str, id: &str, rules: serde_json::Value) -> Result<(), LifeError> {
        let _ = (owner, id, rules);
        todo!()
    }

    /// What it uses right now.
    pub async fn usage(&self, owner: &str, id: &str) -> Result<crate::driver::Usage, LifeError> {
        let _ = (owner, id);
        todo!()
    }

    /// Destroys all sandboxes of everybody.
    pub async fn destroy_all(&self) {
        todo!()
    }

    /// Forgets a volume and removes its content. `Conflict` while a sandbox has it.
    pub fn remove_volume(&self, owner: &str, id: &str) -> Result<(), LifeError> {
        let _ = (owner, id);
        todo!()
    }
}

impl Sandboxes {
    async fn find_again(&self) -> Result<(), LifeError> {
        Ok(())
    }

    fn slot(&self, owner: &str, id: &str) -> Result<Arc<Slot>, LifeError> {
        let _ = (owner, id);
        todo!()
    }

    fn slot_of_any(&self, id: &str) -> Result<Arc<Slot>, LifeError> {
        let _ = id;
        todo!()
    }
}

impl Slot {
    fn record(&self) -> Record {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
