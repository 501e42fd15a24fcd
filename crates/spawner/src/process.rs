//! The walls of a confined process tree on the host's own root, for hosts that forbid namespaces.
//!
//! The child becomes a user of its own (where the spawner is root), and whatever it is to run is bounded by resource
//! limits, the cgroup, Landlock (files, signals, abstract sockets, TCP) and seccomp (no sockets at all). What namespaces
//! would do for a container is done by hand here:
//!
//! - Its private folder is a real one on the host ([`Scratch`]), removed with everything in it, however deep.
//! - There is no PID 1 whose death kills all others, so [`kill_all`] finds them.
//!
//! # What this level cannot do
//! Landlock governs opening, making, renaming and removing files, not looking at their metadata: names, sizes and times
//! of what the user may reach by its permissions can be seen, and as an ordinary user (who runs the commands as himself)
//! also modes, times and extended attributes of his own files can be changed from inside. Other processes of the same
//! user are protected from signals by Landlock (ABI 6, Linux 6.12) and from inspection by seccomp and Landlock.
//! Terminals are there only if the spawner is root: an ordinary user's other terminals have the same owner.

use std::ffi::{CStr, OsStr};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use landlock::{ABI, AccessFs, BitFlags, make_bitflags};
use rustix::fs::{
    Access, AtFlags, Dir, DirEntry, FileType, Mode, OFlags, accessat, chmodat, fchmod, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitOptions, chdir, getrlimit, kill_process, setrlimit,
    umask, waitid, waitpid,
};
use rustix::thread::{CapabilitySet, Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use sloplet_sys::clone::{Namespaces, Side, SingleThreaded, exit_now};

use crate::container::limit_resources;
use crate::idmap;
use crate::lease::Lease;
use crate::plan::{Bounds, Plan, Process};
use crate::privileges::{self, Place, Reach, Reachable, everything};
use crate::protocol::{During, Problem};

/// Names of scratch folders' records in the owner's folder.
const RECORD_PREFIX: &str = "scratch-";

/// Device files that every program may use: they hold nothing of the host's.
const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// Facts about the machine that programs look up, none of them about processes or users. All else in `/proc` is closed:
/// Landlock cannot allow a process its own folder there without all the others.
const PROC_FILES: [&str; 7] = [
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/uptime",
    "/proc/version",
];

/// How long [`kill_all`] tries. Only a process that the kernel cannot kill (stuck in a dead network disk, say) lasts
/// longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The user that a sandbox with this lease runs as on the host: the one that would be `user` in a container.
pub fn user_of(lease: &Lease) -> u32 {
    lease.first_id() + idmap::USER
}

/// Builds the walls around this process, except those of [`privileges::renounce`], for which it returns what remains
/// within reach. With `user`, becomes that user and group of the host.
pub fn enclose(plan: &Process, whole: &Plan, user: Option<u32>, pids_by_cgroup: bool) -> Result<Reach, Problem> {
    let scratch = PathBuf::from(OsStr::from_bytes(&plan.scratch));
    limit_resources(&whole.bounds, whole)?;
    lower(Resource::Fsize, plan.file_size)?;
    limit_processes(&whole.bounds, user, pids_by_cgroup)?;
    if let Some(user) = user {
        privileges::bound_capabilities(CapabilitySet::empty())?;
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
        set_thread_groups(&[]).during("drop groups")?;
        set_thread_res_gid(gid, gid, gid).during("become the sandbox's group")?;
        set_thread_res_uid(uid, uid, uid).during("become the sandbox's user")?;
    }
    umask(Mode::WGRP | Mode::WOTH);
    chdir(&scratch).during("enter the sandbox's folder")?;
    let mut paths = system(plan, user.is_some());
    paths.push(Reachable { place: Place::Path(scratch), access: everything() });
    for mount in &plan.mounts {
        let opened = mount.open()?;
        check_permission(Path::new(OsStr::from_bytes(&mount.from)), mount.writable, user)?;
        let access = if mount.writable { everything() } else { read_and_execute() };
        paths.push(Reachable { place: Place::Open(opened), access });
    }
    Ok(Reach { paths, no_network: true, required: !whole.best_effort })
}

/// What everything inside may use of the host.
fn system(plan: &Process, own_user: bool) -> Vec<Reachable> {
    let use_device = make_bitflags!(AccessFs::{ReadFile | WriteFile | IoctlDev});
    let optional = |path: &Path, access| Reachable { place: Place::Optional(path.to_owned()), access };
    let readable = plan.readable.iter().map(|path| optional(Path::new(OsStr::from_bytes(path)), read_and_execute()));
    let devices = DEVICES.iter().map(|path| optional(Path::new(path), use_device));
    let facts = PROC_FILES.iter().map(|path| optional(Path::new(path), AccessFs::ReadFile.into()));
    // A user of its own owns no terminal but those made inside. For somebody who has others, opening one by its name
    // would be a way into them.
    let terminals = ["/dev/ptmx", "/dev/pts"].iter().filter(|_| own_user);
    let terminals = terminals.map(|path| optional(Path::new(path), use_device));
    readable.chain(devices).chain(facts).chain(terminals).collect()
}

fn read_and_execute() -> BitFlags<AccessFs> {
    AccessFs::from_read(ABI::V5)
}

/// A mount keeps its owner and mode here; better to say so than to let every command fail.
fn check_permission(path: &Path, writable: bool, user: Option<u32>) -> Result<(), Problem> {
    let wanted = Access::READ_OK | if writable { Access::WRITE_OK } else { Access::empty() };
    accessat(rustix::fs::CWD, path, wanted, AtFlags::EACCESS).map_err(|error| {
        let mut problem = Problem::new(format!("mount {}", path.display()), error);
        if let Some(user) = user {
            problem.detail.push_str(&format!(
                " (with this isolation, commands run as user {user}, who has no access to it: change its mode, or use \
                 --isolation container)"
            ));
        }
        problem
    })
}

/// Lowering only: the hard limit that this process has cannot be raised without CAP_SYS_RESOURCE.
fn lower(resource: Resource, wanted: u64) -> Result<(), Problem> {
    let value = Some(getrlimit(resource).maximum.map_or(wanted, |hard| hard.min(wanted)));
    setrlimit(resource, Rlimit { current: value, maximum: value }).during("limit resources")
}

/// The kernel counts processes for each user: exactly the sandbox's if the user is its own. Otherwise, where no cgroup
/// does better, it may have `pids` more than this user has now.
fn limit_processes(bounds: &Bounds, user: Option<u32>, pids_by_cgroup: bool) -> Result<(), Problem> {
    let others = match user {
        Some(_) => 0,
        None if pids_by_cgroup => return Ok(()),
        None => count_threads_of_this_user(),
    };
    lower(Resource::Nproc, others + u64::from(bounds.pids))
}

fn count_threads_of_this_user() -> u64 {
    let uid = rustix::process::getuid().as_raw().to_string();
    let count = |status: &str| -> Option<u64> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let own = field("Uid:")?.split_ascii_whitespace().next()? == uid;
        if own { field("Threads:")?.trim().parse().ok() } else { None }
    };
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let statuses = pids.filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok());
    statuses.filter_map(|status| count(&status)).sum()
}

