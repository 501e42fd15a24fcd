//! Snapshots: what a sandbox has written, as a layer on top of the image it started from.
//!
//! Whoever can read the sandbox's files copies them to a [`SnapshotStaging`], in the form of an overlay's upper folder;
//! [`Store::commit_snapshot`] makes an image of it. An image made of the host's own programs stays one: the record
//! remembers which host folders belong to it, and keeps the prepared layer it was started from.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::digest::hex;
use crate::error::ImageError;
use crate::exclude::{self, Pattern};
use crate::guard;
use crate::image::{Image, ImageConfig};
use crate::layer::{self, LayerInfo};
use crate::limits::LimitExceeded;
use crate::merge;
use crate::name;
use crate::record::Record;
use crate::skeleton;
use crate::staging::Staging;
use crate::store::Store;

/// Begins the names of layers that are snapshots: nobody computes a digest of them.
pub(crate) const PREFIX: &str = "snapshot-";

/// Snapshots that lie on each other before they are merged into one layer: each makes opening a file a little slower.
const SNAPSHOTS: usize = 50;

/// An empty folder beside the layers, for a snapshot to be copied to. Removed when dropped, or by the next `gc` if
/// this process dies before.
#[derive(Debug)]
pub struct SnapshotStaging {
    staging: Staging,
    root: PathBuf,
    dir: OwnedFd,
}

impl SnapshotStaging {
    /// The folder.
    pub fn dir(&self) -> io::Result<OwnedFd> {
        self.dir.try_clone()
    }

    /// Where it is, as long as it is neither committed nor dropped.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Leaves out what fits one of the patterns. Returns how many bytes that were.
    pub fn exclude(&self, patterns: &[Pattern]) -> io::Result<u64> {
        exclude::remove(self.dir.as_fd(), patterns)
    }
}

impl Store {
    /// A folder for a snapshot.
    pub fn snapshot_staging(&self) -> Result<SnapshotStaging, ImageError> {
        let staging = self.staging()?;
        let (root, dir) = staging.make_root("root")?;
        Ok(SnapshotStaging { staging, root, dir })
    }

    /// Makes an image of what was copied, `bytes` of content: a layer on top of those of `base`, which must be leased.
    /// Without a name, it gets one that nobody else has; [`Store::remove`] removes it in either case. An image that had
    /// the name is forgotten.
    ///
    /// A stack that grows too high is merged: then this takes as long as copying all that the snapshots in it hold.
    pub fn commit_snapshot(
        &self,
        snapshot: SnapshotStaging,
        name: Option<&str>,
        base: &Image,
        config: ImageConfig,
        bytes: u64,
    ) -> Result<Image, ImageError> {
        let layer = format!("{PREFIX}{}", random_id()?);
        let name = name::canonical(name.unwrap_or(&layer))?;
        let _lock = self.import_lock()?;
        let mut layers = vec![layer.clone()];
        layers.extend(self.layers_of(base)?);
        let mut stack: Vec<PathBuf> = [std::slice::from_ref(&snapshot.root), &base.layers[..]].concat();
        let (mut root, mut bytes) = (snapshot.root.clone(), bytes);
        let mut size_bytes = base.size_bytes.saturating_add(bytes);
        let snapshots = layers.iter().take_while(|layer| layer.starts_with(PREFIX)).count();
        let too_high = layers.len() > self.limits.layers;
        if snapshots > 1 && (snapshots > SNAPSHOTS || too_high) {
            let (target, _) = snapshot.staging.make_root("merged")?;
            match merge::merge(&stack[..snapshots], &stack[snapshots..], &target) {
                Ok(merged) => {
                    layers.drain(1..snapshots);
                    stack.drain(1..snapshots);
                    stack[0].clone_from(&target);
                    let rest = layers[1..].iter().filter_map(|layer| layer::find(self, layer));
                    size_bytes = rest.map(|info| info.size_bytes).sum::<u64>().saturating_add(merged);
                    (root, bytes) = (target, merged);
                }
                Err(error) if too_high => return Err(ImageError::store("merge snapshots in", &target, error)),
                // It can grow some more; perhaps the next one hides what cannot be merged.
                Err(_) => {}
            }
        }
        // An image may have as many layers as that; one snapshot on top of it is always possible.
        if layers.len() > self.limits.layers.saturating_add(1) {
            return Err(LimitExceeded::Layers(self.limits.layers).into());
        }
        guard::check_mount_points(&stack)?;
        let info = LayerInfo { size_bytes: bytes, skipped_entries: 0 };
        layer::keep(self, &snapshot.staging, &root, &layer, info)?;
        let mut record = Record::new(name, layer, layers, config);
        record.binds.clone_from(&base.binds);
        record.size_bytes = size_bytes;
        record.skipped_entries = base.skipped_entries;
        record.write(&self.record_path(&record.name), &snapshot.staging)?;
        self.image(record)
    }

    /// Stores an image under another name as well, with a changed configuration. Its layers are shared.
    pub fn name_again(
        &self,
        image: &str,
        name: &str,
        adjust: impl FnOnce(&mut ImageConfig),
    ) -> Result<Image, ImageError> {
        let _lock = self.import_lock()?;
        let known = Record::read(&self.record_path(&name::canonical(image)?))?;
        let mut record = known.ok_or_else(|| self.unknown(image))?;
        record.name = name::canonical(name)?;
        adjust(&mut record.config);
        record.write(&self.record_path(&record.name), &self.staging()?)?;
        self.image(record)
    }

