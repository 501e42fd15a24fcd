//! The store on disk: what is in it, how it is found, how it is removed.
//!
//! ```text
//! <data>/images/             0700: layers hold setuid files of whoever made the image
//!   layers/<sha256>/         one unpacked layer, never changed again
//!   layers/snapshot-<id>/    what a sandbox had written
//!   layers/host-<key>/       the prepared layer of `host`; layers/skeleton-<n>/ the lowest of all others
//!   info/<sha256>.json       what is remembered of a layer
//!   names/<name>.json        stored images         paths/<sha256 of path>.json   images imported on the fly
//!   tmp/                     imports under way     lock   shared by importers, exclusive for removing layers
//! ```

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::beneath;
use crate::error::ImageError;
use crate::host::Host;
use crate::image::{HostBind, Image};
use crate::limits::Limits;
use crate::recipe::Recipe;
use crate::record::Record;
use crate::staging::{Staging, commit, sweep};
use crate::{name, skeleton};

/// The images of one data directory. Cheap to open and to clone; holds nothing open.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
    pub(crate) limits: Limits,
    host: Host,
}

/// What [`Store::gc`] removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    /// Directories of imports that were killed.
    pub dead_imports: usize,
    /// Layers that no image and no sandbox uses.
    pub layers: usize,
    /// On-the-fly images whose source is gone.
    pub paths: usize,
}

/// Held while layers and the record that names them are written: keeps `gc` from removing layers in between.
#[derive(Debug)]
pub(crate) struct ImportLock {
    _file: File,
}

