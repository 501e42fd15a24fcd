//! The small root that a runtime lives in: its program and libraries, a `/proc`, a `/dev`, its bundle, the sandbox's root.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, chmod, fstat, mkdirat, open, openat, openat2};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, OpenTreeFlags, mount_move, open_tree};
use rustix::process::{Resource, Rlimit, chdir, setrlimit, umask};
use rustix::system::sethostname;
use rustix::thread::set_no_new_privs;

use crate::container::binds::attach_system;
use crate::container::root::{self, attach, new_filesystem};
use crate::container::{HandOut, Materials, become_root_inside, files, procfs};
use crate::plan::{Container, Plan, Runtime};
use crate::protocol::{During, Problem};

/// Where everything is, as the runtime sees it. The bundle's `config.json` names these, too.
pub mod places {
    /// The sandbox's root.
    pub const ROOT: &str = "/root";
    /// The runtime's program.
    pub const PROGRAM: &str = "/runtime";
    /// What is shown to the agent: its program.
    pub const KIT: &str = "/kit";
    /// Where the agent listens.
    pub const DOOR: &str = "/door";
    /// The sandbox's `/tmp`: on its disk, where gVisor would have one in memory that nobody bounds or saves.
    pub const TEMPORARY: &str = "/temporary";
    /// The user's mounts, numbered.
    pub const MOUNTS: &str = "/mounts";
    /// The bundle.
    pub const BUNDLE: &str = "/bundle";
    /// What the runtime remembers.
    pub const STATE: &str = "/state";
    /// What the runtime says.
    pub const LOG: &str = "/log";
    /// Where a runtime that goes writes whom it has started.
    pub const PID: &str = "/pid";
}

/// In the stage.
const HOUSE: &str = "house";

/// All that a runtime writes in its house, and what root inside could put at the door.
const HOUSE_BYTES: u64 = 16 << 20;

/// Builds the sandbox's root and the house, and goes there. Nothing hostile runs yet; whatever fails ends the process.
pub fn enclose(
    plan: &Container,
    whole: &Plan,
    runtime: &Runtime,
    materials: Materials,
    hand_out: Option<HandOut<'_>>,
) -> Result<(), Problem> {
    become_root_inside()?;
    umask(Mode::empty());
    root::enter_stage(plan, materials.disk)?;
    let sandbox = root::mount_overlay(&materials.layers)?;
    if let Some(hand_out) = hand_out {
        hand_out(root::open_upper()?)?;
    }
    attach_system(&sandbox, plan, materials.system)?;
    files::put(&sandbox, &whole.files)?;

    let step = "build the runtime's house";
    let temporary = temporary(&sandbox)?;
    rustix::fs::mkdir(HOUSE, Mode::from_raw_mode(0o755)).during(step)?;
    let options = [("size", HOUSE_BYTES.to_string()), ("nr_inodes", "4096".into()), ("mode", "0755".into())];
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let walls = new_filesystem("tmpfs", &options, flags)?;
    let house = || open(HOUSE, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).during(step);
    attach(walls, house()?.as_fd(), "the house")?;
    let house = house()?;
    for (name, mode) in [
        ("root", 0o755),
        ("proc", 0o555),
        ("dev", 0o755),
        ("tmp", 0o1777),
        ("temporary", 0o755),
        ("kit", 0o700),
        ("kit/door", 0o700),
        ("door", 0o700),
        ("mounts", 0o755),
        ("bundle", 0o755),
        ("state", 0o700),
    ] {
        mkdirat(&house, name, Mode::from_raw_mode(mode)).during(step)?;
    }
    mount_move("root", format!("{HOUSE}/root")).during(step)?;
    let copied = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    put(&house, "temporary", open_tree(&temporary, "", copied).during(step)?)?;
    put(&house, "dev", materials.devices)?;
    // Without the masks of a sandbox: with them, the runtime could not mount a fresh one for its own sandbox.
    let proc = new_filesystem("proc", &[], MountAttrFlags::empty())?;
    put(&house, "proc", &proc)?;
    if runtime.shares_kernel {
        // They look for it, though what bounds them is around the house.
        let place = root::make_place(house.as_fd(), "/sys/fs/cgroup", true)?;
        let groups = new_filesystem("cgroup2", &[], flags | MountAttrFlags::MOUNT_ATTR_RDONLY)?;
        attach(groups, place.as_fd(), "the runtime's cgroups")?;
        procfs::limit_user(&proc);
        let kit = openat(&house, "kit", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        procfs::write_boot_id(kit.during(step)?.as_fd())?;
    }
    let mut programs = materials.runtime.into_iter();
    let closed = runtime.closed.as_ref().map(|_| "kit/closed");
    for name in ["runtime", "kit/agent"].into_iter().chain(closed) {
        let program = programs.next().ok_or_else(|| Problem::plain(step, "a program is missing"))?;
        write(&house, name, b"")?;
        put(&house, name, program)?;
    }
    for (path, library) in runtime.libraries.iter().zip(programs) {
        let name = String::from_utf8_lossy(path);
        attach(library, root::make_place(house.as_fd(), &name, false)?.as_fd(), &name)?;
    }
    write(&house, "door/open", b"")?;
    write(&house, "bundle/config.json", &runtime.config)?;
    for (number, tree) in materials.mounts.into_iter().enumerate() {
        let name = format!("mounts/{number}");
        match FileType::from_raw_mode(fstat(&tree).during(step)?.st_mode) {
            FileType::Directory => mkdirat(&house, &name, Mode::from_raw_mode(0o755)).during(step)?,
            _ => write(&house, &name, b"")?,
        }
        put(&house, &name, tree)?;
    }
    root::pivot(&house)?;
    chdir("/").during("enter the house")?;
    if !whole.lacks("uts-namespace") {
        sethostname(plan.hostname.as_bytes()).during("set the host name")?;
    }
    umask(Mode::WGRP | Mode::WOTH);
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).during("limit resources")?;
    // Where programs inside are the host's own processes, some of them may become root inside.
    match runtime.shares_kernel {
        true => Ok(()),
        false => set_no_new_privs(true).during("forbid new privileges"),
    }
}

/// The image's `/tmp`, made if it has none.
fn temporary(sandbox: &OwnedFd) -> Result<OwnedFd, Problem> {
    let step = "find /tmp in the image";
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat2(sandbox, "/tmp", flags, Mode::empty(), resolve) {
        Err(Errno::NOENT) => {
            let place = root::make_place(sandbox.as_fd(), "/tmp", true)?;
            chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), Mode::from_raw_mode(0o1777)).during(step)?;
            Ok(place)
        }
        found => found.during(step),
    }
}

fn put(house: &OwnedFd, name: &str, tree: impl AsFd) -> Result<(), Problem> {
    let place = openat(house, name, OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty());
    attach(tree, place.during(&format!("find {name} in the house"))?.as_fd(), name)
}

fn write(house: &OwnedFd, name: &str, content: &[u8]) -> Result<(), Problem> {
    let step = format!("write {name} in the house");
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(house, name, flags, Mode::from_raw_mode(0o644)).during(&step)?;
    write_all(file.as_fd(), content).during(&step)
}

fn write_all(file: BorrowedFd<'_>, mut content: &[u8]) -> rustix::io::Result<()> {
    while !content.is_empty() {
        content = &content[rustix::io::write(file, content)?..];
    }
    Ok(())
}
