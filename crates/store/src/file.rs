//! The file.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt as _, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

use crate::collection::{Collection, Document};
use crate::error::StoreError;
use crate::reserve::Reserve;

/// Bumped when older sloplets can no longer read it.
const FORMAT: i64 = 1;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS documents (
        kind TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL, name TEXT, created INTEGER NOT NULL, body TEXT NOT NULL,
        PRIMARY KEY (kind, id)
    ) WITHOUT ROWID;
    CREATE UNIQUE INDEX IF NOT EXISTS names ON documents (kind, owner, name) WHERE name IS NOT NULL;
";

/// An open database; clones share it.
#[derive(Debug, Clone)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connection: Mutex<Connection>,
    reserve: Option<Reserve>,
    // Held, not read.
    _lock: Option<File>,
}

impl Store {
    /// Opens `<folder>/sloplet.db`, made if absent, and keeps other processes from doing so.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let failed = |error| StoreError::Open(folder.to_owned(), error);
        DirBuilder::new().mode(0o700).recursive(true).create(folder).map_err(failed)?;
        let path = folder.join("sloplet.db");
        let private =
            |path: &Path| OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let lock = private(&folder.join("sloplet.lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::InUse(path, holder(&lock))),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // For those who find it locked; if it cannot be written, they are told less.
        let _ = lock.set_len(0).and_then(|()| lock.write_all_at(std::process::id().to_string().as_bytes(), 0));
        let reserve = Reserve::of(folder);
        reserve.tend();
        // For those who find it locked; if it cannot be written, they are told less.
        let _ = lock.set_len(0).and_then(|()| lock.write_all_at(std::process::id().to_string().as_bytes(), 0));
        // SQLite gives its other files the mode of this one.
        drop(private(&path).map_err(failed)?);
        match Self::open_file(&path) {
            Ok(connection) => Self::emptied(Self::with(connection, Some(reserve), Some(lock))),
            Err(StoreError::Full | StoreError::Sqlite(_)) => {
                reserve.release();
                Self::emptied(Self::with(Self::open_file(&path)?, Some(reserve), Some(lock)))
            }
            Err(error) => Err(error),
        }
    }

    fn open_file(path: &Path) -> Result<Connection, StoreError> {
        let connection = Connection::open(path)?;
        let format: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if format > FORMAT {
            return Err(StoreError::Newer(path.to_owned(), format));
        }
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        // A confined server can write nowhere but in its own folders.
        connection.pragma_update(None, "temp_store", "MEMORY")?;
        // Secrets of sandboxes that are gone are not to stay in free pages.
        connection.pragma_update(None, "secure_delete", "ON")?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.execute_batch(TABLES)?;
        // Not where it is so already: the disk may be full.
        if format != FORMAT {
            connection.pragma_update(None, "user_version", FORMAT)?;
        }
        Ok(connection)
    }

    fn emptied(store: Self) -> Result<Self, StoreError> {
        // The last process may have been killed between forgetting something and this.
        match store.empty_log() {
            // Whoever looks at it meanwhile does no harm.
            Ok(()) | Err(StoreError::LogInUse | StoreError::Full) => Ok(store),
            Err(error) => Err(error),
        }
    }

    /// One that is forgotten when dropped.
    pub fn in_memory() -> Result<Self, StoreError> {
        let connection = Connection::open_in_memory()?;
        connection.execute_batch(TABLES)?;
        Ok(Self::with(connection, None, None))
    }

    fn with(connection: Connection, reserve: Option<Reserve>, lock: Option<File>) -> Self {
        Self(Arc::new(Inner { connection: Mutex::new(connection), reserve, _lock: lock }))
    }

    /// Makes a change that must be possible without space, too: out of what is reserved for that.
    pub(crate) fn surely<T>(&self, change: impl Fn(&Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let connection = self.connection();
        if let Some(reserve) = &self.0.reserve {
            reserve.tend();
        }
        match (change(&connection), &self.0.reserve) {
            (Err(StoreError::Full), Some(reserve)) => {
                reserve.release();
                // What is in the log already takes no space of its own any more.
                let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
                change(&connection)
            }
            (done, _) => done,
        }
    }

    /// All documents of a type.
    pub fn collection<T: Document>(&self) -> Collection<T> {
        Collection::new(self.clone())
    }

    /// Brings what is in the log into the database, and empties the log: what was overwritten or removed is then in no file.
    pub(crate) fn empty_log(&self) -> Result<(), StoreError> {
        let connection = self.connection();
        let busy: bool = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        if busy { Err(StoreError::LogInUse) } else { Ok(()) }
    }

    pub(crate) fn connection(&self) -> MutexGuard<'_, Connection> {
        self.0.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who holds the lock, as it says itself.
fn holder(lock: &File) -> String {
    let text = io::read_to_string(lock).unwrap_or_default();
    text.trim().parse::<u32>().map_or_else(|_| "it does not say which".to_owned(), |pid| format!("process {pid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_opener_is_turned_away_until_the_first_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let first = Store::open(folder.path()).unwrap();
        assert!(
            matches!(Store::open(folder.path()), Err(StoreError::InUse(_, who)) if who == format!("process {}", std::process::id()))
        );
        drop(first);
        Store::open(folder.path()).unwrap();
    }

    #[test]
    fn a_newer_format_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.connection().pragma_update(None, "user_version", FORMAT + 1).unwrap();
        drop(store);
        assert!(matches!(Store::open(folder.path()), Err(StoreError::Newer(_, _))));
    }
}
