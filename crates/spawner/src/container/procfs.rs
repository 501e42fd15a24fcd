//! `/proc`: the sandbox's own processes, and as little of the host as programs can live with.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, mkdir, open};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, OpenTreeFlags, open_tree};
use sloplet_sys::mount::{Attributes, set_attributes};

use super::root::{attach as attach_mount, new_filesystem, place};
use crate::plan::Plan;
use crate::protocol::{During, Problem};

/// Files of the host kernel that tell about the host or reach into it; shown empty.
pub const MASKED_FILES: [&str; 7] =
    ["kcore", "keys", "key-users", "timer_list", "sched_debug", "latency_stats", "interrupts"];

/// The same for folders.
pub const MASKED_FOLDERS: [&str; 3] = ["acpi", "asound", "scsi"];

/// Shown, but not to be written, whatever the permissions inside say.
pub const READ_ONLY: [&str; 5] = ["sys", "sysrq-trigger", "irq", "bus", "fs"];

/// What the kernel counts per user *and* for whoever made the user namespace: without a bound of its own, one sandbox could
/// use up what the host's user has.
const USER_LIMITS: [(&str, &str); 2] =
    [("sys/user/max_inotify_instances", "64"), ("sys/user/max_inotify_watches", "32768")];

/// What identifies one start of a machine. The host's would be the same in every sandbox, and tell who runs beside whom.
const BOOT_ID: &str = "sys/kernel/random/boot_id";

/// Where the masks are in the stage.
const MASKS: &str = "masks";

/// Makes an empty file and an empty folder to lay over what is masked, in the folder `at` of the spawner's templates.
pub fn fill(at: &Path) -> Result<(), Problem> {
    let step = "prepare the masks of /proc";
    let file = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    open(at.join("file"), file, Mode::from_raw_mode(0o444)).during(step)?;
    mkdir(at.join("folder"), Mode::from_raw_mode(0o555)).during(step)
}

/// A copy of the masks for one sandbox.
pub fn open_copy(prepared: &Path) -> Result<OwnedFd, Problem> {
    let copy = super::devices::clone_tree(prepared, false)?;
    let attributes = Attributes::READ_ONLY | Attributes::NO_SUID | Attributes::NO_DEV | Attributes::NO_EXEC;
    set_attributes(copy.as_fd(), attributes, false, None).during("make the masks read-only")?;
    Ok(copy)
}

/// Puts `/proc` into the new root.
pub fn attach(root: &OwnedFd, masks: OwnedFd, plan: &Plan) -> Result<(), Problem> {
    // Only what is attached in this mount namespace can be copied; the stage goes away with the host's root.
    mkdir(MASKS, Mode::from_raw_mode(0o755)).during("make a folder in the stage")?;
    let stage = open(MASKS, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).during("open the masks' place")?;
    attach_mount(masks, stage.as_fd(), "the masks")?;
    let flags =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let proc = new_filesystem("proc", &[], flags)?;
    attach_mount(&proc, place(root.as_fd(), "proc")?.as_fd(), "/proc")?;
    limit_user(&proc);
    let cover = |names: &[&str], mask: &str| {
        for name in names {
            match open_beneath(&proc, name) {
                Ok(target) => attach_mount(copy_of(CWD, mask).during("copy a mask")?, target.as_fd(), "a mask")?,
                Err(Errno::NOENT) => {}
                Err(error) => return Err(Problem::new(format!("mask /proc/{name}"), error)),
            }
        }
        Ok(())
    };
    if !plan.lacks("masked-paths") {
        cover(&MASKED_FILES, "masks/file")?;
        cover(&MASKED_FOLDERS, "masks/folder")?;
    }
    for name in READ_ONLY {
        if plan.lacks("read-only-proc") {
            break;
        }
        let step = format!("make /proc/{name} read-only");
        let copy = match copy_of(proc.as_fd(), name) {
            Err(Errno::NOENT) => continue,
            copy => copy.during(&step)?,
        };
        set_attributes(copy.as_fd(), Attributes::READ_ONLY, false, None).during(&step)?;
        let target = open_beneath(&proc, name).during(&step)?;
        attach_mount(copy, target.as_fd(), name)?;
    }
    // After its folder was made read-only: that would lie on top of it.
    write_boot_id(CWD)?;
    lay_boot_id(&proc, CWD)
}

/// Bounds what the kernel counts for the user namespace of this process.
pub fn limit_user(proc: &OwnedFd) {
    for (name, value) in USER_LIMITS {
        // Best effort: a kernel without the setting has no such limit to protect, either.
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if let Ok(setting) = rustix::fs::openat(proc, name, flags, Mode::empty()) {
            let _ = rustix::io::write(&setting, value.as_bytes());
        }
    }
}

/// Writes an identity of the sandbox's own into a folder.
pub fn write_boot_id(folder: BorrowedFd<'_>) -> Result<(), Problem> {
    let step = "write a boot id";
    let mut random = [0u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).during(step)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, "boot_id", flags, Mode::from_raw_mode(0o444)).during(step)?;
    rustix::io::write(&file, uuid(random).as_bytes()).during(step).map(drop)
}

/// Lays the one that was written over the host's.
pub fn lay_boot_id(proc: &OwnedFd, folder: BorrowedFd<'_>) -> Result<(), Problem> {
    let step = "give the sandbox a boot id";
    let target = match open_beneath(proc, BOOT_ID) {
        Err(Errno::NOENT) => return Ok(()),
        target => target.during(step)?,
    };
    let copy = copy_of(folder, "boot_id").during(step)?;
    let attributes = Attributes::READ_ONLY | Attributes::NO_SUID | Attributes::NO_DEV | Attributes::NO_EXEC;
    set_attributes(copy.as_fd(), attributes, false, None).during(step)?;
    attach_mount(copy, target.as_fd(), BOOT_ID)
}

/// A random UUID (version 4) and a newline, as the kernel writes it.
pub fn uuid(random: [u8; 16]) -> String {
    let bits = u128::from_be_bytes(random) & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}\n", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn open_beneath(proc: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(proc, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn copy_of(tree: BorrowedFd<'_>, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(tree, name, flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_id_is_a_random_uuid() {
        assert_eq!(uuid([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff\n");
        assert_eq!(uuid([0; 16]), "00000000-0000-4000-8000-000000000000\n");
    }
}