/// A sandbox's private folder. Dropping it removes it; so does [`remove_recorded`] if its owner died before.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    record: PathBuf,
}

impl Scratch {
    /// Makes the folder for a user (and group) of that id, the present user if absent, and notes it in the owner's
    /// folder.
    pub fn make(plan: &Process, owner_dir: &Path, id: &str, user: Option<u32>) -> Result<Self, Problem> {
        let path = PathBuf::from(OsStr::from_bytes(&plan.scratch));
        let record = owner_dir.join(format!("{RECORD_PREFIX}{id}"));
        symlink(&path, &record).during("note the sandbox's folder")?;
        // Fails if anything has that name: nobody else can have prepared it.
        DirBuilder::new().mode(0o700).create(&path).map_err(|error| {
            let _ = fs::remove_file(&record);
            Problem::new(format!("make {}", path.display()), error)
        })?;
        let scratch = Self { path, record };
        if user.is_some() {
            chown(&scratch.path, user, user).during("give the sandbox its folder")?;
        }
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if remove_tree(&self.path).is_ok() {
            let _ = fs::remove_file(&self.record);
        }
    }
}

/// Removes the scratch folders that a dead owner noted in its folder; returns how many.
pub fn remove_recorded(owner_dir: &Path) -> io::Result<usize> {
    let mut removed = 0;
    for entry in fs::read_dir(owner_dir)? {
        let entry = entry?;
        if entry.file_name().as_bytes().starts_with(RECORD_PREFIX.as_bytes()) {
            remove_tree(&fs::read_link(entry.path())?)?;
            fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Removes a folder that hostile programs filled. They are dead by now, but what they left may be nested deeper than any
/// path is long and than there are descriptors, and closed to its owner. So nothing recurses here: a folder's folders
/// are moved to the top before it is removed.
pub fn remove_tree(top: &Path) -> io::Result<()> {
    let top_fd = match open_folder(rustix::fs::CWD, top) {
        Err(Errno::NOENT) => return Ok(()),
        fd => fd?,
    };
    let mut moved = 0u64;
    loop {
        let mut empty = true;
        for entry in entries(&top_fd)? {
            let entry = entry?;
            empty = false;
            if !is_folder(&top_fd, &entry)? {
                unlinkat(&top_fd, entry.file_name(), AtFlags::empty())?;
                continue;
            }
            let folder = open_folder(&top_fd, entry.file_name())?;
            for inner in entries(&folder)? {
                let inner = inner?;
                if is_folder(&folder, &inner)? {
                    lift(&folder, inner.file_name(), &top_fd, &mut moved)?;
                } else {
                    unlinkat(&folder, inner.file_name(), AtFlags::empty())?;
                }
            }
            unlinkat(&top_fd, entry.file_name(), AtFlags::REMOVEDIR)?;
        }
        if empty {
            return fs::remove_dir(top);
        }
    }
}

/// Moves a folder to the top, under a name that is free.
fn lift(from: &OwnedFd, name: &CStr, top: &OwnedFd, moved: &mut u64) -> rustix::io::Result<()> {
    loop {
        *moved += 1;
        match renameat(from, name, top, format!("{moved}.removed")) {
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            // Its ".." changes: that needs permission to write to it.
            Err(Errno::ACCESS) => chmodat(from, name, Mode::RWXU, AtFlags::empty())?,
            done => return done,
        }
    }
}

/// Opens a folder whose owner may have taken away his own permissions, and gives them back to him.
fn open_folder(parent: impl AsFd, name: impl rustix::path::Arg + Copy) -> rustix::io::Result<OwnedFd> {
    let folder = match openat(&parent, name, FOLDER, Mode::empty()) {
        // Never happens to root, for whom following a symlink here would be dangerous.
        Err(Errno::ACCESS) => {
            chmodat(&parent, name, Mode::RWXU, AtFlags::empty())?;
            openat(&parent, name, FOLDER, Mode::empty())?
        }
        folder => folder?,
    };
    fchmod(&folder, Mode::RWXU)?;
    Ok(folder)
}

/// What a folder holds.
fn entries(folder: &OwnedFd) -> rustix::io::Result<impl Iterator<Item = rustix::io::Result<DirEntry>>> {
    let listed = Dir::read_from(folder)?;
    let real = |entry: &rustix::io::Result<DirEntry>| {
        !entry.as_ref().is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b".."))
    };
    Ok(listed.filter(real))
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn is_folder(parent: &OwnedFd, entry: &DirEntry) -> rustix::io::Result<bool> {
    let kind = match entry.file_type() {
        FileType::Unknown => {
            let stat = rustix::fs::statat(parent, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
            FileType::from_raw_mode(stat.st_mode)
        }
        kind => kind,
    };
    Ok(kind == FileType::Directory)
}

/// Kills what a dead agent left behind: daemons, too, wherever they sit in the process tree. `agents` are the first
/// processes of sandboxes that are still alive.
///
/// With a user of its own, that user's processes are killed by the kernel at one blow. Those of the spawner's own user
/// come to the spawner as orphans when their agent dies, because it has declared itself their reaper; this repeats until
/// no more come.
pub fn kill_all(thread: &SingleThreaded, user: Option<u32>, agents: &[i32]) {
    if let Some(user) = user
        && let Ok(side) = thread.fork(Namespaces::NONE, None)
    {
        match side {
            Side::Child => {
                let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
                let became = set_thread_groups(&[])
                    .and_then(|()| set_thread_res_gid(gid, gid, gid))
                    .and_then(|()| set_thread_res_uid(uid, uid, uid));
                if became.is_ok() {
                    // All that this process may signal, itself excluded.
                    let _ = sloplet_sys::spawn::send_signal(-1, Signal::KILL.as_raw());
                }
                exit_now(0)
            }
            Side::Parent { pidfd, .. } => {
                while matches!(waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED), Err(Errno::INTR)) {}
            }
        }
    }
    let started = std::time::Instant::now();
    let orphans = || children().into_iter().filter(|pid| !agents.contains(&pid.as_raw_nonzero().get()));
    loop {
        let mut any = false;
        for pid in orphans() {
            any = true;
            let _ = kill_process(pid, Signal::KILL);
        }
        for pid in orphans() {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        if !any || started.elapsed() > PATIENCE {
            return;
        }
        std::thread::yield_now();
    }
}

/// This process's children, zombies included.
fn children() -> Vec<Pid> {
    let own = std::process::id();
    let pid = |text: &str| text.parse().ok().and_then(Pid::from_raw);
    if let Ok(list) = fs::read_to_string(format!("/proc/self/task/{own}/children")) {
        return list.split_ascii_whitespace().filter_map(pid).collect();
    }
    // Kernels without that file.
    let parent = |stat: String| stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse::<u32>().ok();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let own_child =
        |entry: &fs::DirEntry| fs::read_to_string(entry.path().join("stat")).ok().and_then(parent) == Some(own);
    entries.filter(own_child).filter_map(|entry| pid(entry.file_name().to_str()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(scratch: &Path) -> Process {
        let scratch = scratch.as_os_str().as_bytes().to_vec().into();
        Process { scratch, readable: Vec::new(), mounts: Vec::new(), file_size: 1 << 30 }
    }

    #[test]
    fn a_scratch_folder_is_private_and_goes_with_its_owner_or_with_the_next_collector() {
        let dir = tempfile::tempdir().unwrap();
        let (owner, path) = (dir.path().join("owner"), dir.path().join("scratch"));
        fs::create_dir(&owner).unwrap();
        let scratch = Scratch::make(&plan(&path), &owner, "x", None).unwrap();
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, 0o700);
        fs::write(path.join("file"), "x").unwrap();
        drop(scratch);
        assert!(!path.exists() && fs::read_dir(&owner).unwrap().next().is_none());

        std::mem::forget(Scratch::make(&plan(&path), &owner, "y", None).unwrap());
        assert!(path.exists());
        assert_eq!(remove_recorded(&owner).unwrap(), 1);
        assert!(!path.exists() && fs::read_dir(&owner).unwrap().next().is_none());
    }

    #[test]
    fn a_folder_that_was_there_before_is_neither_used_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (owner, path) = (dir.path().join("owner"), dir.path().join("scratch"));
        fs::create_dir(&owner).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(Scratch::make(&plan(&path), &owner, "x", None).is_err());
        assert!(path.exists());
    }

    #[test]
    fn a_hostile_tree_is_removed_and_what_it_points_to_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "x").unwrap();
        let top = dir.path().join("top");
        fs::create_dir(&top).unwrap();
        symlink(&outside, top.join("link")).unwrap();
        // Deeper than descriptors (and, by far, than a path) allow, with names that collide with the remover's own.
        let mut folder = openat(rustix::fs::CWD, &top, FOLDER, Mode::empty()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&folder, "1.removed", Mode::RWXU).unwrap();
            rustix::fs::symlinkat(&outside, &folder, "2.removed").unwrap();
            folder = openat(&folder, "1.removed", FOLDER, Mode::empty()).unwrap();
        }
        rustix::fs::mkdirat(&folder, "closed", Mode::RWXU).unwrap();
        chmodat(&folder, "closed", Mode::empty(), AtFlags::empty()).unwrap();
        drop(folder);
        chmodat(rustix::fs::CWD, &top, Mode::empty(), AtFlags::empty()).unwrap();
        remove_tree(&top).unwrap();
        assert!(!top.exists());
        assert!(outside.join("precious").exists());
        remove_tree(&top).unwrap();
    }
}
