//! Snapshots and forks.

use std::sync::Arc;

use sloplet_image::ImageConfig;

use super::error::LifeError;
use super::record::{NewSandbox, Record};
use super::sandboxes::{Quota, Sandboxes, Slot};
use super::snapshot::Snapshot;

impl Sandboxes {
    /// Saves its files as an image; a name may be given. Its processes are frozen meanwhile.
    pub async fn snapshot(&self, owner: &str, id: &str, name: Option<&str>) -> Result<Snapshot, LifeError> {
        let _ = (owner, id, name);
        Err(LifeError::Conflict("not yet".into()))
    }

    /// Saves its files as an image of that name, with a changed configuration.
    pub async fn save_as(
        &self,
        owner: &str,
        id: &str,
        image: &str,
        adjust: impl FnOnce(&mut ImageConfig),
    ) -> Result<(), LifeError> {
        let _ = (owner, id, image);
        adjust(&mut ImageConfig::default());
        Err(LifeError::Conflict("not yet".into()))
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
        Err(LifeError::Conflict("not yet".into()))
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
        self.drop_image(&snapshot.image());
        Ok(())
    }

    /// Saves the files of a paused sandbox, so that they outlive it and forks of it need not wait.
    pub(super) fn save_meanwhile(&self, slot: &Arc<Slot>) {
        let _ = slot;
    }

    /// Forgets an image that was made here.
    pub(super) fn drop_image(&self, image: &str) {
        let removed = self.0.engine.images().and_then(|images| images.remove(image));
        if let Err(error) = removed {
            tracing::warn!(%error, image, "cannot remove an image");
        }
    }
}
