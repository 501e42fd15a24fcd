//! Whose word a `sloplet.toml` is.
//!
//! One that was found in the working folder may have come with a repository, or from code inside a sandbox. It counts as its
//! owner's word only for the very content that the owner has vouched for (`sloplet trust`); until then it may tighten and
//! nothing else (see [`sloplet_policy::untrusted`]). One that was named is its owner's word, unless code inside a sandbox
//! could have written it.
//!
//! What was vouched for, and which folders sandboxes could write to, is kept in the data folder, never beside the file.

mod document;
mod note;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sloplet_policy::Bind;
use sloplet_policy::file::{File, FileError, Mount};
use sloplet_policy::untrusted::loosened;

use document::Document;
use note::Note;

/// Folders that are remembered, at most.
const MOST_FOLDERS: usize = 4096;

/// What the owner of a data folder has vouched for.
#[derive(Debug, Clone)]
pub struct Trust {
    vouched: Note,
    written: Note,
}

/// A file that cannot be used as it is.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// It cannot be read or understood.
    #[error(transparent)]
    File(#[from] FileError),
    /// It does more than tighten, and nobody has vouched for it.
    #[error("{} sets {settings}, {why}: read it, then 'sloplet trust {}', or leave it out with --no-config", .path.display(), .path.display())]
    Untrusted {
        /// The file.
        path: PathBuf,
        /// The settings that do more.
        settings: String,
        /// Why it is not its owner's word.
        why: Why,
    },
    /// What was vouched for cannot be looked up.
    #[error("cannot tell which files are trusted: {0}")]
    Unknown(#[source] io::Error),
}

/// Why a file is not its owner's word.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// It was found, and not named.
    #[error("and nobody has trusted it")]
    Found,
    /// It was another file when it was trusted.
    #[error("and has changed since it was trusted")]
    Changed,
    /// Sandboxes write to the folder.
    #[error("and sandboxes can write to {}, where it is", .0.display())]
    Written(PathBuf),
}

/// A file that somebody has vouched for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vouched {
    /// Its path; bytes that are no plain text are escaped.
    pub path: String,
    /// The SHA-256 of its content.
    pub sha256: String,
}

impl Trust {
    /// What is kept in this data folder.
    pub fn of(data: &Path) -> Self {
        Self { vouched: Note::new(data, "trusted.json"), written: Note::new(data, "written.json") }
    }

    /// The file that was named, or else the one in `folder`, or an empty one. `mounts` are those that this very command asks
    /// for besides the file's own.
    pub fn settings(&self, named: Option<&Path>, folder: &Path, mounts: &[Bind]) -> Result<File, TrustError> {
        let document = match named {
            Some(path) => Document::read(path)?,
            None => match Document::find(folder)? {
                Some(document) => document,
                None => return Ok(File::default()),
            },
        };
        let file = document.file()?;
        let Some(why) = self.objection(&document, &file, named.is_some(), mounts)? else { return Ok(file) };
        match loosened(&file).as_slice() {
            [] => Ok(File { untrusted: true, ..file }),
            settings => Err(TrustError::Untrusted { path: document.path, settings: settings.join(", "), why }),
        }
    }

    /// Why a document is not its owner's word, if it is not.
    fn objection(
        &self,
        document: &Document,
        file: &File,
        named: bool,
        mounts: &[Bind],
    ) -> Result<Option<Why>, TrustError> {
        let vouched: BTreeMap<String, String> = self.vouched.read().map_err(TrustError::Unknown)?;
        let known = vouched.get(&key(&document.path));
        if known == Some(&document.sha256) {
            return Ok(None);
        }
        let own = file.sandbox.mounts.iter().filter_map(|mount| Mount::bind(mount).ok());
        let asked = own.chain(mounts.iter().cloned()).filter(|bind| bind.writable);
        let asked = asked.filter_map(|bind| std::fs::canonicalize(bind.from).ok());
        let earlier: BTreeSet<String> = self.written.read().map_err(TrustError::Unknown)?;
        let written =
            document.lies_in(asked).or_else(|| document.ancestors().find(|path| earlier.contains(&key(path))));
        Ok(match (written, known) {
            (None, _) if named => None,
            (_, Some(_)) => Some(Why::Changed),
            (Some(folder), None) => Some(Why::Written(folder)),
            (None, None) => Some(Why::Found),
        })
    }

