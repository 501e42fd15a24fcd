//! What a writable mount does not let be changed unless that is asked for: files that configure the host, or that it executes.
//!
//! Code inside that writes to a project's folder would otherwise be one `git commit`, one `cd` or one start of an editor away
//! from the host. What is there is shown read-only, and the folders on the way to it cannot be moved away. What is not there
//! yet can be made: a mount has nothing to be laid over. A `sloplet.toml` that is made so is not trusted (see
//! [`untrusted`](crate::untrusted)).

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::bind::Bind;
use crate::source::Identity;

/// Their paths in a project's folder: those of sloplet, git, shells, editors and agents.
pub const GUARDED: &[&str] = &[
    "sloplet.toml",
    ".git/hooks",
    ".git/config",
    ".git/config.worktree",
    ".git/commondir",
    ".husky",
    ".pre-commit-config.yaml",
    ".envrc",
    ".vscode",
    ".idea",
    ".devcontainer",
    ".claude",
    ".mcp.json",
    ".cursor",
    ".codex",
    ".gemini",
];

/// A mount that cannot be guarded.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// Links cannot be covered.
    #[error(
        "'{0}' is a symlink, so it cannot be kept read-only inside a writable mount: replace it, or let it be changed with :rw,unguarded"
    )]
    Symlink(PathBuf),
    /// It cannot be looked at.
    #[error("cannot look at '{path}': {source}")]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The mounts that guard a mount, to be made after it, in that order. Its `from` is a real path.
pub fn guards(mount: &Bind) -> Result<Vec<Bind>, GuardError> {
    if !mount.writable || mount.unguarded || mount.volume {
        return Ok(Vec::new());
    }
    let look = |path: &Path| match fs::symlink_metadata(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(source) => Err(GuardError::Unreadable { path: path.to_owned(), source }),
        Ok(meta) if meta.is_symlink() => Err(GuardError::Symlink(path.to_owned())),
        Ok(meta) => Ok(Some(meta)),
    };
    let Some(top) = look(&mount.from)?.filter(fs::Metadata::is_dir) else { return Ok(Vec::new()) };
    let mut guards = Vec::new();
    let mut done = BTreeSet::new();
    for name in GUARDED {
        let mut path = PathBuf::new();
        let mut parts = Path::new(name).iter().peekable();
        while let Some(part) = parts.next() {
            path.push(part);
            let Some(meta) = look(&mount.from.join(&path))? else { break };
            // A folder on the way is laid over itself: what is mounted on cannot be moved away.
            let on_the_way = parts.peek().is_some() && meta.is_dir();
            if done.insert(path.clone()) {
                guards.push(Bind {
                    from: mount.from.join(&path),
                    to: mount.to.join(&path),
                    writable: on_the_way,
                    owner: Some((top.uid(), top.gid())),
                    // Somebody inside may put something else there before it is mounted: that is not shown.
                    identity: Some(Identity { device: meta.dev(), inode: meta.ino() }),
                    ..Bind::default()
                });
            }
            if !on_the_way {
                break;
            }
        }
    }
    Ok(guards)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_configures_the_host_is_covered_and_cannot_be_moved_away() {
        let folder = std::env::temp_dir().join(format!("sloplet-guarded-{}", std::process::id()));
        fs::create_dir_all(folder.join(".git/hooks")).unwrap();
        fs::write(folder.join(".git/config"), "").unwrap();
        fs::write(folder.join("sloplet.toml"), "").unwrap();
        let mount = Bind { from: folder.clone(), to: "/w".into(), writable: true, ..Bind::default() };
        let shown = |mount: &Bind| {
            let guards = guards(mount).unwrap();
            guards.iter().map(|bind| (bind.to.display().to_string(), bind.writable)).collect::<Vec<_>>()
        };
        let expected =
            [("/w/sloplet.toml", false), ("/w/.git", true), ("/w/.git/hooks", false), ("/w/.git/config", false)];
        assert_eq!(shown(&mount), expected.map(|(path, writable)| (path.to_owned(), writable)));
        assert!(shown(&Bind { unguarded: true, ..mount.clone() }).is_empty());
        assert!(shown(&Bind { writable: false, ..mount.clone() }).is_empty());
        // A work tree's `.git` is a file that tells where the rest is.
        fs::remove_dir_all(folder.join(".git")).unwrap();
        fs::write(folder.join(".git"), "gitdir: /elsewhere").unwrap();
        assert_eq!(shown(&mount)[1], ("/w/.git".to_owned(), false));
        std::os::unix::fs::symlink("/elsewhere", folder.join(".envrc")).unwrap();
        assert!(matches!(guards(&mount), Err(GuardError::Symlink(path)) if path.ends_with(".envrc")));
        fs::remove_dir_all(folder).unwrap();
    }
}
