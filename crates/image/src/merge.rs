//! Makes one layer out of several snapshots that lie on each other, so that a chain of snapshots has no end.
//!
//! The result shows what the stack would: of each name the topmost counts, folders are merged down to one that hides what
//! is below it, and what was removed stays removed where something under the stack still has it. Whiteouts that hide
//! nothing are left out: in a folder of a single layer the kernel would list them.
//!
//! Layers never change and nobody writes to the target but this, so paths in them are safe to use: every part of one was
//! seen to be a folder. A path that is too long for the kernel is an error.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown, symlink,
};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use crate::attributes::{self, MAX_ATTRIBUTE};
use crate::guard::{is_opaque, merged};
use crate::unpack::OPAQUE_XATTR;

/// Bytes at once.
const CHUNK: usize = 256 * 1024;

/// Merges `layers`, topmost first, into the empty folder `target`. `below` is what they will lie on. Returns the bytes of
/// file content.
pub(crate) fn merge(layers: &[PathBuf], below: &[PathBuf], target: &Path) -> io::Result<u64> {
    let as_root = rustix::process::geteuid().is_root();
    let buffer = vec![0; CHUNK.max(MAX_ATTRIBUTE)];
    let mut merger = Merger { layers, below, target, as_root, links: HashMap::new(), bytes: 0, buffer };
    let all: Vec<usize> = (0..layers.len()).collect();
    merger.folder(Path::new(""), &all, false)?;
    fs::set_permissions(target, Permissions::from_mode(0o755))?;
    Ok(merger.bytes)
}

struct Merger<'a> {
    layers: &'a [PathBuf],
    below: &'a [PathBuf],
    target: &'a Path,
    as_root: bool,
    /// Where files of several names were put.
    links: HashMap<(u64, u64), PathBuf>,
    bytes: u64,
    buffer: Vec<u8>,
}

