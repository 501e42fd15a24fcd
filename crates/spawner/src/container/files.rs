//! Files that the host puts into the new root: written in the stage and laid over their places, read-only. They are no part
//! of what the sandbox writes, so snapshots have none of it, and nobody inside has the capability to take them away. Only
//! what merely fills a gap in the image becomes the sandbox's own.
//!
//! The image is hostile, but nothing of it runs yet: what is looked at stays what it is.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, fstatfs, mkdir, open, openat2};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use sloplet_sys::mount::{Attributes, set_attributes};

use super::root::{attach, make_place};
use crate::plan::{PutFile, When};
use crate::protocol::{During, Problem};

/// The folder in the stage.
const FOLDER: &str = "put";

/// The largest file of an image that something is added to: bundles of certificates have a quarter of a megabyte.
const MAX_BASE: u64 = 4 << 20;

/// What `statfs` says of `/proc`: its files tell of this very process, which is still the host's.
const PROC: u64 = 0x9fa0;

/// Puts all of them in their places.
pub fn put(root: &OwnedFd, files: &[PutFile]) -> Result<(), Problem> {
    for file in files {
        for place in file.places.iter().filter(|place| place.when == When::Absent) {
            give(root, &place.path, file).during(&format!("put a file at {}", place.path))?;
        }
    }
    let files: Vec<&PutFile> = files.iter().filter(|file| is_laid(root, file)).collect();
    if files.is_empty() {
        return Ok(());
    }
    mkdir(FOLDER, Mode::from_raw_mode(0o755)).during("make a folder in the stage")?;
    // All of them are written before any lies over what another is made of.
    files.iter().enumerate().try_for_each(|(number, file)| write(root, number, file))?;
    for (number, file) in files.iter().enumerate() {
        for place in file.places.iter().filter(|place| place.when != When::Absent) {
            let step = format!("put a file at {}", place.path);
            let Some(target) = find_place(root, &place.path, place.when)? else { continue };
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let mount = open_tree(CWD, name(number), flags).during(&step)?;
            let attributes = Attributes::READ_ONLY | Attributes::NO_SUID | Attributes::NO_DEV | Attributes::NO_EXEC;
            set_attributes(mount.as_fd(), attributes, false, None).during(&step)?;
            attach(mount, target.as_fd(), &place.path)?;
        }
    }
    Ok(())
}

/// Whether a file is laid over any place.
fn is_laid(root: &OwnedFd, file: &PutFile) -> bool {
    let there = |path: &str| find(root, path, OFlags::PATH).is_ok_and(|file| is_plain(&file));
    file.places.iter().any(|place| match place.when {
        When::Always => true,
        When::Present => there(&place.path),
        When::Absent => false,
    })
}

fn name(number: usize) -> String {
    format!("{FOLDER}/{number}")
}

/// Writes one in the stage.
fn write(root: &OwnedFd, number: usize, file: &PutFile) -> Result<(), Problem> {
    let step = "write a file of the host's";
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let target = open(name(number), flags, mode_of(file)).during(step)?;
    let base = file.after.iter().find_map(|path| read_base(root, path));
    let mut content = base.unwrap_or_default();
    if content.last().is_some_and(|byte| *byte != b'\n') {
        content.push(b'\n');
    }
    content.extend_from_slice(&file.content);
    write_all(&target, &content).during(step)
}

fn write_all(target: &OwnedFd, mut rest: &[u8]) -> rustix::io::Result<()> {
    while !rest.is_empty() {
        match rustix::io::write(target, rest) {
            Err(Errno::INTR) => {}
            count => rest = &rest[count?..],
        }
    }
    Ok(())
}

fn mode_of(file: &PutFile) -> Mode {
    Mode::from_raw_mode(file.mode & 0o777)
}

/// Where host names are looked up first.
const HOSTS: &str = "/etc/hosts";

/// Makes a living sandbox know its new host name, as far as that can be done: a name is no reason to fail.
pub(super) fn tell_name(root: &OwnedFd, hostname: &str) {
    let _ = add(root, HOSTS, format!("127.0.1.1 {hostname}\n").as_bytes(), Mode::from_raw_mode(0o644), true);
}

/// Gives the sandbox a file where its image has none, or an empty one; one that comes after itself is a table of host names,
/// which keeps its lines. Not where anything is mounted: that is somebody's.
fn give(root: &OwnedFd, path: &str, file: &PutFile) -> rustix::io::Result<()> {
    add(root, path, &file.content, mode_of(file), file.after.iter().any(|base| base == path))
}

