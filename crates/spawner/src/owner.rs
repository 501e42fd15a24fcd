//! Who owns what on the host, and the clean-up after owners that died.
//!
//! A spawner is an *owner*: a folder `<run dir>/<owner>` with a `lock` that it holds as long as it lives, and that names
//! the folders in which it makes control groups. The run dir is that of one data folder, so a server finds only spawners
//! that work for its own (see [`sloplet_sys::private`]). Everything an owner makes carries its name: control groups
//! `sloplet-<owner>-<number>`, user id leases. Mounts, namespaces and processes need no record: they live in the sandbox's
//! own namespaces and die with its PID 1, which dies with its owner. So [`collect`] can remove all that a killed owner
//! left, and never touches what a live one has.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sloplet_monitor::{Done, Task, is_confined, perform, task};
use sloplet_policy::Realm;
use sloplet_sys::private;

use crate::cgroup::{self, Cgroups};
use crate::door;
use crate::lease;
use crate::process;
use crate::protocol::{During, Problem};

/// The record of a live spawner. Dropping it removes the record.
#[derive(Debug)]
pub struct Owner {
    /// Its name: letters and digits.
    pub name: String,
    run_dir: PathBuf,
    // Held, not read: closing it tells the world that this owner is gone.
    _lock: File,
}

impl Owner {
    /// Makes the record.
    pub fn register(run_dir: &Path, cgroups: &Cgroups) -> Result<Self, Problem> {
        private::make(run_dir).during("trust the run folder")?;
        let name = random_name();
        let dir = run_dir.join(&name);
        // Held until the lock exists: whoever then sees a folder without a lock knows that its owner is dead.
        let newborn = File::open(run_dir).during("open the run folder")?;
        flock(&newborn, FlockOperation::LockShared).during("lock the run folder")?;
        DirBuilder::new().mode(0o700).create(&dir).during("make the owner's folder")?;
        let mut lock = File::create_new(dir.join(LOCK)).during("make the owner's lock")?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).during("lock the owner's record")?;
        drop(newborn);
        let bases: Vec<String> = cgroups.bases().iter().map(|path| path.display().to_string()).collect();
        lock.write_all(bases.join("\n").as_bytes()).during("record the owner's cgroups")?;
        Ok(Self { name, run_dir: run_dir.to_owned(), _lock: lock })
    }

    /// Where all owners are.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Its folder.
    pub fn dir(&self) -> PathBuf {
        self.run_dir.join(&self.name)
    }

    /// The name of its n-th control group.
    pub fn group_name(&self, number: u64) -> String {
        format!("{GROUP_PREFIX}{}-{number}", self.name)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let dir = self.dir();
        // First: nobody is to come in any more.
        let _ = fs::remove_file(dir.join(door::CONTROL));
        release_bases(&dir);
        let _ = fs::remove_file(dir.join(LOCK));
        if fs::remove_dir(&dir).is_err() {
            let _ = fs::remove_dir_all(&dir);
        }
    }
}

const LOCK: &str = "lock";
const GROUP_PREFIX: &str = "sloplet-";

/// The folder within the run folder on which every spawner mounts its templates, unseen by the others.
pub const TEMPLATES: &str = "templates";

/// What [`collect`] removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Collected {
    /// Records of dead owners.
    pub owners: usize,
    /// Control groups, with all processes in them.
    pub groups: usize,
    /// User id ranges.
    pub leases: usize,
}

/// Removes what dead owners left, those of other data folders of this user included. Cheap when there is nothing: a few
/// folders are read.
pub fn collect(run_dir: &Path) -> io::Result<Collected> {
    match is_confined() {
        true => perform(&COLLECT, &run_dir, Vec::new()).map(|(collected, _)| collected),
        false => collect_here(run_dir),
    }
}

/// Removes what dead owners left, for a confined server, which can change no control group.
pub static COLLECT: Task = Task {
    name: "collect",
    run: |input, _| {
        let run_dir: PathBuf = task::input(input)?;
        if let Some(realm) = Realm::get() {
            realm.check_run(&run_dir)?;
        }
        Done::with(&collect_here(&run_dir)?)
    },
};

fn collect_here(run_dir: &Path) -> io::Result<Collected> {
    let mut collected = Collected::default();
    let base = run_dir.parent().unwrap_or(run_dir);
    for (folder, name) in folders(base)? {
        if folder == run_dir || private::is_run_folder(&name) {
            collect_in(&folder, &mut collected)?;
        }
    }
    collected.leases = lease::release_ownerless(run_dir)?;
    Ok(collected)
}

/// The folders in a folder, with their names; none if there is no such folder.
fn folders(folder: &Path) -> io::Result<Vec<(PathBuf, String)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let named = |entry: fs::DirEntry| Some((entry.path(), entry.file_name().into_string().ok()?));
    Ok(entries.flatten().filter(is_folder).filter_map(named).collect())
}

fn collect_in(run_dir: &Path, collected: &mut Collected) -> io::Result<()> {
    // Nothing else is touched, whatever somebody has put there.
    for (dir, name) in folders(run_dir)?.into_iter().filter(|(_, name)| is_name(name)) {
        let Some(_lock) = lock_of_dead(&dir)? else { continue };
        let bases = fs::read_to_string(dir.join(LOCK)).unwrap_or_default();
        let (prefix, mut left) = (format!("{GROUP_PREFIX}{name}-"), false);
        for base in bases.lines().map(Path::new) {
            for group in fs::read_dir(base).into_iter().flatten().flatten() {
                if group.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()) {
                    cgroup::remove_tree(&group.path());
                    collected.groups += 1;
                    left |= group.path().exists();
                }
            }
        }
        // Something in it does not die yet: whoever collects next finds it by this owner's name.
        if left {
            continue;
        }
        // Before the leases, which end with this folder: nobody else may get the id that owns them.
        process::remove_recorded(&dir)?;
        release_bases(&dir);
        fs::remove_dir_all(&dir)?;
        collected.owners += 1;
    }
    Ok(())
}

