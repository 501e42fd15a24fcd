//! What a tree of layers has that another has not: the changes of a sandbox against what it was made from.
//!
//! Both trees are read as an overlay shows them: of each name the topmost counts, folders are merged down to one that
//! hides what is below it. Only layers that the other tree does not have, too, can hold a change, so only they are walked.
//! All names and contents are hostile; layers never change, so paths in them are safe to use: every part of one was seen
//! to be a folder. A path that is too long for the kernel is an error.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::guard::is_opaque;

/// Most changes that are told.
pub const MOST: usize = 100_000;

/// Most names of one folder.
const NAMES: usize = 1_000_000;

/// Folders within folders.
const DEPTH: usize = 256;

/// What is at a path.
#[derive(Debug, Clone)]
pub struct Node {
    /// Where its content is on the host: never follow it if it is a link.
    pub at: PathBuf,
    /// What it is.
    pub kind: NodeKind,
    /// Permission bits.
    pub mode: u32,
    /// Who it belongs to inside: user and group. The same for all where an ordinary user keeps the files.
    pub owner: (u32, u32),
    /// Bytes of a file.
    pub size: u64,
}

/// What kind of thing is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A folder.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO, or a device.
    Other,
}

/// A path whose content, kind, mode or owner is not what it was.
#[derive(Debug, Clone)]
pub struct Change {
    /// Without a slash at its beginning.
    pub path: PathBuf,
    /// What was there.
    pub before: Option<Node>,
    /// What is there now.
    pub after: Option<Node>,
    /// Whether the content differs, or the kind.
    pub content: bool,
}

/// All changes, sorted by path.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// One for each path. Of a folder that is gone, all that was in it is listed, too.
    pub list: Vec<Change>,
    /// Whether there are more than [`MOST`].
    pub truncated: bool,
}

/// Compares two stacks of layers, topmost first. Only what `wanted` says yes to is told; it is asked about folders first, and
/// what is in one that it does not want is not looked at.
pub fn changes(now: &[PathBuf], before: &[PathBuf], wanted: &dyn Fn(&Path) -> bool) -> io::Result<Changes> {
    let shared = now.iter().rev().zip(before.iter().rev()).take_while(|(a, b)| a == b).count();
    let fresh = now.len() - shared;
    let mut walk = Walk { wanted, found: Changes::default() };
    walk.folder(Path::new(""), &Stack::of(now, fresh), &Stack::of(before, before.len() - shared), 0)?;
    walk.found.list.sort_by(|a, b| a.path.as_os_str().as_bytes().cmp(b.path.as_os_str().as_bytes()));
    Ok(walk.found)
}

/// The folders of a stack of layers that an overlay would merge at one path, topmost first.
#[derive(Clone, Default)]
struct Stack {
    folders: Vec<PathBuf>,
    /// So many of them are in layers that the other tree does not have.
    own: usize,
}

/// What a stack has under a name.
enum Found {
    Nothing,
    Leaf(Node),
    Folder(Node, Stack),
}

impl Stack {
    fn of(layers: &[PathBuf], own: usize) -> Self {
        Self { folders: layers.to_vec(), own }
    }

    /// Adds the names in the topmost `count` folders.
    fn names(&self, count: usize, into: &mut BTreeSet<OsString>) -> io::Result<()> {
        for folder in self.folders.iter().take(count) {
            for entry in fs::read_dir(folder)? {
                into.insert(entry?.file_name());
                if into.len() > NAMES {
                    return Err(io::Error::other("a folder has more than a million names"));
                }
            }
        }
        Ok(())
    }

