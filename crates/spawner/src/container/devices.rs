//! `/dev`: the few devices a program expects, a terminal multiplexer and shared memory of its own.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mkdir, mknodat, open};
use rustix::mount::{MountAttrFlags, OpenTreeFlags, open_tree};
use sloplet_sys::mount::{Attributes, set_attributes};

use super::root::{attach as attach_mount, new_filesystem, place};
use crate::protocol::{During, Privilege, Problem};

/// Device files, with their numbers.
const NODES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

/// Terminals a sandbox may open at once: the host has 4096 for all.
const TERMINALS: &str = "256";

/// Fills a `/dev` in the folder `at` of the spawner's templates; each sandbox gets a read-only copy of it, which costs
/// one system call. Devices work in it because it belongs to the spawner's user namespace, not to the sandbox's; an
/// ordinary user cannot make device files, so the host's are bound in their place.
pub fn fill(at: &Path, privilege: &Privilege) -> Result<(), Problem> {
    let step = "prepare /dev";
    for (name, major, minor) in NODES {
        let path = at.join(name);
        if *privilege == Privilege::Root {
            let mode = Mode::from_raw_mode(0o666);
            mknodat(CWD, &path, FileType::CharacterDevice, mode, makedev(major, minor)).during(step)?;
        } else {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            let file = open(&path, flags, Mode::from_raw_mode(0o644)).during(step)?;
            drop(file);
            let target = open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).during(step)?;
            let host = Path::new("/dev").join(name);
            attach_mount(clone_tree(&host, false)?, target.as_fd(), name)?;
        }
    }
    for name in ["pts", "shm"] {
        mkdir(at.join(name), Mode::from_raw_mode(0o755)).during(step)?;
    }
    let links = [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ];
    links.iter().try_for_each(|(name, target)| symlink(target, at.join(name))).during(step)
}

/// A detached copy of a mount, below which hostile code may sit.
pub fn clone_tree(path: &Path, recursive: bool) -> Result<OwnedFd, Problem> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    open_tree(CWD, path, flags).during(&format!("open {}", path.display()))
}

/// A copy of the prepared `/dev` for one sandbox.
pub fn open_copy(prepared: &Path, privilege: &Privilege) -> Result<OwnedFd, Problem> {
    let recursive = *privilege != Privilege::Root;
    let copy = clone_tree(prepared, recursive)?;
    let attributes = Attributes::READ_ONLY | Attributes::NO_SUID | Attributes::NO_EXEC;
    // Read-only does not keep anybody from writing *to* a device. Bound devices below it keep their own flags, which an
    // ordinary user may not change.
    set_attributes(copy.as_fd(), attributes, false, None).during("make /dev read-only")?;
    Ok(copy)
}

/// Puts `/dev` into the new root.
pub fn attach(root: &OwnedFd, devices: OwnedFd, shm: u64, terminal_group: bool) -> Result<(), Problem> {
    attach_mount(devices, place(root.as_fd(), "dev")?.as_fd(), "/dev")?;
    let mut options = vec![("ptmxmode", "0666".to_owned()), ("mode", "0620".into()), ("max", TERMINALS.into())];
    if terminal_group {
        options.push(("gid", "5".into()));
    }
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let terminals = new_filesystem("devpts", &options, flags)?;
    attach_mount(terminals, place(root.as_fd(), "dev/pts")?.as_fd(), "/dev/pts")?;
    let options = [("size", shm.to_string()), ("mode", "1777".into()), ("nr_inodes", "16384".into())];
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let memory = new_filesystem("tmpfs", &options, flags)?;
    attach_mount(memory, place(root.as_fd(), "dev/shm")?.as_fd(), "/dev/shm")
}
