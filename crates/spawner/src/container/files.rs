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
    let files: Vec<&PutFile> = files.iter().filter(|file| is_wanted(root, file)).collect();
    if files.is_empty() {
        return Ok(());
    }
    mkdir(FOLDER, Mode::from_raw_mode(0o755)).during("make a folder in the stage")?;
    // All of them are written before any lies over what another is made of.
    files.iter().enumerate().try_for_each(|(number, file)| write(root, number, file))?;
    for (number, file) in files.iter().enumerate() {
        for place in &file.places {
            let step = format!("put a file at {}", place.path);
            if place.when == When::Absent {
                give(root, &place.path, file).during(&step)?;
                continue;
            }
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

/// Whether a file has a place at all.
fn is_wanted(root: &OwnedFd, file: &PutFile) -> bool {
    let there = |path: &str| find(root, path, OFlags::PATH).is_ok_and(|file| is_plain(&file));
    file.places.iter().any(|place| place.when != When::Present || there(&place.path))
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

/// Gives the sandbox a file where its image has none, or an empty one. Not where anything is mounted: that is somebody's.
fn give(root: &OwnedFd, path: &str, file: &PutFile) -> rustix::io::Result<()> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat2(root, path, flags | OFlags::PATH, Mode::empty(), resolve) {
        Ok(there) if kind(&there) == Some(FileType::RegularFile) && fstat(&there)?.st_size == 0 => {}
        Err(Errno::NOENT) => {}
        _ => return Ok(()),
    }
    match openat2(root, path, flags | OFlags::WRONLY | OFlags::CREATE, mode_of(file), resolve) {
        Ok(target) => write_all(&target, &file.content),
        // There is no folder for it.
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
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
