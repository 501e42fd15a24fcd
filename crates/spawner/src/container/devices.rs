//! `/dev`: the few devices a program expects, a terminal multiplexer and shared memory of its own.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, makedev, mkdir, mknodat, open};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, OpenTreeFlags, UnmountFlags, open_tree, unmount};
use sloplet_policy::Realm;
use sloplet_policy::source::through;
use sloplet_sys::mount::{Attributes, set_attributes};

use super::root::{attach as attach_mount, new_filesystem, place};
use crate::plan::Device;
use crate::protocol::{During, Privilege, Problem};

/// Device files, with their numbers.
const NODES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

/// Terminals a sandbox may open at once. The host has 4096 for all, a quarter of which only the host itself can open.
const TERMINALS: &str = "64";

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
            let source = open(Path::new("/dev").join(name), OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            bind_node(&source.during(step)?, &path, step)?;
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

/// The same of exactly what is open, without anything mounted below it.
pub fn clone_open(source: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(source, "", flags)
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

/// A `/dev` for one sandbox alone, with more devices in it. `prepared` is that of the others, beside which it is made.
pub fn open_own(prepared: &Path, privilege: &Privilege, nodes: &[&Device]) -> Result<OwnedFd, Problem> {
    let step = "prepare a /dev with devices of the host";
    let own = prepared.with_file_name("dev-own");
    match mkdir(&own, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(Problem::new(step, error)),
    }
    let target = open(&own, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).during(step)?;
    let options = [("size", "64k".to_owned()), ("mode", "0755".to_owned())];
    attach_mount(new_filesystem("tmpfs", &options, MountAttrFlags::empty())?, target.as_fd(), "a /dev")?;
    let made = fill(&own, privilege)
        .and_then(|()| nodes.iter().try_for_each(|node| add(&own, privilege, node)))
        .and_then(|()| open_copy(&own, privilege));
    unmount(&own, UnmountFlags::DETACH).during(step)?;
    made
}

/// Adds a device of the host to a `/dev`. As root it is a file of its own that everybody inside may open, for it was asked for;
/// an ordinary user's is the host's, with its permissions.
fn add(at: &Path, privilege: &Privilege, node: &Device) -> Result<(), Problem> {
    let (from, to) = (Path::new(OsStr::from_bytes(&node.from)), Path::new(OsStr::from_bytes(&node.to)));
    let step = format!("show the device {}", from.display());
    let source = open(from, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).during(&step)?;
    if let Some(realm) = Realm::get() {
        realm.check_device(&std::fs::read_link(through(&source)).during(&step)?).during(&step)?;
    }
    let found = fstat(&source).during(&step)?;
    let name = to.strip_prefix("/dev").ok().filter(|_| FileType::from_raw_mode(found.st_mode).is_char_device());
    let Some(name) = name else { return Err(Problem::plain(&step, "it is no character device below /dev")) };
    let path = at.join(name);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).during(&step)?;
    }
    match privilege {
        Privilege::Root => {
            let mode = Mode::from_raw_mode(0o666);
            mknodat(CWD, &path, FileType::CharacterDevice, mode, found.st_rdev).during(&step)
        }
        _ => bind_node(&source, &path, &step),
    }
}

/// Lays a device of the host over a file that is made for it.
fn bind_node(host: &OwnedFd, path: &Path, step: &str) -> Result<(), Problem> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    drop(open(path, flags, Mode::from_raw_mode(0o644)).during(step)?);
    let target = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).during(step)?;
    attach_mount(clone_open(host).during(step)?, target.as_fd(), &path.display().to_string())
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
