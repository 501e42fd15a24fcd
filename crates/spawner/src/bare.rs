//! A mount namespace with next to nothing in it, which sandboxes start from.
//!
//! A child that is forked into a mount namespace of its own gets a copy of its parent's: every mount of the host, only to
//! detach them again. That takes the longer, the more the host has mounted, and the more processes it has: changing the
//! root (`pivot_root(2)`) looks at each of them. A copy of this namespace holds an empty read-only folder, a place to
//! build in, and a `/proc` of a pid namespace in which nobody lives (the kernel lets a user namespace mount a `/proc` only
//! where it sees a whole one already). The child's root lies on top of that folder, and there is no way below it but to
//! unmount, which nothing inside may.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Mode, OFlags, mkdir, open};
use rustix::mount::{MountAttrFlags, UnmountFlags, unmount};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{chdir, pivot_root};
use sloplet_sys::clone::{Namespaces, Side, SingleThreaded, exit_now};
use sloplet_sys::mount::{Attributes, set_attributes};

use crate::container::STAGE;
use crate::container::root::{attach, new_filesystem};
use crate::protocol::{During, Problem, receive, send};
use crate::sandbox::kill_and_wait;

/// What is done when a sandbox's first process is forked.
pub const FORK: &str = "fork into new namespaces";

/// The namespace, and the one to come back to.
#[derive(Debug)]
pub struct Bare {
    inside: File,
    outside: File,
}

impl Bare {
    /// Makes one. A child builds it, as the only process that ever lived in the pid namespace of its `/proc`.
    pub fn make(thread: &SingleThreaded) -> Result<Self, Problem> {
        let step = "make a bare mount namespace";
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).during(step)?;
        match thread.fork(Namespaces::MOUNT | Namespaces::PID, None).during(step)? {
            Side::Child => {
                drop(ours);
                let built = build();
                let _ = send(&theirs, &built.err(), &[]);
                let _ = receive::<u8>(&theirs); // until the spawner has seen it
                exit_now(0)
            }
            Side::Parent { pid, pidfd } => {
                drop(theirs);
                let built = match receive::<Option<Problem>>(&ours) {
                    Ok(Some((None, _))) => File::open(format!("/proc/{pid}/ns/mnt")).during(step),
                    Ok(Some((Some(problem), _))) => Err(problem),
                    _ => Err(Problem::plain(step, "the process that builds it ended")),
                };
                kill_and_wait(&pidfd);
                Ok(Self { inside: built?, outside: File::open("/proc/self/ns/mnt").during(step)? })
            }
        }
    }

    /// Forks a child into a copy of it.
    pub fn fork(
        &self,
        thread: &SingleThreaded,
        namespaces: Namespaces,
        cgroup: Option<BorrowedFd<'_>>,
    ) -> Result<Side, Problem> {
        thread.enter(self.inside.as_fd()).during("enter the bare mount namespace")?;
        let side = thread.fork(namespaces, cgroup);
        if matches!(side, Ok(Side::Child)) {
            return Ok(Side::Child);
        }
        let back = thread.enter(self.outside.as_fd()).during("leave the bare mount namespace");
        if let (Ok(Side::Parent { pidfd, .. }), Err(_)) = (&side, &back) {
            kill_and_wait(pidfd);
        }
        back?;
        side.during(FORK)
    }
}

fn build() -> Result<(), Problem> {
    let step = "build a bare mount namespace";
    let place = open(STAGE, OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty()).during(step)?;
    let options = [("size", "4k".to_owned()), ("nr_inodes", "8".into()), ("mode", "0555".into())];
    attach(new_filesystem("tmpfs", &options, MountAttrFlags::empty())?, place.as_fd(), "an empty folder")?;
    chdir(STAGE).during(step)?;
    for name in ["tmp", "proc"] {
        mkdir(name, Mode::from_raw_mode(0o555)).during(step)?;
    }
    let flags =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let target = open("proc", OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty()).during(step)?;
    attach(new_filesystem("proc", &[], flags)?, target.as_fd(), "a /proc of nobody")?;
    pivot_root(".", ".").during(step)?;
    unmount(".", UnmountFlags::DETACH).during(step)?;
    let root = open("/", OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty()).during(step)?;
    set_attributes(root.as_fd(), Attributes::READ_ONLY, false, None).during(step)
}