    /// Vouches for a file as it is now; returns its path and the settings of it that do more than tighten.
    pub fn vouch(&self, path: &Path) -> Result<(PathBuf, Vec<&'static str>), TrustError> {
        let document = Document::read(path)?;
        let settings = loosened(&document.file()?);
        let remember = |vouched: &mut BTreeMap<String, String>| {
            vouched.insert(key(&document.path), document.sha256.clone());
        };
        self.vouched.change(remember).map_err(TrustError::Unknown)?;
        Ok((document.path, settings))
    }

    /// Vouches for a file no longer; says whether somebody had. The file may be gone.
    pub fn revoke(&self, path: &Path) -> Result<bool, TrustError> {
        let path = document::settled(path)?;
        let mut was = false;
        let forget = |vouched: &mut BTreeMap<String, String>| was = vouched.remove(&key(&path)).is_some();
        self.vouched.change(forget).map_err(TrustError::Unknown)?;
        Ok(was)
    }

    /// All that somebody has vouched for.
    pub fn list(&self) -> Result<Vec<Vouched>, TrustError> {
        let vouched: BTreeMap<String, String> = self.vouched.read().map_err(TrustError::Unknown)?;
        Ok(vouched.into_iter().map(|(path, sha256)| Vouched { path, sha256 }).collect())
    }

    /// Remembers the folders that a sandbox is about to be able to write to: a file in them may be its, from now on.
    pub(crate) fn expose(&self, mounts: &[Bind]) -> io::Result<()> {
        let folders = mounts.iter().filter(|bind| bind.writable && !bind.volume).map(|bind| &bind.from);
        let folders: Vec<String> = folders.map(|folder| key(folder)).collect();
        if folders.is_empty() {
            return Ok(());
        }
        let known: BTreeSet<String> = self.written.read()?;
        if folders.iter().all(|folder| known.contains(folder)) {
            return Ok(());
        }
        self.written.change(|known: &mut BTreeSet<String>| {
            if known.len() >= MOST_FOLDERS {
                // Of folders that are gone nothing is found any more.
                known.retain(|folder| folder.contains('\\') || Path::new(folder).exists());
            }
            known.extend(folders);
        })
    }
}

