//! What steps of earlier builds have made: a build whose first steps are the same starts after them.
//!
//! After every step that changes files, these become an image, named by everything that it depends on: the image below,
//! all steps so far, and the files that they copy. Each owner has a cache of their own. What was not used for longest goes
//! when there is too much, and all of it with the owner's last template.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sloplet_image::Image;
use sloplet_store::Document;

use super::provision;
use super::registry::{Inner, Recipe, Templates};
use super::step::Step;
use super::uploads::Uploads;
use crate::life::LifeError;
use crate::life::clock::now_ms;

/// How the names of its images begin.
pub(super) const IMAGES: &str = "build-cache-";

/// Images of one owner.
const MOST: usize = 100;

/// Bytes of all of one owner's that no other image may share.
const MOST_BYTES: u64 = 16 << 30;

/// What is remembered of one of its images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cached {
    /// The key.
    id: String,
    owner: String,
    created_ms: u64,
    used_ms: u64,
    /// What its last step added.
    bytes: u64,
}

impl Document for Cached {
    const KIND: &'static str = "build-cache";

    fn id(&self) -> &str {
        &self.id
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    fn created_ms(&self) -> u64 {
        self.created_ms
    }
}

/// The name of the image after the step of that key.
pub(super) fn image_name(key: &str) -> String {
    format!("{IMAGES}{key}")
}

/// A key for each step, and so for all steps up to it.
pub(super) fn keys(owner: &str, base: &Image, recipe: &Recipe, uploads: &Uploads) -> Vec<String> {
    let mut so_far = Sha256::new();
    let add = |so_far: &mut Sha256, part: &str| {
        so_far.update(part.len().to_le_bytes());
        so_far.update(part);
    };
    for part in [env!("CARGO_PKG_VERSION"), owner, &base.digest, &format!("{:?}", base.config), provision::SCRIPT] {
        add(&mut so_far, part);
    }
    let key = |step: &Step| {
        add(&mut so_far, &format!("{step:?}"));
        if let Step::Copy { files, .. } = step {
            // The client names archives by a hash of its own; the same name may be uploaded again.
            let known = std::fs::metadata(uploads.path(owner, files)).ok();
            let archive = known.map(|known| (known.size(), known.mtime(), known.mtime_nsec()));
            add(&mut so_far, &format!("{archive:?}"));
        }
        let digest = so_far.clone().finalize();
        digest.iter().take(20).map(|byte| format!("{byte:02x}")).collect()
    };
    recipe.steps.iter().map(key).collect()
}

/// Whether files are kept after such a step. The others are done again in no time.
pub(super) fn is_worth_it(step: &Step) -> bool {
    matches!(step, Step::Run { .. } | Step::Copy { .. })
}

impl Templates {
    /// The last of these keys, up to `steps` of them, that there is an image for: how many steps that spares.
    pub(super) fn cached(&self, keys: &[String]) -> Option<usize> {
        let images = self.0.sandboxes.engine().images().ok()?;
        keys.iter().rposition(|key| {
            let Ok(Some(mut known)) = self.0.cache.get(key) else { return false };
            if images.resolve(&image_name(key)).is_err() {
                return false;
            }
            known.used_ms = now_ms();
            self.0.cache.put(&known).is_ok()
        })
    }

    /// Remembers an image that was made, and forgets those that were not used for longest.
    pub(super) fn remember_cached(&self, owner: &str, key: &str, bytes: u64) -> Result<(), LifeError> {
        let changing = self.0.change();
        let now = now_ms();
        let cached = Cached { id: key.to_owned(), owner: owner.to_owned(), created_ms: now, used_ms: now, bytes };
        self.0.cache.put(&cached)?;
        let mut all = self.0.cache.of(owner)?;
        all.sort_by_key(|cached| std::cmp::Reverse(cached.used_ms));
        let (mut sum, mut index) = (0u64, 0);
        all.retain(|cached| {
            sum = sum.saturating_add(cached.bytes);
            index += 1;
            index > 1 && (index > MOST || sum > MOST_BYTES)
        });
        // Nobody else waits while images are removed.
        drop(changing);
        all.iter().try_for_each(|cached| self.0.forget_cached(&cached.id))
    }
}

impl Inner {
    fn forget_cached(&self, key: &str) -> Result<(), LifeError> {
        self.cache.remove(key)?;
        match self.sandboxes.engine().images()?.remove(&image_name(key)) {
            Ok(()) | Err(sloplet_image::ImageError::Unknown { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Forgets what builds of an owner have made for each other, if there is no template that could be built again.
    pub(super) fn forget_idle_cache(&self, owner: &str) -> Result<(), LifeError> {
        if !self.templates.of(owner)?.is_empty() {
            return Ok(());
        }
        self.cache.of(owner)?.iter().try_for_each(|cached| self.forget_cached(&cached.id))
    }

    /// Removes images that a killed server made and did not remember, or was about to forget.
    pub(super) fn sweep_cache(&self) -> Result<(), LifeError> {
        let owners: HashSet<String> = self.cache.all()?.into_iter().map(|cached| cached.owner).collect();
        owners.iter().try_for_each(|owner| self.forget_idle_cache(owner))?;
        for image in self.sandboxes.engine().images()?.list()? {
            let key = image.name.strip_prefix(IMAGES).and_then(|rest| rest.split(':').next());
            if let Some(key) = key
                && self.cache.get(key)?.is_none()
            {
                self.forget_cached(key)?;
            }
        }
        Ok(())
    }
}