/// Names of living owners that the next engine can talk to.
pub fn lasting(run_dir: &Path) -> io::Result<Vec<String>> {
    let waits = |name: &String| run_dir.join(name).join(door::CONTROL).exists() && is_alive(run_dir, name);
    Ok(folders(run_dir)?.into_iter().map(|(_, name)| name).filter(|name| is_name(name) && waits(name)).collect())
}

/// Whether an owner of that name is alive.
pub fn is_alive(run_dir: &Path, name: &str) -> bool {
    lock_of_dead(&run_dir.join(name)).is_ok_and(|lock| lock.is_none())
}

/// The lock of an owner that no longer holds it; `None` while it does (or while another collector is at work).
fn lock_of_dead(dir: &Path) -> io::Result<Option<File>> {
    let absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let lock = match File::open(dir.join(LOCK)) {
        Err(error) if absent(&error) => {
            // Newborn or dead: when nobody is being born, it is dead (or has just removed itself).
            let births = File::open(dir.parent().unwrap_or(dir))?;
            flock(&births, FlockOperation::LockExclusive)?;
            match File::open(dir.join(LOCK)) {
                Err(error) if absent(&error) => {
                    return match fs::remove_dir_all(dir) {
                        Err(error) if !absent(&error) => Err(error),
                        _ => Ok(None),
                    };
                }
                lock => lock?,
            }
        }
        lock => lock?,
    };
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(lock)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// On cgroup v2 the shared parent of all groups is removed by whoever leaves last; on v1 the bases are not ours, and
/// the kernel refuses because this process is in them.
fn release_bases(owner_dir: &Path) {
    for base in fs::read_to_string(owner_dir.join(LOCK)).unwrap_or_default().lines().map(Path::new) {
        if base.file_name() == Some(OsStr::new("sloplet")) {
            let _ = fs::remove_dir(base);
        }
    }
}

const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz012345";
const NAME_LENGTH: usize = 12;

/// Whether an owner has that name.
fn is_name(name: &str) -> bool {
    name.len() == NAME_LENGTH && name.bytes().all(|byte| LETTERS.contains(&byte))
}

/// Random letters and digits: unguessable is not needed, unique is.
fn random_name() -> String {
    let mut bytes = [0u8; NAME_LENGTH];
    // The pool is ready long before a user can start a program; if not, the name is merely less random.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte % 32)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cgroups_in(dir: &Path) -> Cgroups {
        Cgroups::V2 { base: dir.join("cg/sloplet"), parent: dir.join("cg"), controllers: Vec::new() }
    }

    #[test]
    fn what_a_live_owner_has_is_left_alone_and_a_dead_ones_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let owner = Owner::register(&run, &cgroups_in(dir.path())).unwrap();
        let group = dir.path().join("cg/sloplet").join(owner.group_name(1));
        fs::create_dir_all(&group).unwrap();
        lease::Lease::take(&run, &owner.name).unwrap().leak_for_test();
        assert_eq!(collect(&run).unwrap(), Collected::default());
        assert!(group.exists() && is_alive(&run, &owner.name));

        // As after kill -9: the lock is free, nothing was cleaned.
        let record = run.join(&owner.name);
        let (name, copy) = (owner.name.clone(), dir.path().join("copy"));
        fs::rename(&record, &copy).unwrap();
        drop(owner);
        fs::rename(&copy, &record).unwrap();
        assert!(!is_alive(&run, &name));
        assert_eq!(collect(&run).unwrap(), Collected { owners: 1, groups: 1, leases: 1 });
        assert!(!group.exists() && !record.exists());
        assert_eq!(collect(&run).unwrap(), Collected::default());
    }

    #[test]
    fn what_dead_owners_of_other_data_folders_left_is_removed_and_nothing_that_is_not_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let (mine, other) = (dir.path().join("fd01-1"), dir.path().join("fd01-2"));
        let living = Owner::register(&other, &cgroups_in(dir.path())).unwrap();
        lease::Lease::take(&other, &living.name).unwrap().leak_for_test();
        // As after kill -9 between two steps: folder but no lock; lease but no group.
        fs::create_dir(other.join("abcdefghijkl")).unwrap();
        lease::Lease::take(&other, "abcdefghijkl").unwrap().leak_for_test();
        let precious = [dir.path().join("documents/abcdefghijkl"), other.join("documents")];
        precious.iter().for_each(|path| fs::create_dir_all(path).unwrap());
        let collected = collect(&mine).unwrap();
        assert_eq!((collected.groups, collected.leases), (0, 1));
        assert!(!other.join("abcdefghijkl").exists() && is_alive(&other, &living.name));
        assert!(precious.iter().all(|path| path.exists()));
        assert!(lasting(&mine).unwrap().is_empty());
    }

    #[test]
    fn a_run_folder_that_others_can_enter_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        fs::create_dir(&run).unwrap();
        fs::set_permissions(&run, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let error = Owner::register(&run, &cgroups_in(dir.path())).unwrap_err();
        assert_eq!(error.step, "trust the run folder");
    }
}
