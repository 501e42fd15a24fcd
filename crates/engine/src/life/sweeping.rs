//! What a killed server left unfinished, and nobody refers to.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sloplet_store::Document;

use super::error::LifeError;
use super::live::Live;
use super::sandboxes::Sandboxes;
use super::saving::{FORK, MEMORY, SAVED};
use super::snapshot::image_name;
use crate::engine::new_id;

/// How often is looked whether somebody still talks to a machine that is gone, and how many times at most.
const LOOK: Duration = Duration::from_millis(50);
const HELD_FOR: u32 = 600;

impl Sandboxes {
    /// Removes it, before anybody makes anything new.
    pub(super) fn sweep(&self) -> Result<(), LifeError> {
        self.sweep_private()?;
        self.sweep_memories()?;
        self.sweep_images()
    }

    /// Secrets and histories of sandboxes and waiting machines that there are not.
    fn sweep_private(&self) -> Result<(), LifeError> {
        let mut known: HashSet<String> = self.slots().keys().cloned().collect();
        known.extend(self.0.pools.warm.all()?.iter().map(|warm| warm.id().to_owned()));
        let secrets = self.0.secrets.all()?.into_iter().map(|secrets| secrets.id().to_owned());
        let histories = self.0.histories.all()?.into_iter().map(|history| history.id().to_owned());
        let spent = self.0.spent.all()?.into_iter().filter_map(|spent| spent.sandbox().map(str::to_owned));
        let left: HashSet<String> = secrets.chain(histories).chain(spent).filter(|id| !known.contains(id)).collect();
        left.iter().try_for_each(|id| self.leave(id))
    }

    /// Memories that no snapshot has.
    fn sweep_memories(&self) -> Result<(), LifeError> {
        let Ok(folders) = std::fs::read_dir(self.0.engine.places().data.join(MEMORY)) else { return Ok(()) };
        for folder in folders.flatten() {
            let known = folder.file_name().to_str().map(|id| self.0.snapshots.get(id)).transpose()?.flatten();
            if known.is_none_or(|snapshot| snapshot.memory.is_none()) {
                let _ = std::fs::remove_dir_all(folder.path());
            }
        }
        Ok(())
    }

    /// Images of snapshots that there are not, of forks under way, and saved files that no sandbox has; then layers that none has.
    fn sweep_images(&self) -> Result<(), LifeError> {
        let saved: HashSet<String> = self.all().into_iter().filter_map(|record| record.saved).collect();
        let images = self.0.engine.images()?;
        for image in images.list().unwrap_or_default() {
            let Some(name) = image.name.strip_suffix(":latest") else { continue };
            // Longer ones were made by programs that use this as a library, and remember them themselves.
            let ours = |beginning: &str| name.strip_prefix(beginning).filter(|id| id.len() == new_id().len());
            let left = match (ours(&image_name("")), ours(SAVED), ours(FORK)) {
                (Some(id), ..) => self.0.snapshots.get(id)?.is_none(),
                (_, Some(_), _) => !saved.contains(name),
                (.., fork) => fork.is_some(),
            };
            if left {
                self.drop_image(name);
            }
        }
        // A killed server may have copied files and not named them yet. Nobody waits for this.
        self.collect_layers();
        Ok(())
    }

    /// Removes the layers of a machine that is gone, if its image was dropped while it ran.
    pub(super) fn release_layers(&self, live: Arc<Live>) {
        let image = &live.sandbox.image().name;
        if ![SAVED, FORK, &image_name("")].iter().any(|beginning| image.starts_with(beginning)) {
            return;
        }
        let (this, held) = (self.clone(), Arc::downgrade(&live));
        drop(live);
        tokio::spawn(async move {
            // Those who still talk to it hold its layers, and learn in a moment that it is gone.
            for _ in 0..HELD_FOR {
                if held.strong_count() == 0 {
                    break;
                }
                tokio::time::sleep(LOOK).await;
            }
            this.collect_layers();
        });
    }

    /// Removes layers that no image and no machine has, aside.
    fn collect_layers(&self) {
        let engine = self.0.engine.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = engine.images().and_then(|images| images.gc()) {
                tracing::warn!(%error, "cannot remove layers that nobody has");
            }
        });
    }
}
