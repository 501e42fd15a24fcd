//! Mounts for a sandbox that lives: one that was made ahead gets those of whoever claims it.
//!
//! They are opened and confined where and as they are for a sandbox that is being made, and attached inside its namespaces, as
//! root there: what is found on the way is that sandbox's own, as an image's is, and leads nowhere else.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::umask;
use rustix::system::sethostname;
use sloplet_sys::clone::SingleThreaded;

use super::{become_root_inside, binds, files};
use crate::plan::Mount;
use crate::protocol::{During, Problem};

/// What is remembered of a sandbox that can be given mounts.
#[derive(Debug)]
pub struct Claimable {
    /// User id inside that owns what mounts show.
    pub mounts_owner: u32,
    /// The way in, where it cannot be opened any more.
    pub entrance: Option<Entrance>,
}

/// The namespaces of a sandbox that mounts and host names are in. They stay in the kernel, with all mounts, as long as
/// somebody has this.
#[derive(Debug)]
pub struct Entrance {
    user: OwnedFd,
    mount: OwnedFd,
    uts: OwnedFd,
}

impl Entrance {
    /// Those of a child.
    pub fn of(pid: i32) -> Result<Self, Problem> {
        let namespace = |kind: &str| {
            open(format!("/proc/{pid}/ns/{kind}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .during("open a sandbox's namespaces")
        };
        Ok(Self { user: namespace("user")?, mount: namespace("mnt")?, uts: namespace("uts")? })
    }

    /// Its descriptors' numbers.
    pub fn numbers(&self) -> [i32; 3] {
        [&self.user, &self.mount, &self.uts].map(AsRawFd::as_raw_fd)
    }

    /// Moves this process inside; its root is the sandbox's from then on.
    fn enter(&self, thread: &SingleThreaded) -> Result<(), Problem> {
        let step = "enter the sandbox's namespaces";
        [&self.user, &self.mount, &self.uts].into_iter().try_for_each(|fd| thread.enter(fd.as_fd())).during(step)
    }
}

/// Gives a sandbox mounts and a host name: for a process that does nothing else, and ends. `owner` is the first of the
/// sandbox's ids, and who inside owns what is shown.
pub fn attach(
    thread: &SingleThreaded,
    entrance: &Entrance,
    mounts: &[Mount],
    hostname: Option<&str>,
    owner: Option<(u32, u32)>,
    switch_users: bool,
) -> Result<(), Problem> {
    let opened = mounts.iter().map(|mount| binds::open_mount(thread, mount, owner, &|_| false));
    let trees = opened.collect::<Result<Vec<OwnedFd>, Problem>>()?;
    entrance.enter(thread)?;
    if switch_users {
        become_root_inside()?;
    }
    umask(Mode::empty());
    let root = open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let root = root.during("open the sandbox's root")?;
    binds::attach_mounts(&root, mounts, trees)?;
    let Some(name) = hostname else { return Ok(()) };
    sethostname(name.as_bytes()).during("set the host name")?;
    files::tell_name(&root, name);
    Ok(())
}
