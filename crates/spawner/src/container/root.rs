//! The overlay root and the way into it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdir, mkdirat, open, openat2};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, move_mount, unmount,
};
use rustix::process::{chdir, chroot, fchdir, pivot_root};

use super::STAGE;
use crate::plan::Container;
use crate::protocol::{During, Problem};

/// A new file system, not yet attached anywhere.
pub fn new_filesystem(kind: &str, options: &[(&str, String)], attributes: MountAttrFlags) -> Result<OwnedFd, Problem> {
    let step = format!("mount {kind}");
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).during(&step)?;
    for (name, value) in options {
        match value.as_str() {
            "" => fsconfig_set_flag(context.as_fd(), *name).during(&step)?,
            value => fsconfig_set_string(context.as_fd(), *name, value).during(&step)?,
        }
    }
    fsconfig_create(context.as_fd()).during(&step)?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).during(&step)
}

/// Attaches a mount to the place that `target` names.
pub fn attach(mount: impl AsFd, target: BorrowedFd<'_>, what: &str) -> Result<(), Problem> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount.as_fd(), "", target, "", flags).during(&format!("attach {what}"))
}

/// Opens a place in the new root without following any symlink: the image is hostile, and `/proc` or `/dev` as a symlink
/// has been the start of more than one escape (CVE-2019-19921, CVE-2025-31133).
pub fn place(root: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Problem> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
        .during(&format!("find /{path} in the image"))
}

/// Mounts the file system that holds all that the sandbox writes, bounded in bytes and files, and goes there. In memory,
/// unless a disk was given.
pub fn enter_stage(plan: &Container, disk: Option<OwnedFd>) -> Result<(), Problem> {
    let stage = match disk {
        Some(disk) => disk,
        None => {
            let options =
                [("size", plan.disk.to_string()), ("nr_inodes", plan.inodes.to_string()), ("mode", "0755".into())];
            new_filesystem("tmpfs", &options, MountAttrFlags::empty())?
        }
    };
    let target =
        open(STAGE, OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty()).during("open the stage")?;
    attach(stage, target.as_fd(), "the stage")?;
    chdir(STAGE).during("enter the stage")
}

/// Mounts the overlay at `root` in the stage and opens it.
pub fn mount_overlay(layers: &[OwnedFd]) -> Result<OwnedFd, Problem> {
    let folder = |name: &str| match mkdir(name, Mode::from_raw_mode(0o755)) {
        Err(error) if error != Errno::EXIST => Err(Problem::new("make a folder in the stage", error)),
        _ => Ok(()),
    };
    ["upper", "work", "root"].into_iter().try_for_each(folder)?;
    let mut lower = String::new();
    for (number, layer) in layers.iter().enumerate() {
        let name = format!("l{number}");
        folder(&name)?;
        // Kernels before 6.15 take only layers that are attached in this mount namespace.
        let target = open(&name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).during("open a layer's place")?;
        attach(layer, target.as_fd(), "a layer")?;
        if number > 0 {
            lower.push(':');
        }
        lower.push_str(&name);
    }
    // `userxattr`: in a user namespace the overlay may not use trusted.* attributes. `volatile`: nothing of this
    // survives a crash, and without it the unmount would wait for unrelated dirty data to reach the disk.
    let options = format!("lowerdir={lower},upperdir=upper,workdir=work,userxattr,volatile,index=off,metacopy=off");
    let data = std::ffi::CString::new(options).map_err(std::io::Error::other).during("mount the overlay root")?;
    mount(c"overlay", c"root", c"overlay", MountFlags::NODEV, Some(data.as_c_str()))
        .during("mount the overlay root")?;
    open("root", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).during("open the new root")
}

/// The folder in the stage that the overlay writes to.
pub fn open_upper() -> Result<OwnedFd, Problem> {
    open("upper", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).during("open the upper folder")
}

/// Makes the new root the root of this process and detaches everything else.
pub fn pivot(root: &OwnedFd) -> Result<(), Problem> {
    fchdir(root).during("enter the new root")?;
    // With both arguments ".", the old root lies on top of the new one and can be detached by name.
    pivot_root(".", ".").during("change the root")?;
    unmount(".", UnmountFlags::DETACH).during("detach the host's root")
}

/// Makes the new root the root of this process where there is nothing to detach: it lies on top of an empty folder.
pub fn cover(root: &OwnedFd) -> Result<(), Problem> {
    let step = "cover the bare root";
    fchdir(root).during(step)?;
    move_mount(root, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).during(step)?;
    chroot(".").during(step)
}

/// Makes the folders (or the empty file) that a mount needs inside the new root, and opens the place. Symlinks are
/// followed, but never out of the root.
pub fn make_place(root: BorrowedFd<'_>, path: &str, is_dir: bool) -> Result<OwnedFd, Problem> {
    let step = format!("make the mount point {path}");
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let find = |path: &str| openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve);
    let mut parts = path.split('/').filter(|part| !part.is_empty()).peekable();
    let mut reached = String::new();
    while let Some(part) = parts.next() {
        let parent = find(if reached.is_empty() { "." } else { &reached }).during(&step)?;
        reached.push('/');
        reached.push_str(part);
        if find(&reached).is_ok() {
            continue;
        }
        if parts.peek().is_some() || is_dir {
            mkdirat(&parent, part, Mode::from_raw_mode(0o755)).during(&step)?;
        } else {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            rustix::fs::openat(&parent, part, flags, Mode::from_raw_mode(0o644)).during(&step)?;
        }
    }
    find(&reached).during(&step)
}
