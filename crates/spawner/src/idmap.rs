//! How user ids inside map to user ids outside.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use sloplet_sys::clone::{Namespaces, Side, SingleThreaded};

use crate::lease::{Lease, RANGE};
use crate::protocol::{During, Privilege, Problem};

/// The user that commands run as by default.
pub const USER: u32 = 1000;

/// One line of `/proc/<pid>/uid_map`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// First id inside.
    pub inside: u32,
    /// First id outside.
    pub outside: u32,
    /// How many.
    pub count: u32,
}

/// The mapping of a sandbox, for users and groups alike.
pub fn for_sandbox(privilege: &Privilege, lease: Option<&Lease>) -> Vec<Line> {
    match (privilege, lease) {
        (Privilege::Root, Some(lease)) => vec![Line { inside: 0, outside: lease.first_id(), count: RANGE }],
        // Ids outside are those of the spawner's own user namespace, in which the user is 0 and the subordinate ids
        // follow (see `for_spawner`). Inside, the user is `user`: what it writes to a mount belongs to the user.
        (Privilege::SubordinateIds { .. }, _) => vec![
            Line { inside: 0, outside: 1, count: USER },
            Line { inside: USER, outside: 0, count: 1 },
            Line { inside: USER + 1, outside: USER + 1, count: RANGE - USER - 1 },
        ],
        _ => vec![Line { inside: USER, outside: 0, count: 1 }],
    }
}

/// Writes the mapping of a process in a new user namespace below this process's.
pub fn write(pid: i32, lines: &[Line]) -> Result<(), Problem> {
    let text = text(lines);
    fs::write(format!("/proc/{pid}/gid_map"), &text).during("map group ids")?;
    fs::write(format!("/proc/{pid}/uid_map"), &text).during("map user ids")
}

fn text(lines: &[Line]) -> String {
    lines.iter().map(|line| format!("{} {} {}\n", line.inside, line.outside, line.count)).collect()
}

/// The user namespace of a process.
pub fn namespace_of(pid: i32) -> Result<OwnedFd, Problem> {
    open(format!("/proc/{pid}/ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .during("open a user namespace")
}

/// The mapping of a mount whose owner on disk is `own`: that one is `owner` inside, whose ids begin at `first`. With `ids`,
/// everybody else inside owns files as well, by ids on disk that begin there. The owner's own place among them is
/// [`USER`]'s, so that every file belongs to somebody inside, whoever the owner is in the next sandbox.
pub fn for_mount(own: u32, owner: u32, first: u32, ids: Option<u32>) -> Vec<Line> {
    let line = |inside, id: u32, count| Line { inside, outside: first + id, count };
    let mut lines = vec![line(own, owner, 1)];
    let Some(ids) = ids else { return lines };
    if owner != USER {
        lines.push(line(ids + owner, USER, 1));
    }
    let (low, high) = (owner.min(USER), owner.max(USER));
    for rest in [0..low, low + 1..high, high + 1..RANGE] {
        if !rest.is_empty() {
            lines.push(line(ids + rest.start, rest.start, rest.end - rest.start));
        }
    }
    lines
}

/// A user namespace that exists only to describe a mapping, for id-mapped mounts.
pub fn mapping_only(thread: &SingleThreaded, users: &[Line], groups: &[Line]) -> Result<OwnedFd, Problem> {
    match thread.fork(Namespaces::USER, None).during("make a user namespace")? {
        // Waits to be killed; the namespace lives on in the descriptor.
        Side::Child => loop {
            std::thread::park();
        },
        Side::Parent { pid, pidfd } => {
            let mapped = fs::write(format!("/proc/{pid}/gid_map"), text(groups))
                .and_then(|()| fs::write(format!("/proc/{pid}/uid_map"), text(users)))
                .during("map the owner of a mount");
            let namespace = mapped.and_then(|()| namespace_of(pid));
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            while matches!(waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED), Err(Errno::INTR)) {}
            namespace
        }
    }
}

/// Moves the spawner of an ordinary user into a user (and mount) namespace of its own, in which it may do for its
/// sandboxes what root does otherwise: the user is 0 in it, the subordinate ids follow.
pub fn enter_own_user_namespace(thread: &SingleThreaded, privilege: &Privilege) -> Result<(), Problem> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let own = Namespaces::USER | Namespaces::MOUNT;
    let Privilege::SubordinateIds { first_uid, first_gid } = privilege else {
        thread.unshare(own).map_err(explain_refusal)?;
        // The kernel lets an unprivileged process map its own group only once it has given up setgroups.
        fs::write("/proc/self/setgroups", "deny").during("give up setgroups")?;
        fs::write("/proc/self/gid_map", format!("0 {gid} 1")).during("map the group id")?;
        return fs::write("/proc/self/uid_map", format!("0 {uid} 1")).during("map the user id");
    };
    // The setuid helpers must run outside the new namespace, so a child is forked before and told when to go.
    let (go, wait) = rustix::pipe::pipe().during("make a pipe").map(|(read, write)| (write, read))?;
    let target = std::process::id().to_string();
    match thread.fork(Namespaces::NONE, None).during("fork a helper")? {
        Side::Child => {
            drop(go);
            let told = matches!(rustix::io::read(&wait, &mut [0u8; 1]), Ok(1));
            let map = |program: &str, own: u32, first: u32| {
                let args = ["0", &own.to_string(), "1", "1", &first.to_string(), &(RANGE - 1).to_string()];
                let mut helper = std::process::Command::new(program);
                helper.arg(&target).args(args).stdin(std::process::Stdio::null());
                helper.status().is_ok_and(|status| status.success())
            };
            let mapped = told && map("newuidmap", uid, *first_uid) && map("newgidmap", gid, *first_gid);
            sloplet_sys::clone::exit_now(i32::from(!mapped))
        }
        Side::Parent { pidfd, .. } => {
            drop(wait);
            let entered = thread.unshare(own).map_err(explain_refusal);
            if entered.is_ok() {
                rustix::io::write(&go, b"x").during("start newuidmap")?;
            }
            drop(go);
            let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).during("wait for newuidmap")?;
            entered?;
            match status.and_then(|status| status.exit_status()) {
                Some(0) => Ok(()),
                _ => Err(Problem {
                    step: "map subordinate ids".into(),
                    detail: "newuidmap or newgidmap failed: check /etc/subuid and /etc/subgid (65535 ids are needed)"
                        .into(),
                    errno: 0,
                }),
            }
        }
    }
}

