//! What `openat2` does, for kernels that do not have it (gVisor): one component at a time, each relative to the
//! descriptor of the one before, and never through a symlink that was not read here.

use std::collections::VecDeque;
use std::ffi::CString;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Symlinks on the way, as many as Linux follows.
const LINKS: usize = 40;

/// The folder of a component: a link in the kernel's own file systems names what it shows, so its text is all there is.
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens `path` below `root`: with `IN_ROOT`, absolute paths and links start there and `..` stops there; with `BENEATH`,
/// both are refused. Magic links are only text.
pub(crate) fn open(
    root: &OwnedFd,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let in_root = resolve.contains(ResolveFlags::IN_ROOT);
    let mut rest: VecDeque<Vec<u8>> = parts(path).collect();
    let mut folder_wanted = path.ends_with(b"/");
    if path.starts_with(b"/") && !in_root {
        return Err(Errno::XDEV);
    }
    // The folders from the root to here, without the root.
    let mut above: Vec<OwnedFd> = Vec::new();
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if part == b"." {
            folder_wanted |= rest.is_empty();
            continue;
        }
        if part == b".." {
            folder_wanted |= rest.is_empty();
            if above.pop().is_none() && !in_root {
                return Err(Errno::XDEV);
            }
            continue;
        }
        let here = above.last().unwrap_or(root).as_fd();
        let name = CString::new(part).map_err(|_| Errno::INVAL)?;
        if !rest.is_empty() || folder_wanted {
            match rustix::fs::openat(here, &name, FOLDER, Mode::empty()) {
                Ok(folder) => {
                    above.push(folder);
                    continue;
                }
                // A symlink, perhaps; reading it tells.
                Err(Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(error),
            }
        } else {
            let keep = flags.contains(OFlags::NOFOLLOW) || flags.contains(OFlags::CREATE | OFlags::EXCL);
            let opened = rustix::fs::openat(here, &name, flags | OFlags::NOFOLLOW, mode);
            match opened {
                // O_PATH opens a link itself.
                Ok(opened) if !keep && flags.contains(OFlags::PATH) && is_link(&opened)? => {}
                Err(Errno::LOOP) if !keep => {}
                // As above; what is no link is no folder either.
                Err(Errno::NOTDIR) if !keep && flags.contains(OFlags::DIRECTORY) => {}
                opened => return opened,
            }
        }
        let target = match rustix::fs::readlinkat(here, &name, Vec::new()) {
            Ok(target) => target.into_bytes(),
            Err(Errno::INVAL) => return Err(Errno::NOTDIR),
            Err(error) => return Err(error),
        };
        links += 1;
        if links > LINKS || resolve.contains(ResolveFlags::NO_SYMLINKS) {
            return Err(Errno::LOOP);
        }
        if target.starts_with(b"/") {
            if !in_root {
                return Err(Errno::XDEV);
            }
            above.clear();
        }
        folder_wanted |= rest.is_empty() && target.ends_with(b"/");
        for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
            rest.push_front(part);
        }
    }
    // It ended at a folder: opened once more, as it is wanted.
    rustix::fs::openat(above.last().unwrap_or(root), c".", flags & !OFlags::CREATE, mode)
}

fn parts(path: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).map(<[u8]>::to_vec)
}

fn is_link(fd: &OwnedFd) -> Result<bool, Errno> {
    let stat = rustix::fs::fstat(fd)?;
    Ok(rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Symlink)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    /// The same requests through the kernel and through here.
    #[test]
    fn it_decides_as_the_kernel_does() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("root");
        std::fs::create_dir_all(base.join("a/b")).unwrap();
        std::fs::write(dir.path().join("secret"), "secret").unwrap();
        std::fs::write(base.join("a/file"), "file").unwrap();
        std::fs::write(base.join("secret"), "inside").unwrap();
        for (link, target) in [
            ("up", "../secret"),
            ("abs", "/secret"),
            ("dir", "a"),
            ("dirs", "a/b/../"),
            ("loop", "loop"),
            ("gone", "nowhere"),
            ("deep", "a/b/../../../../../secret"),
            ("a/back", "../a/file"),
        ] {
            symlink(target, base.join(link)).unwrap();
        }
        let root = rustix::fs::open(&base, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let paths = [
            "a/file",
            "/a/file",
            "a/file/",
            "up",
            "abs",
            "dir/file",
            "dirs/file",
            "loop",
            "gone",
            "gone/x",
            "deep",
            ".",
            "/",
            "..",
            "../secret",
            "a/../secret",
            "a/b/..",
            "a/b/../file",
            "a/back",
            "a//b/.//../file",
            "dir",
            "dir/",
            "secret/x",
            "none",
            "a/none",
            "a/.",
            "up/",
        ];
        let kinds = [
            OFlags::RDONLY,
            OFlags::PATH,
            OFlags::RDONLY | OFlags::NOFOLLOW,
            OFlags::PATH | OFlags::NOFOLLOW,
            OFlags::RDONLY | OFlags::DIRECTORY,
            OFlags::PATH | OFlags::DIRECTORY,
        ];
        for resolve in [ResolveFlags::IN_ROOT, ResolveFlags::BENEATH, ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS]
        {
            for flags in kinds {
                for path in paths {
                    let told = |opened: Result<OwnedFd, Errno>| {
                        opened.map(|fd| {
                            let stat = rustix::fs::fstat(&fd).unwrap();
                            let mut text = String::new();
                            let _ = std::fs::File::from(fd).read_to_string(&mut text);
                            (stat.st_ino, text)
                        })
                    };
                    let flags = flags | OFlags::CLOEXEC;
                    let resolve = resolve | ResolveFlags::NO_MAGICLINKS;
                    let kernel = told(rustix::fs::openat2(&root, path, flags, Mode::empty(), resolve));
                    let ours = told(open(&root, path.as_bytes(), flags, Mode::empty(), resolve));
                    assert_eq!(ours, kernel, "{path} {flags:?} {resolve:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_made_is_made_inside() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("root");
        std::fs::create_dir(&base).unwrap();
        symlink("/made", base.join("link")).unwrap();
        let root = rustix::fs::open(&base, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        open(&root, b"/link", flags, Mode::from_raw_mode(0o600), ResolveFlags::IN_ROOT).unwrap();
        assert!(base.join("made").exists());
    }
}
