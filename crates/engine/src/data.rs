//! Files that go in masked.
//!
//! The copy is made in a folder of the engine's own that nobody else can open, mounted read-only, and loses its name as soon
//! as it is mounted: it lives as long as the sandbox, and nothing is left to be removed, whoever dies. The original is read
//! by the host only. A copy half made by a process that died is removed by the next clean-up.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use sloplet_image::outside;
use sloplet_ledger::event::DataMasked;
use sloplet_mask::rule::Kind;
use sloplet_mask::{Config, Format, Key, MaskError, Options, mask_file_with};
use sloplet_policy::protect::{ProtectError, Protected};
use sloplet_policy::source::Identity;
use sloplet_policy::{Bind, DataMount, source};

/// The folder within the data folder.
const FOLDER: &str = "masked";

/// The key of those that name none, within the data folder.
const KEY: &str = "mask.key";

/// The variable that may hold it instead.
const VARIABLE: &str = "SLOPLET_MASK_KEY";

/// Why a file was not masked. Nothing was made.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// It could not be.
    #[error("cannot mask '{}' for {}: {source}", .from.display(), .to.display())]
    Mask {
        /// The original.
        from: PathBuf,
        /// Where it was to go.
        to: PathBuf,
        /// Why.
        source: MaskError,
    },
    /// It is protected, and would go in as it is, in part.
    #[error("'{}' is protected, and its rules keep {column} as it is: mask that column, too, or drop it", .from.display())]
    Kept {
        /// The original.
        from: PathBuf,
        /// The column.
        column: String,
    },
    /// A place that nothing may come from.
    #[error(transparent)]
    Protected(#[from] ProtectError),
    /// The engine's own folder.
    #[error("cannot keep masked files: {0}")]
    Folder(#[source] io::Error),
    /// The key.
    #[error("{VARIABLE} is not a key: it must be 64 hexadecimal digits")]
    Key,
}

/// Masked copies of one sandbox's files. Dropping it takes their names away; mounts keep what they show.
#[derive(Debug, Default)]
pub(crate) struct Masked {
    folder: Option<(PathBuf, File)>,
    /// Where they go.
    pub(crate) binds: Vec<Bind>,
    /// What was done, for the record.
    pub(crate) done: Vec<DataMasked>,
}

impl Drop for Masked {
    fn drop(&mut self) {
        if let Some((path, _lock)) = self.folder.take() {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// What may come from where.
pub(crate) struct Rules {
    /// What nothing may come from.
    pub(crate) host: Protected,
    /// The same, and the blast radius: what may go in only if every column is masked.
    pub(crate) all: Protected,
}

/// Masks these files for the sandbox `id`. Either all of them, or nothing is left.
pub(crate) fn mask(data: &Path, id: &str, mounts: &[DataMount], rules: &Rules) -> Result<Masked, Box<DataError>> {
    let mut masked = Masked::default();
    if mounts.is_empty() {
        return Ok(masked);
    }
    let folder = make(data, id).map_err(DataError::Folder)?;
    let path = folder.0.clone();
    masked.folder = Some(folder);
    for (number, mount) in mounts.iter().enumerate() {
        let failed = |source| Box::new(DataError::Mask { from: mount.from.clone(), to: mount.to.clone(), source });
        let (found, real) = rules.host.open(&mount.from).map_err(DataError::from)?;
        let rules_file = readable(&mount.mask, &path.join(format!("{number}-rules.toml")))?;
        let config = Config::load(&rules_file).map_err(failed)?;
        if rules.all.judge(&mount.from, &real).is_err()
            && let Some(column) = kept(&config)
        {
            return Err(DataError::Kept { from: mount.from.clone(), column }.into());
        }
        let key_file = match &mount.key {
            Some(key) => Some(readable(key, &path.join(format!("{number}-key")))?),
            None => None,
        };
        let key =
            key(data, key_file.as_deref()).map_err(|error| error.map_or_else(|| Box::new(DataError::Key), failed))?;
        let name = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let copy = path.join(format!("{number}-{name}"));
        let options = Options { table: mount.table.clone(), ..Options::default() };
        let original = path.join(format!("{number}-original"));
        let checked = stand_in(&original, &found, &real).map_err(DataError::Folder)?;
        let report = mask_file_with(&checked, &config, &key, &copy, &options).map_err(failed)?;
        fs::remove_dir_all(&original).map_err(DataError::Folder)?;
        // Whoever is inside may read it, whatever this process's mask of modes is.
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o444)).map_err(DataError::Folder)?;
        masked.binds.push(mount.bind(&copy));
        masked.done.push(DataMasked {
            path: mount.to.display().to_string().into(),
            source: report.source_digest.as_str().into(),
            rules: report.rules_digest.as_str().into(),
            result: Some(report.output_digest.as_str().into()),
        });
    }
    Ok(masked)
}

/// Gives exactly what was checked a path of the engine's own, under the same name: whoever can change folders on the way to the
/// original cannot have another file masked. A database is copied, with its log, for SQLite resolves links by itself.
fn stand_in(folder: &Path, found: &OwnedFd, real: &Path) -> io::Result<PathBuf> {
    DirBuilder::new().mode(0o700).create(folder)?;
    let place = folder.join(real.file_name().unwrap_or_default());
    if outside::is_out_of_reach(real) {
        outside::bring(real, Some(Identity::of(found)?), true, &place)?;
        let log = |path: &Path| PathBuf::from([path.as_os_str(), OsStr::new("-wal")].into_iter().collect::<OsString>());
        if fs::symlink_metadata(log(real)).is_ok_and(|meta| meta.is_file()) {
            outside::bring(&log(real), None, true, &log(&place))?;
        }
        return Ok(place);
    }
    if !Format::of(real).is_ok_and(|format| format == Format::Sqlite) {
        symlink(source::through(found), &place)?;
        return Ok(place);
    }
    fs::copy(source::through(found), &place)?;
    let log = |path: &Path| PathBuf::from([path.as_os_str(), OsStr::new("-wal")].into_iter().collect::<OsString>());
    if let Ok(open) = source::reopen(&log(real), None)
        && fs::metadata(source::through(&open))?.is_file()
    {
        fs::copy(source::through(&open), log(&place))?;
    }
    Ok(place)
}

/// A path from which this process can read what is at `path`: that one, or a copy at `copy`.
fn readable(path: &Path, copy: &Path) -> Result<PathBuf, Box<DataError>> {
    if !outside::is_out_of_reach(path) {
        return Ok(path.to_owned());
    }
    let (_, real) = source::find(path).map_err(DataError::Folder)?;
    outside::bring(&real, None, true, copy).map_err(DataError::Folder)?;
    Ok(copy.to_owned())
}

/// Removes copies whose makers died; returns how many sandboxes they were for.
pub(crate) fn sweep(data: &Path) -> usize {
    let folder = data.join(FOLDER);
    let Ok(whole) = File::open(&folder) else { return 0 };
    // Held: nobody makes one meanwhile.
    if flock(&whole, FlockOperation::NonBlockingLockExclusive).is_err() {
        return 0;
    }
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let left = entries.filter(|entry| {
        let lock = File::open(entry.path());
        lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok())
    });
    left.filter(|entry| fs::remove_dir_all(entry.path()).is_ok()).count()
}

/// A folder that is locked as long as its maker lives.
fn make(data: &Path, id: &str) -> io::Result<(PathBuf, File)> {
    let folder = data.join(FOLDER);
    DirBuilder::new().mode(0o700).recursive(true).create(&folder)?;
    let whole = File::open(&folder)?;
    flock(&whole, FlockOperation::LockExclusive)?;
    let own = folder.join(id);
    DirBuilder::new().mode(0o700).create(&own)?;
    let lock = File::open(&own)?;
    flock(&lock, FlockOperation::LockExclusive)?;
    Ok((own, lock))
}

/// A column that stays as it is.
fn kept(config: &Config) -> Option<String> {
    config.tables().find_map(|table| {
        let named = table.columns.iter().find(|(_, rule)| rule.kind == Kind::Keep);
        let others = table.others.as_ref().filter(|rule| rule.kind == Kind::Keep).map(|_| "*");
        let column = named.map(|(name, _)| name.as_str()).or(others)?;
        Some(format!("{}.{column}", table.name))
    })
}

/// The key that is named, the one of the environment, or the engine's own, which is made when it is first wanted.
fn key(data: &Path, named: Option<&Path>) -> Result<Key, Option<MaskError>> {
    if let Some(path) = named {
        return Ok(Key::load(path)?);
    }
    if let Ok(text) = std::env::var(VARIABLE) {
        return Key::parse(&text).ok_or(None);
    }
    let path = data.join(KEY);
    match Key::create(&path) {
        Ok(key) => Ok(key),
        // Most likely it is there already.
        Err(_) if path.exists() => Ok(Key::load(&path)?),
        Err(error) => Err(Some(error)),
    }
}