    fn find(&self, name: &OsStr) -> io::Result<Found> {
        let (mut folder, mut stack) = (None, Self::default());
        for (place, layer) in self.folders.iter().enumerate() {
            let at = layer.join(name);
            let known = match fs::symlink_metadata(&at) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                known => known?,
            };
            if !known.is_dir() {
                // Below a folder, a file hides what is further down, and so does a name that was removed.
                return Ok(match folder {
                    Some(node) => Found::Folder(node, stack),
                    None if known.file_type().is_char_device() && known.rdev() == 0 => Found::Nothing,
                    None => Found::Leaf(Node::of(at, &known)),
                });
            }
            let opaque = is_opaque(&at);
            stack.own += usize::from(place < self.own);
            stack.folders.push(at.clone());
            folder.get_or_insert_with(|| Node::of(at, &known));
            if opaque {
                break;
            }
        }
        Ok(folder.map_or(Found::Nothing, |node| Found::Folder(node, stack)))
    }
}

impl Node {
    fn of(at: PathBuf, known: &Metadata) -> Self {
        let kind = match known.file_type() {
            kind if kind.is_file() => NodeKind::File,
            kind if kind.is_dir() => NodeKind::Directory,
            kind if kind.is_symlink() => NodeKind::Symlink,
            _ => NodeKind::Other,
        };
        let size = if kind == NodeKind::File { known.len() } else { 0 };
        Self { at, kind, mode: known.mode() & 0o7777, owner: (known.uid(), known.gid()), size }
    }

    /// The content of a file, or where a link leads; `None` if it is longer than that.
    pub fn content(&self, most: u64) -> io::Result<Option<Vec<u8>>> {
        match self.kind {
            NodeKind::File if self.size > most => Ok(None),
            NodeKind::File => {
                let mut content = Vec::new();
                File::open(&self.at)?.take(most + 1).read_to_end(&mut content)?;
                Ok((content.len() as u64 <= most).then_some(content))
            }
            NodeKind::Symlink => Ok(Some(fs::read_link(&self.at)?.into_os_string().as_bytes().to_vec())),
            NodeKind::Directory | NodeKind::Other => Ok(Some(Vec::new())),
        }
    }

    /// Whether both have the same content and are of one kind. What cannot be read is not the same.
    fn is_like(&self, other: &Self) -> bool {
        if self.kind != other.kind || self.size != other.size {
            return false;
        }
        match self.kind {
            NodeKind::File => self.at == other.at || same_bytes(&self.at, &other.at).unwrap_or(false),
            NodeKind::Symlink => fs::read_link(&self.at).ok() == fs::read_link(&other.at).ok(),
            NodeKind::Directory | NodeKind::Other => true,
        }
    }
}

fn same_bytes(one: &Path, two: &Path) -> io::Result<bool> {
    let (mut one, mut two) = (File::open(one)?, File::open(two)?);
    let (mut a, mut b) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let count = one.read(&mut a)?;
        two.read_exact(&mut b[..count.max(1)]).or_else(|error| if count == 0 { Ok(()) } else { Err(error) })?;
        if count == 0 {
            return Ok(true);
        }
        if a[..count] != b[..count] {
            return Ok(false);
        }
    }
}

struct Walk<'a> {
    wanted: &'a dyn Fn(&Path) -> bool,
    found: Changes,
}

impl Walk<'_> {
    /// Compares what two stacks have at `path`.
    fn folder(&mut self, path: &Path, now: &Stack, before: &Stack, depth: usize) -> io::Result<()> {
        if depth > DEPTH {
            return Err(io::Error::other(format!("folders are nested more than {DEPTH} deep")));
        }
        // A stack that has lost its lower part, or never had it, can miss any of the other's names.
        let cut = now.folders.len() - now.own != before.folders.len() - before.own;
        let mut names = BTreeSet::new();
        now.names(if cut { usize::MAX } else { now.own }, &mut names)?;
        before.names(if cut { usize::MAX } else { before.own }, &mut names)?;
        for name in names {
            let path = path.join(&name);
            if !(self.wanted)(&path) || self.found.truncated {
                continue;
            }
            let (now, before) = (now.find(&name)?, before.find(&name)?);
            self.entry(path, now, before, depth)?;
        }
        Ok(())
    }

    fn entry(&mut self, path: PathBuf, now: Found, before: Found, depth: usize) -> io::Result<()> {
        let (after, inner) = now.split();
        let (former, outer) = before.split();
        let change = match (&after, &former) {
            (None, None) => false,
            (Some(after), Some(former)) => {
                !after.is_like(former) || after.mode != former.mode || after.owner != former.owner
            }
            _ => true,
        };
        if change {
            if self.found.list.len() >= MOST {
                self.found.truncated = true;
                return Ok(());
            }
            let content = match (&after, &former) {
                (Some(after), Some(former)) => !after.is_like(former),
                _ => true,
            };
            self.found.list.push(Change { path: path.clone(), before: former, after, content });
        }
        if inner.folders.is_empty() && outer.folders.is_empty() {
            return Ok(());
        }
        self.folder(&path, &inner, &outer, depth + 1)
    }
}

