//! Which tools a server offers: `--tools` and `--read-only`.

use std::collections::BTreeSet;

use anyhow::bail;

use crate::catalogue::{Entry, all};

/// What is granted.
pub struct Grant {
    entries: Vec<Entry>,
}

impl Grant {
    /// Names of tools and of groups; all if there are none. With `read_only`, of those only the ones that change nothing.
    /// Tools that move files of the host are there only if some are shared.
    pub fn new(names: &[String], read_only: bool, shares: bool) -> anyhow::Result<Self> {
        let mut entries = all();
        let wanted: BTreeSet<&str> = names.iter().map(|name| name.trim()).filter(|name| !name.is_empty()).collect();
        for name in &wanted {
            if !entries.iter().any(|entry| entry.name == *name || entry.group == *name) {
                let groups: BTreeSet<&str> = entries.iter().map(|entry| entry.group).collect();
                let tools: Vec<&str> = entries.iter().map(|entry| entry.name).collect();
                bail!(
                    "--tools: there is no '{}': give groups ({}) or tools ({})",
                    name.escape_default(),
                    groups.into_iter().collect::<Vec<_>>().join(", "),
                    tools.join(", ")
                );
            }
        }
        if !shares && wanted.iter().any(|name| ["share", "upload", "download"].contains(name)) {
            bail!("--tools: upload and download need a folder of the host to work in: add --share FOLDER");
        }
        let named = |entry: &Entry| wanted.is_empty() || wanted.contains(entry.name) || wanted.contains(entry.group);
        entries.retain(|entry| named(entry) && (!read_only || entry.reads) && (shares || entry.group != "share"));
        if entries.is_empty() {
            bail!("--tools with --read-only leaves no tool: of {}, none only reads", names.join(","));
        }
        Ok(Self { entries })
    }

    /// All that is granted.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The tool of this name, if it is granted.
    pub fn find(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Whether a tool is granted.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(tools: &[&str], read_only: bool, shares: bool) -> Vec<&'static str> {
        let tools: Vec<String> = tools.iter().map(|name| (*name).to_owned()).collect();
        Grant::new(&tools, read_only, shares).unwrap().entries().iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn groups_and_names_are_granted() {
        assert_eq!(names(&["exec", "read_file"], false, false), ["exec", "read_file"]);
        assert!(names(&["files"], false, false).contains(&"write_file"));
        assert!(!names(&[], false, false).contains(&"upload") && names(&[], false, true).contains(&"upload"));
    }

    #[test]
    fn reading_changes_nothing() {
        let left = names(&[], true, true);
        assert!(left.contains(&"read_file") && left.contains(&"network_status"));
        for changing in ["exec", "run_code", "write_file", "edit_file", "upload", "download", "restore", "expose_port"]
        {
            assert!(!left.contains(&changing), "{changing}");
        }
    }

    #[test]
    fn what_is_unknown_is_refused_with_what_is_known() {
        let refused = |tools: &[&str], read_only| {
            let tools: Vec<String> = tools.iter().map(|name| (*name).to_owned()).collect();
            Grant::new(&tools, read_only, false).err().unwrap().to_string()
        };
        let said = refused(&["exec", "fly"], false);
        assert!(said.contains("'fly'") && said.contains("processes") && said.contains("run_code"), "{said}");
        assert!(refused(&["upload"], false).contains("--share"));
        assert!(refused(&["exec"], true).contains("leaves no tool"));
    }
}
