//! Folders of the host that files may be copied from and to. Nothing outside of them is reached, by whatever name: paths are
//! walked by the kernel below an open folder, and no link is followed.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fstat, linkat, openat, openat2, renameat, unlinkat,
};
use rustix::io::Errno;

const WALK: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// A folder of the host.
pub struct Share {
    root: PathBuf,
    folder: OwnedFd,
    /// Whether files may also be put there.
    pub writable: bool,
}

impl Share {
    /// `FOLDER`, `FOLDER:ro` or `FOLDER:rw`; without either, files go both ways.
    pub fn parse(text: &str) -> (PathBuf, bool) {
        match (text.strip_suffix(":ro"), text.strip_suffix(":rw")) {
            (Some(path), _) => (path.into(), false),
            (_, Some(path)) => (path.into(), true),
            _ => (text.into(), true),
        }
    }

    /// A folder that is open; `root` is its real path.
    pub fn of(folder: OwnedFd, root: &Path, writable: bool) -> anyhow::Result<Self> {
        let stat = fstat(&folder).with_context(|| format!("--share {}", root.display()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            bail!("--share {}: it is no folder", root.display());
        }
        if root == Path::new("/") {
            bail!("--share /: name a folder, not the whole host");
        }
        Ok(Self { root: root.to_owned(), folder, writable })
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A path below it, relative to it: given so, or as an absolute path of the host.
    pub fn below(&self, path: &str) -> Option<PathBuf> {
        let path = Path::new(path);
        let path = if path.is_absolute() { path.strip_prefix(&self.root).ok()? } else { path };
        let parts: Option<PathBuf> = path
            .components()
            .filter(|part| *part != Component::CurDir)
            .map(|part| match part {
                Component::Normal(name) => Some(name),
                _ => None,
            })
            .collect();
        parts.filter(|parts| !parts.as_os_str().is_empty())
    }

    /// A file to be read, and its bytes.
    pub fn read(&self, path: &Path) -> io::Result<(File, u64)> {
        // A FIFO must not make us wait.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat2(&self.folder, path, flags, Mode::empty(), WALK).map_err(told)?;
        let stat = fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok((file.into(), stat.st_size as u64)),
            FileType::Directory => Err(io::Error::other("it is a folder: only files can be copied")),
            _ => Err(io::Error::other("it is no ordinary file")),
        }
    }

    /// A new file that has no name yet: it gets one when it is whole.
    pub fn create(&self, path: &Path) -> io::Result<Unnamed> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let parent = openat2(&self.folder, parent, flags, Mode::empty(), WALK).map_err(told)?;
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&parent, ".", flags, Mode::from_raw_mode(0o644)).map_err(|error| match error {
            Errno::OPNOTSUPP | Errno::ISDIR => io::Error::other("its file system cannot hold a file without a name"),
            other => told(other),
        })?;
        Ok(Unnamed { parent, name: name.into(), file: file.into() })
    }
}

/// A file that nobody can see yet.
pub struct Unnamed {
    parent: OwnedFd,
    name: PathBuf,
    file: File,
}

impl Unnamed {
    /// To write to.
    pub fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Gives it its name, in the place of another file if that may be.
    pub fn finish(self, overwrite: bool) -> io::Result<()> {
        let source = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link = |name: &Path| linkat(CWD, &source, &self.parent, name, AtFlags::SYMLINK_FOLLOW);
        match link(&self.name) {
            Err(Errno::EXIST) if overwrite => {
                let mut other = std::ffi::OsString::from(".sloplet-");
                other.push(&self.name);
                let other = PathBuf::from(other);
                link(&other)?;
                renameat(&self.parent, &other, &self.parent, &self.name).map_err(|error| {
                    let _ = unlinkat(&self.parent, &other, AtFlags::empty());
                    error.into()
                })
            }
            Err(Errno::EXIST) => Err(io::Error::other("there is such a file already: set overwrite to replace it")),
            done => done.map_err(Into::into),
        }
    }
}

fn told(error: Errno) -> io::Error {
    match error {
        Errno::LOOP | Errno::XDEV => io::Error::other("the way there leads over a link, which is not followed"),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::os::unix::fs::symlink;

    use super::*;

    fn share() -> (tempfile::TempDir, Share) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap().join("shared");
        fs::create_dir_all(root.join("below")).unwrap();
        fs::write(root.join("below/file"), "hello").unwrap();
        fs::write(folder.path().join("secret"), "secret").unwrap();
        let share = Share::of(sloplet_policy::source::find(&root).unwrap().0, &root, true).unwrap();
        (folder, share)
    }

    #[test]
    fn only_what_is_below_has_a_path() {
        let (_folder, share) = share();
        let absolute = share.root().join("below/file");
        assert_eq!(share.below(absolute.to_str().unwrap()), Some("below/file".into()));
        assert_eq!(share.below("./below/file"), Some("below/file".into()));
        for outside in ["/etc/passwd", "../secret", "below/../../secret", "", ".", "/"] {
            assert_eq!(share.below(outside), None, "{outside}");
        }
    }

    #[test]
    fn links_lead_nowhere() {
        let (folder, share) = share();
        symlink(folder.path().join("secret"), share.root().join("link")).unwrap();
        symlink("..", share.root().join("up")).unwrap();
        assert!(share.read(Path::new("link")).is_err() && share.read(Path::new("up/secret")).is_err());
        assert!(share.create(Path::new("up/new")).is_err());
        assert!(share.read(Path::new("below")).is_err(), "a folder is no file");
        let mut text = String::new();
        share.read(Path::new("below/file")).unwrap().0.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn a_file_appears_when_it_is_whole_and_replaces_only_if_that_is_meant() {
        let (folder, share) = share();
        let make = |text: &str, overwrite: bool| {
            let made = share.create(Path::new("new")).unwrap();
            made.file().unwrap().write_all(text.as_bytes()).unwrap();
            made.finish(overwrite)
        };
        drop(share.create(Path::new("new")).unwrap());
        assert!(!share.root().join("new").exists());
        make("one", false).unwrap();
        assert!(make("two", false).is_err());
        make("three", true).unwrap();
        assert_eq!(fs::read_to_string(share.root().join("new")).unwrap(), "three");
        // A link in the way is replaced, not followed.
        fs::remove_file(share.root().join("new")).unwrap();
        symlink(folder.path().join("secret"), share.root().join("new")).unwrap();
        make("four", true).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("secret")).unwrap(), "secret");
        assert_eq!(fs::read_dir(share.root()).unwrap().count(), 2);
    }
}
