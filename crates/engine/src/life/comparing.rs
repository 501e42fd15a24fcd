//! What a sandbox has changed since it was made.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sloplet_image::changes::{Changes, changes};

use super::error::LifeError;
use super::record::State;
use super::sandboxes::{Sandboxes, Slot};
use crate::engine::EngineError;

/// What the kernel and the wall show there is nobody's file; mount points for it may be.
const NO_FILES: [&str; 3] = ["dev", "proc", "sys"];

impl Sandboxes {
    /// Compares its files, as they are at one moment, with the image it was made from, and hands the changes below `path` to
    /// `judge`, while what they point to is there. Its processes stand still meanwhile if they run. Volumes and mounts are not
    /// its files.
    pub async fn compare<T: Send + 'static>(
        &self,
        owner: &str,
        id: &str,
        path: PathBuf,
        judge: impl FnOnce(&Changes) -> T + Send + 'static,
    ) -> Result<T, LifeError> {
        let slot = self.slot(owner, id)?;
        let this = self.clone();
        self.carry_out(async move { this.compare_slot(&slot, path, judge).await }).await
    }

    async fn compare_slot<T: Send + 'static>(
        &self,
        slot: &Arc<Slot>,
        path: PathBuf,
        judge: impl FnOnce(&Changes) -> T + Send + 'static,
    ) -> Result<T, LifeError> {
        let saving = slot.saving.lock().await;
        let record = slot.record();
        let Some(origin) = record.made_from().map(|image| image.layers.clone()) else {
            return Err(LifeError::Conflict(format!("sandbox '{}' is {}", record.id, record.state.name())));
        };
        let (layers, kept) = match (&record.saved, record.state, slot.live()) {
            (Some(saved), State::Paused | State::Stopped, _) => {
                (self.0.engine.images()?.resolve(saved).map_err(EngineError::from)?.layers, None)
            }
            (_, State::Running | State::Paused, Some(live)) => {
                let _changing = slot.changing.lock().await;
                let (staging, _) = self.0.engine.written(&live.sandbox).await?;
                let top = staging.path().to_owned();
                ([&[top][..], &live.sandbox.image().layers].concat(), Some(staging))
            }
            _ => return Err(LifeError::Conflict(format!("sandbox '{}' is {}", record.id, record.state.name()))),
        };
        let work = move || {
            let files = |at: &Path| !NO_FILES.iter().any(|none| at.starts_with(none));
            let near = |at: &Path| files(at) && (at.starts_with(&path) || path.starts_with(at));
            let mut found = changes(&layers, &origin, &near)?;
            found.list.retain(|change| change.path.starts_with(&path));
            let judged = judge(&found);
            drop(kept);
            std::io::Result::Ok(judged)
        };
        let compared = tokio::task::spawn_blocking(work).await;
        drop(saving);
        let failed = |error| LifeError::Io("cannot compare the sandbox's files".into(), error);
        compared.map_err(|error| failed(std::io::Error::other(error)))?.map_err(failed)
    }
}