impl Found {
    fn split(self) -> (Option<Node>, Stack) {
        match self {
            Self::Nothing => (None, Stack::default()),
            Self::Leaf(node) => (Some(node), Stack::default()),
            Self::Folder(node, stack) => (Some(node), stack),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::fs::{CWD, FileType, Mode, XattrFlags};

    use super::*;
    use crate::unpack::OPAQUE_XATTR;

    fn told(now: &[PathBuf], before: &[PathBuf]) -> Vec<String> {
        let all = changes(now, before, &|_| true).unwrap();
        let sign = |change: &Change| match (&change.before, &change.after) {
            (None, _) => 'A',
            (_, None) => 'D',
            _ if change.content => 'M',
            _ => 'm',
        };
        all.list.iter().map(|change| format!("{} {}", sign(change), change.path.display())).collect()
    }

    #[test]
    fn what_an_overlay_shows_is_compared() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for path in
            ["base/keep", "base/gone/deep", "base/hid", "base/swap", "top/keep", "top/new/in", "top/hid", "mid/hid"]
        {
            fs::create_dir_all(at(path)).unwrap();
        }
        for (path, content) in [
            ("base/keep/same", "x"),
            ("base/keep/touched", "x"),
            ("base/keep/mode", "x"),
            ("base/keep/text", "old"),
            ("base/gone/deep/file", "x"),
            ("base/hid/old", "x"),
            ("base/hid/both", "x"),
            ("mid/hid/middle", "x"),
            ("base/removed", "x"),
            ("top/keep/touched", "x"),
            ("top/keep/mode", "x"),
            ("top/keep/text", "new"),
            ("top/new/in/file", "x"),
            ("top/hid/both", "x"),
            ("top/swap", "a file now"),
        ] {
            fs::write(at(path), content).unwrap();
        }
        fs::set_permissions(at("top/keep/mode"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("/etc/shadow", at("top/link")).unwrap();
        for path in ["top/removed", "top/gone", "top/never"] {
            rustix::fs::mknodat(CWD, at(path), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        }
        rustix::fs::lsetxattr(at("top/hid"), OPAQUE_XATTR, b"y", XattrFlags::empty()).unwrap();
        let expected = [
            "D gone",
            "D gone/deep",
            "D gone/deep/file",
            "D hid/old",
            "m keep/mode",
            "M keep/text",
            "A link",
            "A new",
            "A new/in",
            "A new/in/file",
            "D removed",
            "M swap",
        ];
        assert_eq!(told(&[at("top"), at("base")], &[at("base")]), expected);
        // The same the other way round, and against nothing at all.
        let back = told(&[at("base")], &[at("top"), at("base")]);
        assert!(back.contains(&"A gone/deep/file".into()) && back.contains(&"D link".into()), "{back:?}");
        assert!(told(&[at("base")], &[at("base")]).is_empty());
        // A layer between: hidden by the topmost, so gone.
        let three = told(&[at("top"), at("mid"), at("base")], &[at("mid"), at("base")]);
        assert!(three.contains(&"D hid/middle".into()) && three.contains(&"D hid/old".into()), "{three:?}");
        let some = changes(&[at("top"), at("base")], &[at("base")], &|path| path.starts_with("keep")).unwrap();
        assert_eq!(some.list.len(), 2);
    }
}
