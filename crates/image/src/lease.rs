//! Keeping layers from being removed while somebody uses them.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::FlockOperation;

use crate::error::ImageError;
use crate::image::Image;

/// While it lives, `gc` leaves the image's layers alone, in this and in any other process.
#[derive(Debug)]
pub struct Lease {
    _locks: Vec<Arc<OwnedFd>>,
}

/// The leases of one process. A layer that many sandboxes use is locked once: the kernel looks through all locks of a
/// folder whenever one more is wanted.
#[derive(Debug, Default)]
pub struct Leases {
    locks: Mutex<HashMap<PathBuf, Weak<OwnedFd>>>,
}

impl Leases {
    /// Keeps the layers of an image from being removed as long as the lease lives. Costs at most one open and one flock
    /// per layer.
    ///
    /// For sandboxes that outlive their engine, their spawner holds the same locks.
    pub fn take(&self, image: &Image) -> Result<Lease, ImageError> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = Vec::with_capacity(image.layers.len());
        for layer in &image.layers {
            if let Some(lock) = locks.get(layer).and_then(Weak::upgrade) {
                held.push(lock);
                continue;
            }
            let gone = || ImageError::MissingLayer { name: image.name.clone(), layer: layer.display().to_string() };
            let lock = Arc::new(lock(layer).ok_or_else(gone)?);
            locks.retain(|_, lock| lock.strong_count() > 0);
            locks.insert(layer.clone(), Arc::downgrade(&lock));
            held.push(lock);
        }
        Ok(Lease { _locks: held })
    }
}

fn lock(layer: &Path) -> Option<OwnedFd> {
    let dir = File::open(layer).ok()?;
    rustix::fs::flock(&dir, FlockOperation::NonBlockingLockShared).ok()?;
    // A removal may have moved the directory away between the open and the lock.
    let (held, there) = (dir.metadata().ok()?, std::fs::symlink_metadata(layer).ok()?);
    ((held.dev(), held.ino()) == (there.dev(), there.ino())).then(|| dir.into())
}
