//! A finished layer's way into the store, and what is remembered of it beside its content.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::ImageError;
use crate::staging::{Staging, commit};
use crate::store::Store;

/// What images that share a layer want to know of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerInfo {
    pub(crate) size_bytes: u64,
    pub(crate) skipped_entries: u64,
}

/// Moves the unpacked directory `from` into the store under its digest; one that exists already has the same content.
pub(crate) fn keep(
    store: &Store,
    staging: &Staging,
    from: &Path,
    digest: &str,
    info: LayerInfo,
) -> Result<(), ImageError> {
    let info_path = store.info_dir().join(format!("{digest}.json"));
    let fail = |e: std::io::Error| ImageError::store("write", &info_path, e);
    let temporary = staging.path().join("info.json");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(fail)?;
    file.write_all(&serde_json::to_vec(&info).map_err(|e| fail(e.into()))?).map_err(fail)?;
    std::fs::rename(&temporary, &info_path).map_err(fail)?;
    commit(from, &store.layers_dir().join(digest)).map(|_| ())
}

/// What is known of a layer, or nothing when it is not in the store.
pub(crate) fn find(store: &Store, digest: &str) -> Option<LayerInfo> {
    std::fs::symlink_metadata(store.layers_dir().join(digest)).ok()?;
    let bytes = std::fs::read(store.info_dir().join(format!("{digest}.json"))).ok()?;
    serde_json::from_slice(&bytes).ok()
}