impl Merger<'_> {
    /// Fills the folder `path` of the target from those of the layers `sources`, topmost first.
    fn folder(&mut self, path: &Path, sources: &[usize], hides: bool) -> io::Result<()> {
        let mut names: BTreeMap<OsString, usize> = BTreeMap::new();
        let mut shut = Vec::new();
        for (position, layer) in sources.iter().enumerate() {
            let folder = self.layers[*layer].join(path);
            let entries = match fs::read_dir(&folder) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !self.as_root => {
                    // An ordinary user's own folder, which somebody inside has shut.
                    shut.push((folder.clone(), fs::metadata(&folder)?.permissions()));
                    fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
                    fs::read_dir(&folder)?
                }
                entries => entries?,
            };
            for entry in entries {
                names.entry(entry?.file_name()).or_insert(position);
            }
        }
        let filled = names.into_iter().try_for_each(|(name, position)| {
            let path = path.join(name);
            self.entry(&path, &sources[position..], hides)
        });
        for (folder, permissions) in shut {
            fs::set_permissions(folder, permissions)?;
        }
        filled
    }

    /// Puts what the first of `sources` has at `path` into the target.
    fn entry(&mut self, path: &Path, sources: &[usize], hides: bool) -> io::Result<()> {
        let [first, lower @ ..] = sources else { return Ok(()) };
        let source = self.layers[*first].join(path);
        let known = fs::symlink_metadata(&source)?;
        if !known.is_dir() {
            return self.file(path, &source, &known, hides);
        }
        let mut merging = vec![*first];
        let mut opaque = is_opaque(&source);
        for layer in lower {
            if opaque {
                break;
            }
            let other = self.layers[*layer].join(path);
            match fs::symlink_metadata(&other) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(known) if known.is_dir() => {
                    merging.push(*layer);
                    opaque = is_opaque(&other);
                }
                // Removed or replaced there: what lies further down is hidden.
                Ok(_) => opaque = true,
            }
        }
        let target = self.target.join(path);
        fs::DirBuilder::new().mode(0o700).create(&target)?;
        self.folder(path, &merging, hides || opaque)?;
        self.attributes(&source, &target)?;
        if opaque {
            rustix::fs::lsetxattr(&target, OPAQUE_XATTR, b"y", XattrFlags::empty())?;
        }
        self.dress(&target, &known)
    }

    fn file(&mut self, path: &Path, source: &Path, known: &Metadata, hides: bool) -> io::Result<()> {
        let (kind, target) = (known.file_type(), self.target.join(path));
        if kind.is_char_device() {
            let needed = known.rdev() == 0 && !hides && merged(self.below, path).is_some();
            return match needed {
                true => Ok(rustix::fs::mknodat(CWD, &target, FileType::CharacterDevice, Mode::empty(), 0)?),
                false => Ok(()),
            };
        }
        if known.nlink() > 1 {
            match self.links.get(&(known.dev(), known.ino())).map(|first| fs::hard_link(first, &target)) {
                Some(Err(error)) if error.raw_os_error() == Some(Errno::MLINK.raw_os_error()) => {}
                Some(linked) => return linked,
                None => {}
            }
            self.links.insert((known.dev(), known.ino()), target.clone());
        }
        if kind.is_file() {
            return self.content(source, &target, known);
        }
        if kind.is_symlink() {
            symlink(fs::read_link(source)?, &target)?;
        } else if kind.is_fifo() {
            rustix::fs::mknodat(CWD, &target, FileType::Fifo, Mode::from_raw_mode(known.mode() & 0o777), 0)?;
        } else {
            return Ok(());
        }
        self.own(&target, known)?;
        date(&target, known)
    }

    fn content(&mut self, source: &Path, target: &Path, known: &Metadata) -> io::Result<()> {
        let from = match File::open(source) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !self.as_root => {
                // A file of an ordinary user that nobody may read: another name for it is as good as a copy.
                self.bytes += known.len();
                return fs::hard_link(source, target);
            }
            from => from?,
        };
        let to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(target)?;
        to.set_len(known.len())?;
        let mut at = 0;
        while at < known.len() {
            at = match rustix::fs::seek(&from, SeekFrom::Data(at)) {
                Err(Errno::NXIO) => break,
                start => start?,
            };
            let end = rustix::fs::seek(&from, SeekFrom::Hole(at))?.min(known.len());
            while at < end {
                let want = CHUNK.min(usize::try_from(end - at).unwrap_or(CHUNK));
                let got = from.read_at(&mut self.buffer[..want], at)?;
                if got == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                to.write_all_at(&self.buffer[..got], at)?;
                at += got as u64;
                self.bytes += got as u64;
            }
        }
        self.own(target, known)?;
        self.attributes(source, target)?;
        self.dress(target, known)
    }

    /// Attributes but those that the overlay itself keeps of a layer.
    fn attributes(&mut self, source: &Path, target: &Path) -> io::Result<()> {
        let length = match rustix::fs::llistxattr(source, &mut self.buffer[..MAX_ATTRIBUTE]) {
            Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(()),
            length => length?,
        };
        let names = self.buffer[..length].to_vec();
        for name in names.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok()) {
            // The overlay's own mark is decided on anew.
            if name == OPAQUE_XATTR || !attributes::belongs(name.as_bytes()) {
                continue;
            }
            let capability = name.as_bytes() == attributes::CAPABILITY;
            let length = rustix::fs::lgetxattr(source, name, &mut self.buffer[..MAX_ATTRIBUTE])?;
            let set = rustix::fs::lsetxattr(target, name, &self.buffer[..length], XattrFlags::empty());
            // A program without its capabilities is still the program.
            if !capability {
                set?;
            }
        }
        Ok(())
    }

    fn own(&self, target: &Path, known: &Metadata) -> io::Result<()> {
        if self.as_root { lchown(target, Some(known.uid()), Some(known.gid())) } else { Ok(()) }
    }

    /// Owner, mode and times of what is complete; a change of the owner takes set-ID bits away, so the mode comes after.
    fn dress(&self, target: &Path, known: &Metadata) -> io::Result<()> {
        if known.is_dir() {
            self.own(target, known)?;
        }
        fs::set_permissions(target, Permissions::from_mode(known.mode() & 0o7777))?;
        date(target, known)
    }
}

