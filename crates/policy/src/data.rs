//! Files that are shown inside only after they were masked.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::bind::{Bind, BindError};

/// Files that one sandbox may have, at most: each is masked before it starts.
pub const MOST: usize = 64;

/// A file of the host that goes in masked, read-only. The original never does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataMount {
    /// The original, on the host.
    pub from: PathBuf,
    /// Where its masked copy is inside; absolute.
    pub to: PathBuf,
    /// The rules, on the host: what is done with each column.
    pub mask: PathBuf,
    /// The key that the fakes come from, on the host; the engine's own if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// The table of the rules, if the file's name does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
}

impl DataMount {
    /// Refuses places inside that cannot be one.
    pub fn check(&self) -> Result<(), BindError> {
        self.bind(&self.from).check()
    }

    /// The mount of its masked copy.
    pub fn bind(&self, copy: &Path) -> Bind {
        Bind { from: copy.to_owned(), to: self.to.clone(), ..Bind::default() }
    }

    /// The same, with paths of the host relative to `folder`.
    pub fn below(self, folder: &Path) -> Self {
        Self {
            from: folder.join(self.from),
            mask: folder.join(self.mask),
            key: self.key.map(|key| folder.join(key)),
            ..self
        }
    }
}