    /// The names of an image's layers in this store, without the skeleton, which belongs to all.
    pub(crate) fn layers_of(&self, image: &Image) -> Result<Vec<String>, ImageError> {
        let dir = self.layers_dir();
        let mut names = Vec::with_capacity(image.layers.len());
        for path in &image.layers {
            let known = path.file_name().and_then(|name| name.to_str()).filter(|_| path.parent() == Some(&dir));
            match known {
                Some(skeleton::NAME) => {}
                Some(known) => names.push(known.to_owned()),
                None => {
                    let layer = path.display().to_string();
                    return Err(ImageError::MissingLayer { name: image.name.clone(), layer });
                }
            }
        }
        Ok(names)
    }
}

fn random_id() -> Result<String, ImageError> {
    let mut random = [0u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| ImageError::store("name a layer in", Path::new(PREFIX), e))?;
    Ok(hex(&random))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use std::collections::HashSet;

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("host");
        std::fs::create_dir_all(host.join("usr/bin")).unwrap();
        std::fs::create_dir_all(host.join("etc")).unwrap();
        let store = Store::open(&dir.path().join("data")).unwrap().with_host(&host);
        (dir, store)
    }

    fn save(store: &Store, base: &Image, name: Option<&str>, file: &str) -> Result<Image, ImageError> {
        let staging = store.snapshot_staging().unwrap();
        std::fs::write(staging.root.join(file), file).unwrap();
        store.commit_snapshot(staging, name, base, base.config.clone(), file.len() as u64)
    }

    fn layers(store: &Store) -> HashSet<String> {
        let entries = std::fs::read_dir(store.layers_dir()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_snapshot_is_a_layer_on_top_and_is_found_by_its_name() {
        let (_dir, store) = store();
        let host = store.resolve("host").unwrap();
        let first = save(&store, &host, Some("first"), "a").unwrap();
        assert_eq!((first.name.as_str(), &first.binds), ("first:latest", &host.binds));
        assert_eq!(first.layers[1..], host.layers[..]);
        assert_eq!(std::fs::read(first.layers[0].join("a")).unwrap(), b"a");
        let second = save(&store, &first, None, "b").unwrap();
        assert_eq!(second.layers[1..], first.layers[..]);
        assert_eq!(store.resolve(&second.name).unwrap(), second);
        assert_eq!(store.resolve("first").unwrap(), first);
        // What is written down can be read back.
        let written = serde_json::to_string(&second).unwrap();
        assert_eq!(serde_json::from_str::<Image>(&written).unwrap(), second);
        // No staging is left.
        assert_eq!(std::fs::read_dir(store.root().join("tmp")).unwrap().count(), 0);
    }

    #[test]
    fn what_is_on_top_keeps_what_is_below_and_a_lease_keeps_all() {
        let (_dir, store) = store();
        let host = store.resolve("host").unwrap();
        let first = save(&store, &host, Some("first"), "a").unwrap();
        let second = save(&store, &first, Some("second"), "b").unwrap();
        store.remove("first").unwrap();
        assert_eq!(store.resolve("second").unwrap(), second);
        let lease = crate::Leases::default().take(&second).unwrap();
        store.remove("second").unwrap();
        assert!(second.layers.iter().all(|layer| layer.exists()));
        drop(lease);
        store.gc().unwrap();
        assert!(layers(&store).iter().all(|layer| !layer.starts_with(PREFIX)), "{:?}", layers(&store));
    }

    #[test]
    fn a_stack_that_is_too_high_is_merged() {
        let (_dir, store) = store();
        let host = store.resolve("host").unwrap();
        let mut last = save(&store, &host, Some("s"), "0").unwrap();
        for number in 1..=120 {
            let staging = store.snapshot_staging().unwrap();
            std::fs::write(staging.root.join(number.to_string()), "x").unwrap();
            std::fs::write(staging.root.join("last"), number.to_string()).unwrap();
            last = store.commit_snapshot(staging, Some("s"), &last, ImageConfig::default(), 4).unwrap();
            assert!(last.layers.len() <= SNAPSHOTS + 1, "{}", last.layers.len());
            store.gc().unwrap();
        }
        let seen = |name: &str| last.layers.iter().find_map(|layer| std::fs::read_to_string(layer.join(name)).ok());
        assert_eq!(seen("last").as_deref(), Some("120"));
        assert!((0..=120).all(|number| seen(&number.to_string()).is_some()));
        assert_eq!(last.layers.last(), host.layers.last());
        let sizes: u64 = 1 + 120 + 3;
        assert!(last.size_bytes >= sizes && last.size_bytes < sizes + 4 * 120, "{}", last.size_bytes);
        // What was merged is not kept: only the layers of the last image are.
        assert_eq!(layers(&store).iter().filter(|layer| layer.starts_with(PREFIX)).count(), last.layers.len() - 1);
        assert_eq!(std::fs::read_dir(store.root().join("tmp")).unwrap().count(), 0);
    }

    #[test]
    fn a_stack_that_is_too_high_and_a_trap_are_refused_and_leave_nothing() {
        let (_dir, store) = store();
        let host = store.resolve("host").unwrap();
        let before = layers(&store);
        let strict = store.clone().with_limits(Limits { layers: 0, ..Limits::default() });
        assert!(matches!(save(&strict, &host, None, "b"), Err(ImageError::TooBig(LimitExceeded::Layers(0)))));
        let staging = store.snapshot_staging().unwrap();
        std::os::unix::fs::symlink("/etc", staging.root.join("proc")).unwrap();
        let trap = store.commit_snapshot(staging, None, &host, ImageConfig::default(), 0);
        assert!(matches!(trap, Err(ImageError::Refused { .. })), "{trap:?}");
        assert!(matches!(save(&store, &host, Some("host"), "x"), Err(ImageError::BadName { .. })));
        assert_eq!(layers(&store), before);
        assert_eq!(std::fs::read_dir(store.root().join("tmp")).unwrap().count(), 0);
    }
}
