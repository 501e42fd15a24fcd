//! Snapshots that leave this server as one stream, and come in as one.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use serde::{Deserialize, Serialize};
use sloplet_image::{Exported, Image, ImageError, Imported, Lease, Manifest, Store};

use super::clock::now_ms;
use super::error::LifeError;
use super::sandboxes::Sandboxes;
use super::snapshot::{Snapshot, image_name};
use crate::engine::new_id;

/// What an archive says about its snapshot.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct About {
    name: Option<String>,
    /// The sandbox that was saved, and what it started from.
    sandbox: String,
    template: String,
    created_ms: u64,
    bytes: u64,
    files: u64,
    metadata: BTreeMap<String, String>,
    /// What was left out when it was saved, because somebody said so.
    excluded: Vec<String>,
    /// Whether there was memory, which was left out because somebody said so.
    without_memory: bool,
}

/// What of a snapshot is to leave.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wish {
    /// Leave out what another store may have as well.
    pub thin: bool,
    /// Leave out its memory, if it has one.
    pub files_only: bool,
}

/// A snapshot that is about to leave. Its layers stay as long as this lives.
#[derive(Debug)]
pub struct Leaving {
    store: Store,
    image: Image,
    manifest: Manifest,
    _lease: Lease,
}

impl Leaving {
    /// What it will say of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Writes it; this takes as long as reading all of it.
    pub fn write(self, to: impl Write) -> Result<Exported, ImageError> {
        self.store.export(&self.image, self.manifest, to)
    }
}

impl Sandboxes {
    /// Gets a snapshot ready to leave. Looks at all its files, so not for a thread that others wait for.
    pub fn export_snapshot(&self, owner: &str, id: &str, wish: Wish) -> Result<Leaving, LifeError> {
        let snapshot = self.get_snapshot(owner, id)?;
        if let Some(memory) = &snapshot.memory
            && !wish.files_only
        {
            let message = format!(
                "snapshot '{id}' has the memory of its processes, which goes on only behind this very '{}' on this host: \
                 export its files only, or take one without memory",
                memory.driver
            );
            return Err(LifeError::Conflict(message));
        }
        let store = self.0.engine.images()?.clone();
        let image = store.resolve(&snapshot.image())?;
        let lease = self.0.engine.lease(&image)?;
        let about = About {
            name: snapshot.name,
            sandbox: snapshot.sandbox,
            template: snapshot.template,
            created_ms: snapshot.created_ms,
            bytes: snapshot.bytes,
            files: snapshot.files,
            metadata: snapshot.metadata,
            excluded: snapshot.excluded,
            without_memory: snapshot.memory.is_some(),
        };
        let about = serde_json::to_value(about).map_err(|error| LifeError::Invalid(error.to_string()))?;
        let manifest = store.plan_export(&image, wish.thin, about)?;
        Ok(Leaving { store, image, manifest, _lease: lease })
    }

    /// Takes a snapshot in, under its own name or another. Reads until it ends, so not for a thread that others wait for.
    pub fn import_snapshot(
        &self,
        owner: &str,
        name: Option<&str>,
        from: impl Read,
    ) -> Result<(Snapshot, Imported), LifeError> {
        let taken = |name: &str| match self.0.snapshots.named(owner, name) {
            Ok(Some(_)) => Some(format!("there is a snapshot '{name}' already: give this one another name")),
            _ => None,
        };
        if let Some(message) = name.and_then(taken) {
            return Err(LifeError::Conflict(message));
        }
        let id = new_id();
        let mut about = About::default();
        let imported = self.0.engine.images()?.import_archive(from, &image_name(&id), |manifest| {
            about = serde_json::from_value(manifest.snapshot.clone()).map_err(|error| error.to_string())?;
            match (name, &about.name) {
                (None, Some(own)) if !is_name(own) => Err("its name cannot be one".to_owned()),
                (None, Some(own)) => taken(own).map_or(Ok(()), Err),
                _ => Ok(()),
            }
        })?;
        let snapshot = Snapshot {
            id,
            owner: owner.to_owned(),
            name: name.map(str::to_owned).or(about.name),
            sandbox: about.sandbox,
            template: about.template,
            created_ms: now_ms(),
            bytes: about.bytes,
            files: about.files,
            frozen_us: 0,
            metadata: about.metadata,
            excluded: about.excluded,
            memory: None,
        };
        if let Err(error) = self.0.snapshots.insert(&snapshot) {
            self.drop_image(&snapshot.image());
            return Err(error.into());
        }
        Ok((snapshot, imported))
    }
}

/// What a snapshot may be called.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    name.len() <= 63 && name.bytes().all(plain) && name.starts_with(|first: char| first.is_ascii_alphanumeric())
}
