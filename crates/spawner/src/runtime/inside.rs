//! What an agent does to itself behind a runtime that shares the host's kernel, before it serves anybody: it was started as
//! root inside with `CAP_SYS_ADMIN`, and ends up with what an agent in a container has. So one list of system calls, one set
//! of capabilities and one Landlock ruleset hold behind all walls of this kind, whatever the runtime's version makes of them.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags, open};
use sloplet_seccomp::Profile;

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
    let whole = |_: &str| false;
    privileges::renounce(privileges::ROOT_INSIDE, Profile::Container, &Reach::root(), filters_commands, &whole)
}
