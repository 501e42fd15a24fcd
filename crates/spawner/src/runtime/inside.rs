//! What an agent does to itself behind a runtime that shares the host's kernel, before it serves anybody: it was started as
//! root inside with `CAP_SYS_ADMIN`, and ends up with what an agent in a container has. So one list of system calls, one set
//! of capabilities and one Landlock ruleset hold behind all walls of this kind, whatever the runtime's version makes of them.
//!
//! Its program must be a file that nobody inside may read: then the kernel gives its memory, and its entries in `/proc`, to
//! whoever owns the file, and not to root inside.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags, open, rmdir, unlink};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use sloplet_seccomp::Profile;
use sloplet_sys::mount::{Attributes, set_attributes};

use crate::container::procfs;
use crate::privileges::{self, Reach};
use crate::protocol::{During, Problem};

/// Where the agent finds its program, its door and what is put into `/proc`, inside: in a folder that only root inside may
/// enter, in no snapshot.
pub const KIT: &str = "/dev/.sloplet";

/// Confines this process for good. `filters_commands` says whether it puts a further filter on commands.
pub fn confine(filters_commands: bool) -> io::Result<()> {
    try_confine(filters_commands).map_err(|problem| io::Error::other(problem.to_string()))
}

fn try_confine(filters_commands: bool) -> Result<(), Problem> {
    let folder = |path: &str| {
        open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).during(&format!("open {path}"))
    };
    procfs::lay_boot_id(&folder("/proc")?, folder(KIT)?.as_fd())?;
    // The agent has what it needs of it. Gone, its program is below no path of the sandbox's root, and Landlock forbids to
    // execute it through a link in /proc (CVE-2019-5736).
    unmount(KIT, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).during("put the agent's kit away")?;
    rmdir(KIT).during("put the agent's kit away")?;
    // Some runtimes make a link to the kernel's memory.
    match unlink("/dev/core") {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(Problem::new("tidy /dev", error)),
    }
    set_attributes(folder("/dev")?.as_fd(), Attributes::READ_ONLY, false, None).during("make /dev read-only")?;
    let whole = |_: &str| false;
    privileges::renounce(privileges::ROOT_INSIDE, Profile::Container, &Reach::root(), filters_commands, &whole)
}
