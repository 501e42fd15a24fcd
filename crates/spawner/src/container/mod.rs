//! The walls of a sandbox with a root of its own.
//!
//! The spawner opens what the child cannot ([`Materials`]: layers and mounts, their owners shifted into the sandbox's
//! range); the child, alone in its new namespaces, builds its root from them and leaves the host's behind.
//!
//! - [`root`]: the overlay and the way into it.
//! - [`devices`], [`procfs`]: `/dev` and `/proc`.
//! - [`binds`]: layers and mounts as the spawner opens them. [`files`]: what the host puts on top.
//! - [`late`]: mounts for a sandbox that lives already.

pub mod binds;
pub mod devices;
pub mod files;
pub mod late;
pub mod procfs;
pub mod root;

use std::os::fd::OwnedFd;

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, chdir, setrlimit, umask};
use rustix::system::sethostname;
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::plan::{Bounds, Container, Plan};
use crate::protocol::{During, Problem};
pub use binds::Materials;

/// Gets the folder that holds all that is written inside.
pub type HandOut<'a> = &'a dyn Fn(OwnedFd) -> Result<(), Problem>;

/// Builds the walls around this process, in a copy of the [bare](crate::bare) mount namespace or of the spawner's. Nothing
/// hostile runs yet; whatever fails ends the process.
pub fn enclose(
    plan: &Container,
    whole: &Plan,
    materials: Materials,
    switch_users: bool,
    bare: bool,
    hand_out: Option<HandOut<'_>>,
) -> Result<(), Problem> {
    if switch_users {
        become_root_inside()?;
    }
    umask(Mode::empty());
    root::enter_stage(plan, materials.disk)?;
    let root = root::mount_overlay(&materials.layers)?;
    if let Some(hand_out) = hand_out {
        hand_out(root::open_upper()?)?;
    }
    devices::attach(&root, materials.devices, plan.shm, switch_users)?;
    procfs::attach(&root, materials.masks, whole)?;
    binds::attach_all(&root, plan, materials.system, materials.mounts)?;
    binds::attach_shown(&root, plan, materials.shown)?;
    files::put(&root, &whole.files)?;
    if bare {
        root::cover(&root)?;
    } else {
        root::pivot(&root)?;
    }
    chdir("/").during("enter the new root")?;
    if !whole.lacks("uts-namespace") {
        sethostname(plan.hostname.as_bytes()).during("set the host name")?;
    }
    umask(Mode::WGRP | Mode::WOTH);
    limit_resources(&whole.bounds, whole)
}

/// Until now this process has the spawner's ids, which do not exist in its user namespace.
pub fn become_root_inside() -> Result<(), Problem> {
    set_thread_groups(&[]).during("drop groups")?;
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).during("become group 0 inside")?;
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).during("become user 0 inside")
}

/// Bytes that a process may lock in memory: what most distributions allow.
pub const LOCKED: u64 = 8 << 20;

/// Bytes in message queues, which the kernel counts for the host's user: its own default.
pub const MESSAGES: u64 = 819_200;

/// Bounds that cgroups do not know.
pub fn limit_resources(bounds: &Bounds, plan: &Plan) -> Result<(), Problem> {
    // Lowering only: the hard limit that this process has cannot be raised without CAP_SYS_RESOURCE.
    let lower = |resource, wanted: u64| {
        let now = rustix::process::getrlimit(resource);
        let value = Some(now.maximum.map_or(wanted, |hard| hard.min(wanted)));
        setrlimit(resource, Rlimit { current: value, maximum: value }).during("limit resources")
    };
    lower(Resource::Nofile, bounds.open_files)?;
    if !plan.lacks("core-dumps") {
        lower(Resource::Core, 0)?;
    }
    lower(Resource::Memlock, LOCKED)?;
    lower(Resource::Msgqueue, MESSAGES)
}

/// Where the child mounts its stage: a folder that exists everywhere and that everybody may enter.
pub(crate) const STAGE: &str = "/tmp";