fn date(target: &Path, known: &Metadata) -> io::Result<()> {
    let of = |seconds, nanoseconds: i64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ };
    let times = Timestamps {
        last_access: of(known.atime(), known.atime_nsec()),
        last_modification: of(known.mtime(), known.mtime_nsec()),
    };
    Ok(rustix::fs::utimensat(CWD, target, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opaque(path: &Path) {
        rustix::fs::lsetxattr(path, OPAQUE_XATTR, b"y", XattrFlags::empty()).unwrap();
    }

    fn whiteout(path: &Path) {
        rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    }

    fn names(path: &Path) -> Vec<String> {
        let mut all: Vec<_> =
            fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    }

    #[test]
    fn a_merged_layer_shows_what_the_stack_did() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for path in ["below/base", "1/dir", "1/hidden/old", "1/base", "2/dir", "3/hidden", "3/again", "2/base", "out"] {
            fs::create_dir_all(at(path)).unwrap();
        }
        for (path, content) in [
            ("below/base/removed", "b"),
            ("below/base/kept", "b"),
            ("1/dir/one", "1"),
            ("1/dir/both", "1"),
            ("1/again", "a file"),
            ("2/dir/both", "22"),
            ("3/hidden/new", "3"),
            ("1/only-ever-here", "x"),
        ] {
            fs::write(at(path), content).unwrap();
        }
        opaque(&at("3/hidden"));
        whiteout(&at("2/base/removed"));
        whiteout(&at("2/only-ever-here"));
        whiteout(&at("2/dir/gone-below-too"));
        fs::hard_link(at("1/dir/one"), at("1/dir/linked")).unwrap();
        symlink("/nowhere", at("1/dir/soft")).unwrap();
        fs::set_permissions(at("2/dir/both"), Permissions::from_mode(0o640)).unwrap();
        fs::set_permissions(at("2/dir"), Permissions::from_mode(0o1711)).unwrap();
        rustix::fs::lsetxattr(at("2/dir"), "user.note", b"n", XattrFlags::empty()).unwrap();
        let sparse = File::create(at("3/sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        sparse.write_all_at(b"end", (1 << 30) - 3).unwrap();

        let layers = [at("3"), at("2"), at("1")];
        let bytes = merge(&layers, &[at("below")], &at("out")).unwrap();
        assert!(bytes < 1 << 20, "holes stay holes: {bytes}");
        assert_eq!(names(&at("out")), ["again", "base", "dir", "hidden", "sparse"]);
        assert_eq!(names(&at("out/dir")), ["both", "linked", "one", "soft"]);
        assert_eq!(names(&at("out/base")), ["removed"], "the only whiteout that hides something");
        assert_eq!(names(&at("out/hidden")), ["new"]);
        assert!(is_opaque(&at("out/hidden")) && is_opaque(&at("out/again")) && !is_opaque(&at("out/dir")));
        assert_eq!(fs::read(at("out/dir/both")).unwrap(), b"22");
        let known = |path: &str| fs::symlink_metadata(at(path)).unwrap();
        assert_eq!((known("out/dir/both").mode() & 0o7777, known("out/dir").mode() & 0o7777), (0o640, 0o1711));
        assert_eq!(known("out/dir/one").ino(), known("out/dir/linked").ino());
        assert_eq!(known("out/dir").mtime_nsec(), known("2/dir").mtime_nsec());
        assert!(known("out/sparse").blocks() < 1000);
        assert_eq!(fs::read_link(at("out/dir/soft")).unwrap(), Path::new("/nowhere"));
        let mut value = [0u8; 8];
        assert_eq!(rustix::fs::lgetxattr(at("out/dir"), "user.note", &mut value[..]), Ok(1));
    }
}
