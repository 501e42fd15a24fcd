//! Documents of one kind.

use std::marker::PhantomData;

use rusqlite::{Connection, OptionalExtension, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::StoreError;
use crate::file::Store;

const INSERT: &str = "INSERT INTO documents (kind, id, owner, name, created, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

/// Not REPLACE, which would remove another document that has the name.
const PUT: &str = "INSERT INTO documents (kind, id, owner, name, created, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
    ON CONFLICT (kind, id) DO UPDATE SET owner = ?3, name = ?4, created = ?5, body = ?6";

/// A value that can be remembered.
pub trait Document: Serialize + DeserializeOwned {
    /// Names the kind in the database; never changed.
    const KIND: &'static str;

    /// Unique among its kind.
    fn id(&self) -> &str;

    /// The API key it belongs to.
    fn owner(&self) -> &str;

    /// Unique among its kind and owner, if it has one.
    fn name(&self) -> Option<&str> {
        None
    }

    /// When it was made, in milliseconds since 1970: the order of listings.
    fn created_ms(&self) -> u64;
}

/// All documents of one kind.
pub struct Collection<T> {
    store: Store,
    kind: PhantomData<fn() -> T>,
}

impl<T> Clone for Collection<T> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), kind: PhantomData }
    }
}

impl<T: Document> Collection<T> {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, kind: PhantomData }
    }

    /// Adds a document; its id and name must be new.
    pub fn insert(&self, document: &T) -> Result<(), StoreError> {
        Self::execute(&self.store.connection(), INSERT, document)
    }

    /// Adds a document or replaces the one with its id.
    pub fn put(&self, document: &T) -> Result<(), StoreError> {
        self.store.surely(|connection| Self::execute(connection, PUT, document))
    }

    /// The same, and forgets another one of its id, of another kind: both or neither.
    pub fn put_instead_of<U: Document>(&self, document: &T, _other: &Collection<U>) -> Result<(), StoreError> {
        let mut connection = self.store.connection();
        let both = connection.transaction()?;
        both.prepare_cached("DELETE FROM documents WHERE kind = ?1 AND id = ?2")?
            .execute(params![U::KIND, document.id()])?;
        Self::execute(&both, PUT, document)?;
        Ok(both.commit()?)
    }

    /// Adds or replaces a document and one of another kind: both or neither.
    pub fn put_with<U: Document>(&self, document: &T, _others: &Collection<U>, other: &U) -> Result<(), StoreError> {
        self.store.surely(|connection| {
            let both = connection.unchecked_transaction()?;
            Self::execute(&both, PUT, document)?;
            Collection::<U>::execute(&both, PUT, other)?;
            Ok(both.commit()?)
        })
    }

    fn execute(connection: &Connection, statement: &str, document: &T) -> Result<(), StoreError> {
        let damaged = |error| StoreError::Damaged { kind: T::KIND, id: document.id().to_owned(), error };
        let body = serde_json::to_string(document).map_err(damaged)?;
        let created = i64::try_from(document.created_ms()).unwrap_or(i64::MAX);
        let values = params![T::KIND, document.id(), document.owner(), document.name(), created, body];
        match connection.prepare_cached(statement)?.execute(values) {
            Ok(_) => Ok(()),
            Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation) => {
                Err(StoreError::Taken(document.name().unwrap_or(document.id()).to_owned()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The document with this id.
    pub fn get(&self, id: &str) -> Result<Option<T>, StoreError> {
        self.one("SELECT id, body FROM documents WHERE kind = ?1 AND id = ?2", params![T::KIND, id])
    }

    /// An owner's document of this name.
    pub fn named(&self, owner: &str, name: &str) -> Result<Option<T>, StoreError> {
        let text = "SELECT id, body FROM documents WHERE kind = ?1 AND owner = ?2 AND name = ?3";
        self.one(text, params![T::KIND, owner, name])
    }

    /// An owner's documents, newest first.
    pub fn of(&self, owner: &str) -> Result<Vec<T>, StoreError> {
        let text = "SELECT id, body FROM documents WHERE kind = ?1 AND owner = ?2 ORDER BY created DESC, id";
        self.many(text, params![T::KIND, owner])
    }

    /// All documents, newest first.
    pub fn all(&self) -> Result<Vec<T>, StoreError> {
        self.many("SELECT id, body FROM documents WHERE kind = ?1 ORDER BY created DESC, id", params![T::KIND])
    }

    /// Forgets a document; false if there was none.
    pub fn remove(&self, id: &str) -> Result<bool, StoreError> {
        self.store.surely(|connection| {
            let mut statement = connection.prepare_cached("DELETE FROM documents WHERE kind = ?1 AND id = ?2")?;
            Ok(statement.execute(params![T::KIND, id])? > 0)
        })
    }

    /// Forgets a document so that no file holds any of it afterwards; false if there was none. Takes longer.
    pub fn erase(&self, id: &str) -> Result<bool, StoreError> {
        let there = self.remove(id)?;
        if there {
            self.store.empty_log()?;
        }
        Ok(there)
    }

    fn one(&self, statement: &str, values: &[&dyn rusqlite::ToSql]) -> Result<Option<T>, StoreError> {
        let row = self.store.connection().prepare_cached(statement)?.query_row(values, columns).optional()?;
        row.map(parse).transpose()
    }

    fn many(&self, statement: &str, values: &[&dyn rusqlite::ToSql]) -> Result<Vec<T>, StoreError> {
        let rows = {
            let connection = self.store.connection();
            let mut statement = connection.prepare_cached(statement)?;
            statement.query_map(values, columns)?.collect::<Result<Vec<_>, _>>()?
        };
        // Others can have the database meanwhile.
        rows.into_iter().map(parse).collect()
    }
}

fn columns(row: &rusqlite::Row<'_>) -> rusqlite::Result<(String, String)> {
    Ok((row.get(0)?, row.get(1)?))
}

fn parse<T: Document>((id, body): (String, String)) -> Result<T, StoreError> {
    serde_json::from_str(&body).map_err(|error| StoreError::Damaged { kind: T::KIND, id, error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Note {
        id: String,
        owner: String,
        name: Option<String>,
        made: u64,
    }

    impl Document for Note {
        const KIND: &'static str = "note";
        fn id(&self) -> &str {
            &self.id
        }
        fn owner(&self) -> &str {
            &self.owner
        }
        fn name(&self) -> Option<&str> {
            self.name.as_deref()
        }
        fn created_ms(&self) -> u64 {
            self.made
        }
    }

    fn note(id: &str, owner: &str, name: Option<&str>, made: u64) -> Note {
        Note { id: id.into(), owner: owner.into(), name: name.map(Into::into), made }
    }

    #[test]
    fn names_are_unique_to_an_owner_and_documents_without_one_do_not_collide() {
        let notes = Store::in_memory().unwrap().collection::<Note>();
        notes.insert(&note("1", "a", Some("x"), 1)).unwrap();
        notes.insert(&note("2", "b", Some("x"), 2)).unwrap();
        notes.insert(&note("3", "a", None, 3)).unwrap();
        notes.insert(&note("4", "a", None, 4)).unwrap();
        assert!(matches!(notes.insert(&note("5", "a", Some("x"), 5)), Err(StoreError::Taken(name)) if name == "x"));
        assert!(matches!(notes.put(&note("3", "a", Some("x"), 3)), Err(StoreError::Taken(_))));
        assert_eq!(notes.named("a", "x").unwrap().unwrap().id, "1");
        assert_eq!(notes.get("3").unwrap().unwrap().name, None);
    }

    #[test]
    fn listings_are_newest_first_and_one_owners_only() {
        let notes = Store::in_memory().unwrap().collection::<Note>();
        for (id, owner, made) in [("1", "a", 10), ("2", "b", 20), ("3", "a", 30)] {
            notes.insert(&note(id, owner, None, made)).unwrap();
        }
        let ids = |notes: Vec<Note>| notes.into_iter().map(|note| note.id).collect::<Vec<_>>();
        assert_eq!(ids(notes.of("a").unwrap()), ["3", "1"]);
        assert_eq!(ids(notes.all().unwrap()), ["3", "2", "1"]);
        assert!(notes.remove("3").unwrap() && !notes.remove("3").unwrap());
        assert_eq!(ids(notes.of("a").unwrap()), ["1"]);
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Draft(Note);

    impl Document for Draft {
        const KIND: &'static str = "draft";
        fn id(&self) -> &str {
            &self.0.id
        }
        fn owner(&self) -> &str {
            &self.0.owner
        }
        fn created_ms(&self) -> u64 {
            self.0.made
        }
    }

    #[test]
    fn one_takes_the_place_of_another_or_nothing_happens() {
        let store = Store::in_memory().unwrap();
        let (notes, drafts) = (store.collection::<Note>(), store.collection::<Draft>());
        for id in ["1", "2"] {
            drafts.insert(&Draft(note(id, "a", None, 1))).unwrap();
        }
        notes.put_instead_of(&note("1", "a", Some("x"), 1), &drafts).unwrap();
        let refused = notes.put_instead_of(&note("2", "a", Some("x"), 1), &drafts);
        assert!(matches!(refused, Err(StoreError::Taken(_))));
        assert_eq!((notes.all().unwrap().len(), drafts.all().unwrap().len()), (1, 1));
        assert!(drafts.get("2").unwrap().is_some());
    }

    #[test]
    fn two_are_written_or_neither_is() {
        let store = Store::in_memory().unwrap();
        let (notes, drafts) = (store.collection::<Note>(), store.collection::<Draft>());
        notes.insert(&note("1", "a", Some("x"), 1)).unwrap();
        drafts.put_with(&Draft(note("2", "a", None, 2)), &notes, &note("1", "a", Some("y"), 1)).unwrap();
        assert_eq!(notes.get("1").unwrap().unwrap().name.as_deref(), Some("y"));
        let refused = drafts.put_with(&Draft(note("3", "a", None, 3)), &notes, &note("4", "a", Some("y"), 4));
        assert!(matches!(refused, Err(StoreError::Taken(_))));
        assert!(drafts.get("2").unwrap().is_some() && drafts.get("3").unwrap().is_none());
    }

    /// Whether any file of a folder holds these bytes.
    fn holds(folder: &std::path::Path, bytes: &[u8]) -> bool {
        let files = std::fs::read_dir(folder).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
        files.into_iter().any(|file| file.windows(bytes.len()).any(|part| part == bytes))
    }

    #[test]
    fn what_was_erased_is_in_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let notes = store.collection::<Note>();
        // Some that stay, and one with pages of its own.
        for id in ["1", "2", "3"] {
            notes.put(&note(id, "stays", None, 1)).unwrap();
        }
        let secrets = ["short-secret".to_owned(), "long-secret".repeat(2000)];
        for (id, secret) in ["2s", "4"].into_iter().zip(&secrets) {
            notes.put(&note(id, secret, None, 1)).unwrap();
            assert!(holds(folder.path(), b"t-secret") || holds(folder.path(), b"g-secret"));
        }
        assert!(notes.erase("2s").unwrap() && notes.erase("4").unwrap() && !notes.erase("4").unwrap());
        assert!(!holds(folder.path(), b"short-secret") && !holds(folder.path(), b"long-secret"));
        assert_eq!(notes.all().unwrap().len(), 3);
        // Removed, and then the process was killed: the next one finds it and cleans up.
        notes.put(&note("5", "late-secret", None, 1)).unwrap();
        notes.remove("5").unwrap();
        assert!(holds(folder.path(), b"late-secret"));
        let copy = tempfile::tempdir().unwrap();
        for name in ["sloplet.db", "sloplet.db-wal"] {
            std::fs::copy(folder.path().join(name), copy.path().join(name)).unwrap();
        }
        assert!(holds(copy.path(), b"late-secret"));
        let next = Store::open(copy.path()).unwrap();
        assert!(!holds(copy.path(), b"late-secret"));
        assert_eq!(next.collection::<Note>().all().unwrap().len(), 3);
    }

    #[test]
    fn what_was_put_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.collection::<Note>().put(&note("1", "a", Some("old"), 1)).unwrap();
        store.collection::<Note>().put(&note("1", "a", Some("new"), 1)).unwrap();
        drop(store);
        let store = Store::open(folder.path()).unwrap();
        assert_eq!(store.collection::<Note>().all().unwrap(), [note("1", "a", Some("new"), 1)]);
    }
}