/// A path as it is kept: its bytes, those that are no plain text escaped.
fn key(path: &Path) -> String {
    path.as_os_str().as_bytes().escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sloplet_policy::ByteSize;

    use super::*;

    const LOOSE: &str = "[secrets.K]\nhosts = [\"example.com\"]\nfrom = \"command\"\ncommand = [\"id\"]\n";
    const TIGHT: &str = "[sandbox]\nmemory = \"64MiB\"\n";

    struct Project {
        folder: tempfile::TempDir,
        trust: Trust,
    }

    impl Project {
        fn new(text: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("here")).unwrap();
            fs::write(folder.path().join("here/sloplet.toml"), text).unwrap();
            let trust = Trust::of(&folder.path().join("data"));
            Self { folder, trust }
        }

        fn here(&self) -> PathBuf {
            self.folder.path().canonicalize().unwrap().join("here")
        }

        fn file(&self) -> PathBuf {
            self.here().join("sloplet.toml")
        }

        fn found(&self) -> Result<File, TrustError> {
            self.trust.settings(None, &self.here(), &[])
        }

        fn named(&self, mounts: &[Bind]) -> Result<File, TrustError> {
            self.trust.settings(Some(&self.file()), Path::new("/"), mounts)
        }

        fn rw(&self) -> Bind {
            Bind { from: self.here(), to: "/workspace".into(), writable: true, ..Bind::default() }
        }
    }

    fn why(result: Result<File, TrustError>) -> Why {
        match result {
            Err(TrustError::Untrusted { why, settings, .. }) if settings == "secrets" => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_that_is_found_only_tightens_until_it_is_trusted_as_it_is() {
        let project = Project::new(LOOSE);
        assert_eq!(why(project.found()), Why::Found);
        project.trust.vouch(&project.file()).unwrap();
        assert!(!project.found().unwrap().untrusted);
        // For this content alone.
        fs::write(project.file(), format!("{LOOSE}# more\n")).unwrap();
        assert_eq!(why(project.found()), Why::Changed);
        assert_eq!(why(project.named(&[project.rw()])), Why::Changed);
        assert!(project.named(&[]).is_ok());
        fs::write(project.file(), LOOSE).unwrap();
        assert!(project.found().is_ok());
        assert!(project.trust.revoke(&project.file()).unwrap() && !project.trust.revoke(&project.file()).unwrap());
        assert_eq!(why(project.found()), Why::Found);
        fs::write(project.file(), TIGHT).unwrap();
        let file = project.found().unwrap();
        assert!(file.untrusted && file.sandbox.memory == Some(ByteSize::mib(64)));
    }

    #[test]
    fn a_file_that_is_named_counts_unless_a_sandbox_could_have_written_it() {
        let project = Project::new(LOOSE);
        assert!(!project.named(&[]).unwrap().untrusted);
        // This very command.
        assert_eq!(why(project.named(&[project.rw()])), Why::Written(project.here()));
        assert!(project.named(&[Bind { writable: false, ..project.rw() }]).is_ok());
        // One that was made before, of a folder around it, and by another name.
        project.trust.expose(&[Bind { from: project.folder.path().canonicalize().unwrap(), ..project.rw() }]).unwrap();
        assert!(matches!(why(project.named(&[])), Why::Written(_)));
        let elsewhere = tempfile::tempdir().unwrap();
        let link = elsewhere.path().join("link.toml");
        std::os::unix::fs::symlink(project.file(), &link).unwrap();
        assert!(matches!(why(project.trust.settings(Some(&link), Path::new("/"), &[])), Why::Written(_)));
        project.trust.vouch(&project.file()).unwrap();
        assert!(project.named(&[project.rw()]).is_ok());
        // What is named by a link lies elsewhere, and so do the paths in it.
        assert!(project.trust.settings(Some(&link), Path::new("/"), &[]).is_err());
    }

    #[test]
    fn what_is_trusted_is_kept_where_nobody_else_writes() {
        use std::os::unix::fs::PermissionsExt;
        let project = Project::new(LOOSE);
        project.trust.vouch(&project.file()).unwrap();
        let kept = project.folder.path().join("data/trusted.json");
        assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(project.trust.list().unwrap()[0].path, project.file().display().to_string());
        fs::set_permissions(&kept, PermissionsExt::from_mode(0o666)).unwrap();
        assert!(matches!(project.found(), Err(TrustError::Unknown(_))));
        let text = fs::read(&kept).unwrap();
        fs::remove_file(&kept).unwrap();
        fs::write(project.here().join("planted.json"), text).unwrap();
        std::os::unix::fs::symlink(project.here().join("planted.json"), &kept).unwrap();
        assert!(matches!(project.found(), Err(TrustError::Unknown(_))));
    }

    #[test]
    fn what_is_no_file_or_too_large_is_refused() {
        let project = Project::new(&format!("# {}\n", "x".repeat(1 << 20)));
        assert!(matches!(project.found(), Err(TrustError::File(FileError::Unreadable { .. }))));
        fs::remove_file(project.file()).unwrap();
        assert_eq!(project.found().unwrap(), File::default());
        assert!(project.named(&[]).is_err());
        // Nobody waits for a writer.
        rustix::fs::mkfifoat(rustix::fs::CWD, project.file(), rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        assert_eq!(project.found().unwrap(), File::default());
    }
}
