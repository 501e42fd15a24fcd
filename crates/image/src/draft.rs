//! A file that is being written, and gets its name when it is whole.
//!
//! The folder may be one that a sandbox can write to, with links put there in wait. So nothing is written through a name that
//! anybody could know: the file has none, or one out of chance that must be new; and it is made, renamed and removed in the
//! folder that was open from the beginning.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open, openat, renameat, unlinkat};
use rustix::rand::{GetRandomFlags, getrandom};

/// A file under way. Dropping it leaves nothing.
pub struct Draft {
    folder: OwnedFd,
    /// The name that it will have.
    name: OsString,
    /// The name that it has, if any.
    passing: Option<String>,
    file: File,
}

impl Draft {
    /// Begins a file that will be `to`, or replace what is there.
    pub fn of(to: &Path) -> io::Result<Self> {
        let name = to.file_name().ok_or_else(|| io::Error::other("it has no file name"))?.to_owned();
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Self::within(folder, name)
    }

    /// Begins a file that will be called `name` in an open folder. Where the file system can, it has no name until then: nothing
    /// of it is left even if this process is killed.
    pub(crate) fn within(folder: OwnedFd, name: OsString) -> io::Result<Self> {
        let mode = Mode::from_raw_mode(0o666);
        if let Ok(file) = openat(&folder, ".", OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, mode) {
            return Ok(Self { folder, name, passing: None, file: file.into() });
        }
        let passing = random_name()?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&folder, &passing, flags, mode)?;
        Ok(Self { folder, name, passing: Some(passing), file: file.into() })
    }

    /// To write to.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// It is whole: gives it its name.
    pub fn keep(mut self) -> io::Result<()> {
        let passing = match self.passing.take() {
            Some(passing) => passing,
            None => {
                let (own, passing) = (format!("/proc/self/fd/{}", self.file.as_raw_fd()), random_name()?);
                linkat(CWD, own, &self.folder, &passing, AtFlags::SYMLINK_FOLLOW)?;
                passing
            }
        };
        let renamed = renameat(&self.folder, &passing, &self.folder, &self.name);
        // Removed on the way out if that failed.
        self.passing = renamed.is_err().then_some(passing);
        Ok(renamed?)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(name) = &self.passing {
            let _ = unlinkat(&self.folder, name, AtFlags::empty());
        }
    }
}

/// A name that nobody can have planted something under.
pub(crate) fn random_name() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(format!(".sloplet-{:032x}", u128::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn planted_links_are_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let (precious, to) = (dir.path().join("precious"), dir.path().join("folder/result.txt"));
        fs::create_dir(dir.path().join("folder")).unwrap();
        fs::write(&precious, "precious").unwrap();
        symlink(&precious, dir.path().join("folder/result.txt.part")).unwrap();
        symlink(&precious, &to).unwrap();
        let mut draft = Draft::of(&to).unwrap();
        draft.file().write_all(b"new").unwrap();
        // The folder is swapped for a link while the file is written.
        let elsewhere = dir.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::rename(dir.path().join("folder"), dir.path().join("moved")).unwrap();
        symlink(&elsewhere, dir.path().join("folder")).unwrap();
        draft.keep().unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        assert_eq!(fs::read_to_string(dir.path().join("moved/result.txt")).unwrap(), "new");
        assert!(fs::symlink_metadata(dir.path().join("moved/result.txt")).unwrap().is_file());
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }

    #[test]
    fn what_is_not_kept_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("file");
        let mut draft = Draft::of(&to).unwrap();
        draft.file().write_all(b"half").unwrap();
        drop(draft);
        // A folder has the name: it cannot be replaced, and nothing is left of the attempt.
        fs::create_dir(&to).unwrap();
        assert!(Draft::of(&to).unwrap().keep().is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