/// Several distributions forbid user namespaces to ordinary users, each in its own way.
fn explain_refusal(error: std::io::Error) -> Problem {
    let mut problem = Problem::new("make a user namespace", error);
    let setting = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    if setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1" {
        problem.detail.push_str(" (AppArmor forbids it to ordinary users: as root, sysctl kernel.apparmor_restrict_unprivileged_userns=0, or add a profile for sloplet that allows userns)");
    } else if setting("/proc/sys/kernel/unprivileged_userns_clone") == "0" {
        problem.detail.push_str(" (as root: sysctl kernel.unprivileged_userns_clone=1)");
    } else if setting("/proc/sys/user/max_user_namespaces") == "0" {
        problem.detail.push_str(" (as root: sysctl user.max_user_namespaces=15000)");
    } else {
        problem.detail.push_str(
            " (user namespaces are forbidden here, perhaps by a container's own filter: try --isolation process)",
        );
    }
    problem
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_id_inside_has_one_place_in_a_volume_whoever_owns_it() {
        let disk = |owner: u32| -> HashSet<u32> {
            let lines = for_mount(0, owner, 1 << 30, Some(1 << 20));
            let inside: HashSet<u32> = lines.iter().flat_map(|l| l.outside..l.outside + l.count).collect();
            assert_eq!(inside, ((1 << 30)..(1 << 30) + RANGE).collect());
            assert!(lines.contains(&Line { inside: 0, outside: (1 << 30) + owner, count: 1 }));
            let disk: Vec<u32> = lines.iter().flat_map(|l| l.inside..l.inside + l.count).collect();
            let unique: HashSet<u32> = disk.iter().copied().collect();
            assert_eq!((disk.len(), unique.len()), (RANGE as usize, RANGE as usize));
            unique
        };
        let usual = disk(USER);
        for owner in [0, 1, 33, USER - 1, USER + 1, RANGE - 1] {
            assert_eq!(disk(owner), usual, "{owner}");
        }
        assert_eq!(for_mount(5, USER, 100, None), [Line { inside: 5, outside: 100 + USER, count: 1 }]);
    }
}