/// Adds lines to a file of the sandbox's own, or makes it of them; to one that has lines, those names that it lacks, if at all.
fn add(root: &OwnedFd, path: &str, content: &[u8], mode: Mode, extend: bool) -> rustix::io::Result<()> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let there = match openat2(root, path, flags | OFlags::PATH, Mode::empty(), resolve) {
        Ok(there) if kind(&there) == Some(FileType::RegularFile) => match fstat(&there)?.st_size {
            0 => Vec::new(),
            _ if !extend => return Ok(()),
            _ => match read_base(root, path) {
                Some(there) => there,
                None => return Ok(()),
            },
        },
        Err(Errno::NOENT) => Vec::new(),
        _ => return Ok(()),
    };
    let mut content = lacking(content, &there);
    if content.is_empty() {
        return Ok(());
    }
    if there.last().is_some_and(|byte| *byte != b'\n') {
        content.insert(0, b'\n');
    }
    let writing = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK;
    match openat2(root, path, flags | writing, mode, resolve) {
        Ok(target) => write_all(&target, &content),
        // There is no folder for it.
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The lines whose names a table of host names does not have, all of them for an address of the same kind.
fn lacking(lines: &[u8], table: &[u8]) -> Vec<u8> {
    let (lines, table) = (String::from_utf8_lossy(lines), String::from_utf8_lossy(table));
    let words = |line: &str| -> Vec<String> {
        line.split('#').next().unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    };
    let known: Vec<Vec<String>> = table.lines().map(words).collect();
    let lacks = |line: &&str| match words(line).split_first() {
        Some((address, names)) => !known.iter().any(|entry| match entry.split_first() {
            Some((other, has)) => {
                other.contains(':') == address.contains(':') && names.iter().all(|name| has.contains(name))
            }
            None => false,
        }),
        None => false,
    };
    lines.lines().filter(lacks).map(|line| format!("{line}\n")).collect::<String>().into_bytes()
}

/// A file of the image; `None` if there is none, or what is there is none to be read.
fn read_base(root: &OwnedFd, path: &str) -> Option<Vec<u8>> {
    find(root, path, OFlags::PATH).ok().filter(is_plain)?;
    let file = find(root, path, OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
    let length = u64::try_from(fstat(&file).ok()?.st_size).ok()?;
    if length > MAX_BASE {
        return None;
    }
    let mut content = vec![0; length as usize];
    let mut filled = 0;
    while filled < content.len() {
        match rustix::io::read(&file, &mut content[filled..]) {
            Ok(0) => break,
            Err(Errno::INTR) => {}
            count => filled += count.ok()?,
        }
    }
    content.truncate(filled);
    Some(content)
}

/// Where to lay a file: over the file that is found there, or over whatever has that name and is none. Nowhere, if it is
/// wanted only over files.
fn find_place(root: &OwnedFd, path: &str, when: When) -> Result<Option<OwnedFd>, Problem> {
    if let Some(file) = find(root, path, OFlags::PATH).ok().filter(is_plain) {
        return Ok(Some(file));
    }
    // A symlink that leads nowhere, or to what is no file; or a FIFO, say: it is covered itself.
    if when == When::Present {
        return Ok(None);
    }
    match find(root, path, OFlags::PATH | OFlags::NOFOLLOW) {
        Ok(other) if kind(&other) == Some(FileType::Directory) => {
            Err(Problem::plain(&format!("put a file at {path}"), "the image has a folder there"))
        }
        Ok(other) => Ok(Some(other)),
        Err(_) => make_place(root.as_fd(), path, false).map(Some),
    }
}

/// Opens what has that path in the root; no symlink leads out of it.
fn find(root: &OwnedFd, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

fn is_plain(file: &OwnedFd) -> bool {
    kind(file) == Some(FileType::RegularFile) && fstatfs(file).is_ok_and(|stat| stat.f_type as u64 != PROC)
}

fn kind(file: &OwnedFd) -> Option<FileType> {
    fstat(file).ok().map(|stat| FileType::from_raw_mode(stat.st_mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &[u8] = b"127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 box\n";

    fn lacked(table: &str) -> String {
        String::from_utf8(lacking(LINES, table.as_bytes())).unwrap()
    }

    #[test]
    fn names_that_a_table_has_are_not_added_again() {
        assert_eq!(lacked("").as_bytes(), LINES);
        assert_eq!(lacked("127.0.0.1 localhost box\n::1 ip6-localhost localhost"), "");
        assert_eq!(lacked("127.0.0.1\tmine\n# 127.0.0.1 localhost box\n").as_bytes(), LINES);
        assert_eq!(lacked("127.0.0.1 localhost\n::1 localhost ip6-localhost\n10.0.0.1 boxes\n"), "127.0.1.1 box\n");
    }

    #[test]
    fn an_image_keeps_its_table_and_a_sandbox_gets_what_it_lacks() {
        let folder = tempfile::tempdir().unwrap();
        let root = open(folder.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (etc, mode) = (folder.path().join("etc"), Mode::from_raw_mode(0o644));
        // No folder for it: nothing to be done.
        add(&root, HOSTS, LINES, mode, true).unwrap();
        std::fs::create_dir(&etc).unwrap();
        std::fs::write(etc.join("hosts"), "10.0.0.1 mine").unwrap();
        add(&root, HOSTS, LINES, mode, false).unwrap();
        assert_eq!(std::fs::read_to_string(etc.join("hosts")).unwrap(), "10.0.0.1 mine");
        for _ in 0..2 {
            add(&root, HOSTS, LINES, mode, true).unwrap();
        }
        tell_name(&root, "other");
        let lines = std::str::from_utf8(LINES).unwrap();
        let expected = format!("10.0.0.1 mine\n{lines}127.0.1.1 other\n");
        assert_eq!(std::fs::read_to_string(etc.join("hosts")).unwrap(), expected);
        // What is no file is left alone, wherever it leads.
        std::fs::remove_file(etc.join("hosts")).unwrap();
        std::os::unix::fs::symlink("elsewhere", etc.join("hosts")).unwrap();
        add(&root, HOSTS, LINES, mode, true).unwrap();
        assert!(!etc.join("elsewhere").exists());
    }
}
