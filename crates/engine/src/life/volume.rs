//! Folders that outlive sandboxes.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sloplet_store::{Collection, Document, Store, StoreError};

use super::clock::now_ms;
use super::error::LifeError;
use crate::engine::{new_id, new_secret};
use crate::failpoint::{Point, reach};

/// A folder that outlives sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Letters and digits.
    pub id: String,
    /// The API key it belongs to.
    pub owner: String,
    /// Unique to its owner.
    pub name: String,
    /// Who knows it may use its content.
    pub token: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// Bytes of the disk that it is; without a bound, it is a folder, and ends where the host's disk does.
    #[serde(default)]
    pub size: Option<u64>,
}

/// Sizes that a volume can have.
const SIZES: std::ops::RangeInclusive<u64> = 16 << 20..=16 << 40;

impl Volume {
    /// Whether this is its id or its name.
    pub fn is_called(&self, id: &str) -> bool {
        self.id == id || self.name == id
    }
}

impl Document for Volume {
    const KIND: &'static str = "volume";

    fn id(&self) -> &str {
        &self.id
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    fn name(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn created_ms(&self) -> u64 {
        self.created_ms
    }
}

/// All volumes.
#[derive(Clone)]
pub struct Volumes {
    records: Collection<Volume>,
    folder: PathBuf,
}

impl Volumes {
    /// Kept in `<data>/volumes`.
    pub fn open(store: &Store, data: &Path) -> Result<Self, LifeError> {
        let volumes = Self { records: store.collection(), folder: data.join("volumes") };
        let io = |error| LifeError::Io(format!("cannot use {}", volumes.folder.display()), error);
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&volumes.folder).map_err(io)?;
        Ok(volumes)
    }

    /// Folders that nobody remembers: of volumes that were half made or half removed when a server ended.
    pub(super) fn forgotten(&self) -> Result<Vec<PathBuf>, LifeError> {
        let io = |error| LifeError::Io(format!("cannot use {}", self.folder.display()), error);
        let mut forgotten = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(io)?.flatten() {
            if self.records.get(&entry.file_name().to_string_lossy())?.is_none() {
                forgotten.push(entry.path());
            }
        }
        Ok(forgotten)
    }

    /// Makes an empty one, without a bound on what is written to it.
    pub fn create(&self, owner: &str, name: &str) -> Result<Volume, LifeError> {
        let volume = self.begin(owner, name, None)?;
        self.remember(&volume).inspect_err(|_| drop(fs::remove_dir_all(self.home_of(&volume))))?;
        Ok(volume)
    }

    /// Makes the folders of one. A disk is still to be put where [`Self::source_of`] says, and then the volume has to be
    /// [remembered](Self::remember): a record means that its content is whole.
    pub(super) fn begin(&self, owner: &str, name: &str, size: Option<u64>) -> Result<Volume, LifeError> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > 128 || !name.bytes().all(fits) || name.starts_with('.') {
            let advice = "use up to 128 letters, digits, '-', '_' and '.'";
            return Err(LifeError::Invalid(format!("'{name}' cannot name a volume: {advice}")));
        }
        if size.is_some_and(|size| !SIZES.contains(&size)) {
            return Err(LifeError::Invalid("a volume's size must be between 16MiB and 16TiB".into()));
        }
        let volume = Volume {
            id: new_id(),
            owner: owner.to_owned(),
            name: name.to_owned(),
            token: new_secret(),
            created_ms: now_ms(),
            size,
        };
        // Before a disk is made for nothing; the record itself decides.
        if self.records.named(owner, name)?.is_some() {
            return Err(taken(name));
        }
        // First the folder: without a record it is removed at the next start, and whoever asked for it asks again.
        let folder = self.folder_of(&volume);
        let io = |error| LifeError::Io(format!("cannot make {}", folder.display()), error);
        fs::DirBuilder::new().mode(0o755).recursive(true).create(&folder).map_err(io)?;
        reach(Point::AfterVolumeFolder);
        Ok(volume)
    }

    /// Writes down a volume whose content is there.
    pub(super) fn remember(&self, volume: &Volume) -> Result<(), LifeError> {
        self.records.insert(volume).map_err(|error| match error {
            StoreError::Taken(name) => taken(&name),
            error => error.into(),
        })?;
        reach(Point::AfterVolumeRecord);
        Ok(())
    }

    /// Finds one by id or name.
    pub fn get(&self, owner: &str, id: &str) -> Result<Volume, LifeError> {
        let by_id = self.records.get(id)?.filter(|volume| volume.owner == owner);
        let found = match by_id {
            Some(volume) => Some(volume),
            None => self.records.named(owner, id)?,
        };
        found.ok_or_else(|| LifeError::NotFound { kind: "volume", id: id.to_owned() })
    }

    /// Finds one whoever owns it: for those who show its token.
    pub fn get_any(&self, id: &str) -> Result<Volume, LifeError> {
        self.records.get(id)?.ok_or_else(|| LifeError::NotFound { kind: "volume", id: id.to_owned() })
    }

    /// An owner's, newest first.
    pub fn list(&self, owner: &str) -> Result<Vec<Volume>, LifeError> {
        Ok(self.records.of(owner)?)
    }

    /// What sandboxes mount: its folder, or the file that is its disk.
    pub(super) fn source_of(&self, volume: &Volume) -> PathBuf {
        match volume.size {
            Some(_) => self.home_of(volume).join("disk"),
            None => self.folder_of(volume),
        }
    }

    /// Where its content is on the host, if it is a folder. Hostile: it was written by sandboxes.
    pub fn folder_of(&self, volume: &Volume) -> PathBuf {
        self.folder.join(&volume.id).join("data")
    }

    /// The folder that holds its content's.
    pub(super) fn home_of(&self, volume: &Volume) -> PathBuf {
        self.folder.join(&volume.id)
    }

    /// Forgets it. The caller made sure that no sandbox has it. What is left of its content is [`Self::forgotten`].
    pub(super) fn forget(&self, volume: &Volume) -> Result<(), LifeError> {
        self.records.remove(&volume.id)?;
        reach(Point::AfterVolumeForgotten);
        Ok(())
    }
}

fn taken(name: &str) -> LifeError {
    LifeError::Conflict(format!("there is a volume '{name}' already"))
}