impl Store {
    /// Opens `<data>/images`, creating it when absent. One `open` and one `fstat` when there is nothing to do.
    pub fn open(data: &Path) -> Result<Store, ImageError> {
        let root = data.join("images");
        let store = Store { root, limits: Limits::default(), host: Host::new(Path::new("/")) };
        let dir = match beneath::open_dir(&store.root) {
            Ok(dir) => dir,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                store.create()?;
                beneath::open_dir(&store.root).map_err(|e| ImageError::store("open", &store.root, e))?
            }
            Err(e) => return Err(ImageError::store("open", &store.root, e)),
        };
        let stat = rustix::fs::fstat(&dir).map_err(|e| ImageError::store("stat", &store.root, e))?;
        let caller = rustix::process::geteuid().as_raw();
        if stat.st_uid != caller {
            return Err(ImageError::ForeignStore { path: store.root, owner: stat.st_uid, caller });
        }
        if stat.st_mode & 0o077 != 0 {
            rustix::fs::fchmod(&dir, rustix::fs::Mode::RWXU)
                .map_err(|e| ImageError::store("make private", &store.root, e))?;
        }
        Ok(store)
    }

    /// The same store with other caps for what is imported or pulled.
    pub fn with_limits(self, limits: Limits) -> Store {
        Store { limits, ..self }
    }

    #[cfg(test)]
    pub(crate) fn with_host(self, root: &Path) -> Store {
        Store { host: Host::new(root), ..self }
    }

    fn create(&self) -> Result<(), ImageError> {
        let mut builder = DirBuilder::new();
        builder.mode(0o700).recursive(true);
        let inside = [self.layers_dir(), self.info_dir(), self.names_dir(), self.paths_dir(), self.tmp_dir()];
        for path in std::iter::once(&self.root).chain(&inside) {
            builder.create(path).map_err(|e| ImageError::store("create", path, e))?;
        }
        Ok(())
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn layers_dir(&self) -> PathBuf {
        self.root.join("layers")
    }

    fn names_dir(&self) -> PathBuf {
        self.root.join("names")
    }

    pub(crate) fn info_dir(&self) -> PathBuf {
        self.root.join("info")
    }

    pub(crate) fn paths_dir(&self) -> PathBuf {
        self.root.join("paths")
    }

    fn tmp_dir(&self) -> PathBuf {
        self.root.join("tmp")
    }

    pub(crate) fn record_path(&self, canonical: &str) -> PathBuf {
        self.names_dir().join(name::file_name(canonical))
    }

    /// A private temporary directory. Also repairs a store whose creation was interrupted.
    pub(crate) fn staging(&self) -> Result<Staging, ImageError> {
        self.create()?;
        Staging::create(&self.tmp_dir())
    }

    /// Keeps `gc` from removing layers until dropped.
    pub(crate) fn import_lock(&self) -> Result<ImportLock, ImageError> {
        self.lock(FlockOperation::LockShared)
    }

    fn lock(&self, operation: FlockOperation) -> Result<ImportLock, ImageError> {
        let path = self.root.join("lock");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|e| ImageError::store("open", &path, e))?;
        loop {
            match rustix::fs::flock(&file, operation) {
                Ok(()) => return Ok(ImportLock { _file: file }),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(ImageError::store("lock", &path, e)),
            }
        }
    }

    /// Finds an image: `host`; a stored name, with or without its tag; or a path (`./rootfs.tar`, `/srv/layout`).
    ///
    /// A path is imported on the fly and found again at once as long as it is unchanged.
    pub fn resolve(&self, name_or_path: &str) -> Result<Image, ImageError> {
        if name_or_path == "host" {
            return self.host_image();
        }
        let explicit_path = name_or_path.starts_with(['/', '.', '~']);
        if !explicit_path
            && let Ok(canonical) = name::canonical(name_or_path)
            && let Some(record) = Record::read(&self.record_path(&canonical))?
        {
            return self.image(record);
        }
        let path = Path::new(name_or_path);
        if name_or_path.contains('/') && (explicit_path || path.exists()) {
            return self.import_path(path);
        }
        Err(self.unknown(name_or_path))
    }

    /// All stored images, by name. `host` is not among them: it is always there.
    pub fn list(&self) -> Result<Vec<Image>, ImageError> {
        let mut images = Vec::new();
        for record in self.records(&self.names_dir())? {
            images.push(self.image(record)?);
        }
        images.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(images)
    }

    /// Forgets a stored image, and removes its layers unless another image or a leased sandbox uses them.
    pub fn remove(&self, name: &str) -> Result<(), ImageError> {
        let unknown = || self.unknown(name);
        let path = self.record_path(&name::canonical(name).map_err(|_| unknown())?);
        match std::fs::remove_file(&path) {
            Ok(()) => self.gc().map(|_| ()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(unknown()),
            Err(e) => Err(ImageError::store("remove", &path, e)),
        }
    }

    /// Removes what dead imports left, and layers that nothing refers to. Layers stay while an import is under way.
    pub fn gc(&self) -> Result<Collected, ImageError> {
        self.gc_keeping(&HashSet::new())
    }

    /// As [`Store::gc`], keeping also the layers in `in_use`: those of sandboxes that outlived their engine.
    pub fn gc_keeping(&self, in_use: &HashSet<PathBuf>) -> Result<Collected, ImageError> {
        let mut collected = Collected { dead_imports: sweep(&self.tmp_dir())?, ..Collected::default() };
        let Ok(_lock) = self.lock(FlockOperation::NonBlockingLockExclusive) else {
            return Ok(collected);
        };
        let mut wanted = HashSet::from([skeleton::NAME.to_owned(), self.host.layer_name()]);
        for record in self.records(&self.names_dir())? {
            wanted.extend(record.layers);
        }
        for (path, record) in self.records_with_paths(&self.paths_dir())? {
            let gone = record.source.as_ref().is_none_or(|s| std::fs::symlink_metadata(&s.path).is_err());
            if gone {
                std::fs::remove_file(&path).map_err(|e| ImageError::store("remove", &path, e))?;
                collected.paths += 1;
            } else {
                wanted.extend(record.layers);
            }
        }
        let layers = self.layers_dir();
        for entry in std::fs::read_dir(&layers).map_err(|e| ImageError::store("list", &layers, e))? {
            let file_name = entry.map_err(|e| ImageError::store("list", &layers, e))?.file_name();
            let path = layers.join(&file_name);
            let is_wanted = file_name.to_str().is_some_and(|n| wanted.contains(n));
            if !is_wanted && !in_use.contains(&path) && self.discard_layer(&path, &file_name)? {
                collected.layers += 1;
            }
        }
        Ok(collected)
    }

    /// Removes one layer unless it is leased. It is first moved to a temporary name, so it never exists half-removed.
    fn discard_layer(&self, path: &Path, name: &OsStr) -> Result<bool, ImageError> {
        let dir = File::open(path).map_err(|e| ImageError::store("open", path, e))?;
        if rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(false);
        }
        let staging = self.staging()?;
        if !rustix::process::geteuid().is_root() {
            // Moving a directory changes its "..", for which the kernel wants write permission on it.
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
                .map_err(|e| ImageError::store("chmod", path, e))?;
        }
        let target = staging.path().join(name);
        std::fs::rename(path, &target).map_err(|e| ImageError::store("remove", path, e))?;
        let staging_dir = beneath::open_dir(&staging.path()).map_err(|e| ImageError::store("open", &target, e))?;
        beneath::remove_tree(staging_dir.as_fd(), name).map_err(|e| ImageError::store("remove", &target, e))?;
        let mut info = name.to_owned();
        info.push(".json");
        let _ = std::fs::remove_file(self.info_dir().join(info)); // prepared layers have none
        Ok(true)
    }

    fn host_image(&self) -> Result<Image, ImageError> {
        let layer = self.host.layer_name();
        self.prepared_layer(&layer, |root| self.host.build(root))?;
        let path = self.layers_dir().join(&layer);
        let created = std::fs::symlink_metadata(&path).map(|m| u64::try_from(m.mtime()).unwrap_or(0)).unwrap_or(0);
        Ok(Image {
            name: "host".to_owned(),
            digest: layer,
            layers: vec![path],
            binds: self.host.binds(),
            config: Host::config(),
            size_bytes: 0,
            created,
            skipped_entries: 0,
        })
    }

    /// What belongs to `host` beside its layer.
    pub(crate) fn host_binds(&self) -> Vec<HostBind> {
        self.host.binds()
    }

    /// Makes sure that a layer built here (not unpacked) exists.
    fn prepared_layer<T>(
        &self,
        name: &str,
        build: impl FnOnce(&Path) -> Result<T, ImageError>,
    ) -> Result<(), ImageError> {
        let path = self.layers_dir().join(name);
        if std::fs::symlink_metadata(&path).is_ok() {
            return Ok(());
        }
        let staging = self.staging()?;
        let _lock = self.import_lock()?;
        let (root, _) = staging.make_root(name)?;
        build(&root)?;
        commit(&root, &path).map(|_| ())
    }

    /// A record as an image, its layers checked to be there.
    pub(crate) fn image(&self, record: Record) -> Result<Image, ImageError> {
        let of_host = !record.binds.is_empty();
        if !of_host {
            self.prepared_layer(skeleton::NAME, skeleton::build)?;
        }
        let mut layers = Vec::with_capacity(record.layers.len() + 1);
        for layer in record.layers {
            let path = self.layers_dir().join(&layer);
            if std::fs::symlink_metadata(&path).is_err() {
                return Err(ImageError::MissingLayer { name: record.name, layer });
            }
            layers.push(path);
        }
        // The prepared layer of `host` has everything that the skeleton has.
        if !of_host {
            layers.push(self.layers_dir().join(skeleton::NAME));
        }
        Ok(Image {
            name: record.name,
            digest: record.digest,
            layers,
            binds: record.binds,
            config: record.config,
            size_bytes: record.size_bytes,
            created: record.created,
            skipped_entries: record.skipped_entries,
        })
    }

    fn records(&self, dir: &Path) -> Result<Vec<Record>, ImageError> {
        Ok(self.records_with_paths(dir)?.into_iter().map(|(_, record)| record).collect())
    }

    fn records_with_paths(&self, dir: &Path) -> Result<Vec<(PathBuf, Record)>, ImageError> {
        let listing = match std::fs::read_dir(dir) {
            Ok(listing) => listing,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(ImageError::store("list", dir, e)),
        };
        let mut records = Vec::new();
        for entry in listing {
            let path = entry.map_err(|e| ImageError::store("list", dir, e))?.path();
            if let Some(record) = Record::read(&path)? {
                records.push((path, record));
            }
        }
        Ok(records)
    }

    pub(crate) fn unknown(&self, name: &str) -> ImageError {
        let mut known = vec!["host".to_owned()];
        known.extend(self.records(&self.names_dir()).unwrap_or_default().into_iter().map(|r| r.name));
        known[1..].sort();
        let hint = if Path::new(name).exists() {
            format!(". For the file or directory of that name, write ./{name}")
        } else if Recipe::named(name).is_some() {
            format!(", or build it with `sloplet image build {name}`")
        } else {
            String::new()
        };
        ImageError::Unknown { name: name.to_owned(), known: known.join(", "), hint }
    }
}
