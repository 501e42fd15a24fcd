//! Whose sandboxes were whose, and what they were called: also of those that are gone, as far as the ledger reaches.

use std::collections::HashMap;
use std::path::Path;

use sloplet_ledger::{Event, Filter, LedgerError, Reader};

/// What the ledger says of where sandboxes came from. Read once, then only what was added.
#[derive(Debug, Default)]
pub struct Origins {
    read_to: u64,
    sandboxes: HashMap<String, Origin>,
}

#[derive(Debug)]
struct Origin {
    actor: String,
    name: Option<String>,
    seq: u64,
}

impl Origins {
    /// Takes in what was written since the last time. Waits for files.
    pub fn read_on(&mut self, data: &Path) -> Result<(), LedgerError> {
        let kinds = vec!["sandbox_created".to_owned()];
        let reader = Reader::new(data, Filter { kinds, after_seq: self.read_to, ..Filter::default() });
        let last = reader.last_seq()?;
        for record in reader {
            let record = match record {
                // What a verification is for.
                Err(LedgerError::Damaged { .. }) => continue,
                record => record?,
            };
            self.read_to = record.seq;
            let (Some(sandbox), Event::SandboxCreated(created)) = (&record.sandbox, record.event()) else { continue };
            let name = created.name.map(String::from);
            let origin = Origin { actor: record.actor.clone(), name, seq: record.seq };
            self.sandboxes.insert(sandbox.clone(), origin);
        }
        self.read_to = self.read_to.max(last);
        Ok(())
    }

    /// Who made a sandbox: `cli`, `key:<owner>`.
    pub fn actor(&self, sandbox: &str) -> Option<&str> {
        self.sandboxes.get(sandbox).map(|origin| origin.actor.as_str())
    }

    /// The id of a sandbox: `name` itself if it is one, or the last that was called so. With `actor`, only of theirs.
    pub fn find(&self, name: &str, actor: Option<&str>) -> Option<String> {
        let theirs = |origin: &Origin| actor.is_none_or(|actor| origin.actor == actor);
        if self.sandboxes.get(name).is_some_and(theirs) {
            return Some(name.to_owned());
        }
        let named = self.sandboxes.iter().filter(|(_, one)| one.name.as_deref() == Some(name) && theirs(one));
        named.max_by_key(|(_, origin)| origin.seq).map(|(id, _)| id.clone())
    }
}

#[cfg(test)]
mod tests {
    use sloplet_ledger::event::SandboxCreated;
    use sloplet_ledger::{Ledger, Options};

    use super::*;

    #[test]
    fn the_last_of_a_name_is_meant_and_others_are_not_seen() {
        let data = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(data.path(), Options::default());
        let made = |id, actor, name: Option<&str>| {
            let created = SandboxCreated { name: name.map(Into::into), ..SandboxCreated::default() };
            ledger.record(Some(id), actor, Event::SandboxCreated(created)).unwrap();
            ledger.drain().unwrap();
        };
        let mut origins = Origins::default();
        origins.read_on(data.path()).unwrap();
        assert_eq!(origins.find("my", None), None);
        made("a", "key:me", Some("my"));
        made("b", "key:you", Some("my"));
        origins.read_on(data.path()).unwrap();
        made("c", "key:me", Some("my"));
        made("d", "cli", None);
        origins.read_on(data.path()).unwrap();
        assert_eq!(origins.find("my", Some("key:me")).as_deref(), Some("c"));
        assert_eq!(origins.find("my", Some("key:you")).as_deref(), Some("b"));
        assert_eq!(origins.find("a", None).as_deref(), Some("a"));
        assert_eq!(origins.find("a", Some("key:you")), None);
        assert_eq!(origins.actor("d"), Some("cli"));
    }
}
