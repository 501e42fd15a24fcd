//! What the store remembers of an image: one small JSON file, replaced atomically.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::ImageError;
use crate::image::{HostBind, ImageConfig};
use crate::staging::Staging;

/// Bumped when older records can no longer be used.
const VERSION: u32 = 1;

/// One image as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    pub(crate) name: String,
    pub(crate) digest: String,
    /// Names of directories in `layers/`, top first.
    pub(crate) layers: Vec<String>,
    /// For snapshots of what was made of the host: the host's folders that belong to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) binds: Vec<HostBind>,
    pub(crate) config: ImageConfig,
    pub(crate) size_bytes: u64,
    pub(crate) created: u64,
    pub(crate) skipped_entries: u64,
    /// For images imported on the fly: what the path looked like then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<SourceStamp>,
}

/// Where an on-the-fly import came from and how to see that it changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourceStamp {
    pub(crate) path: String,
    pub(crate) stamp: String,
}

impl Record {
    pub(crate) fn new(name: String, digest: String, layers: Vec<String>, config: ImageConfig) -> Self {
        let created = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Record {
            version: VERSION,
            name,
            digest,
            layers,
            binds: Vec::new(),
            config,
            size_bytes: 0,
            created: created.map_or(0, |d| d.as_secs()),
            skipped_entries: 0,
            source: None,
        }
    }

    /// Reads one; absent is `None`.
    pub(crate) fn read(path: &Path) -> Result<Option<Record>, ImageError> {
        let damaged = |reason: String| ImageError::DamagedRecord { path: path.to_path_buf(), reason };
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(ImageError::store("read", path, e)),
        };
        let record: Record = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        if record.version != VERSION {
            return Err(damaged(format!("format {} instead of {VERSION}", record.version)));
        }
        // The store is the caller's own, yet a layer name is joined to a path: keep it a plain name.
        if record.layers.iter().any(|l| l.is_empty() || l.contains('/') || l.starts_with('.')) {
            return Err(damaged("a layer name that is no file name".to_owned()));
        }
        Ok(Some(record))
    }

    /// Writes it so that readers see the old or the new one, whole.
    pub(crate) fn write(&self, path: &Path, staging: &Staging) -> Result<(), ImageError> {
        let fail = |e: io::Error| ImageError::store("write", path, e);
        let temporary = staging.path().join("record.json");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary).map_err(fail)?;
        file.write_all(&serde_json::to_vec_pretty(self).map_err(|e| fail(e.into()))?).map_err(fail)?;
        std::fs::rename(&temporary, path).map_err(fail)
    }
}
