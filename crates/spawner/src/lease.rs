//! Leases of user id ranges: as root, no two living sandboxes share a user id.
//!
//! A lease is a symlink `<run dir>/uids/<slot>` that points to its owner: made and read in one system call each, and
//! exclusive because a name can exist only once.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::protocol::{During, Problem};

/// The folder of leases within the run folder.
pub const DIR: &str = "uids";

/// Ids in a range: what a Linux system inside expects.
pub const RANGE: u32 = 65_536;

/// The first id of slot 0: far above what distributions give to people, subordinate ids and systemd.
const FIRST: u32 = 0x4000_0000;

/// Slots: up to 0x6FFF_FFFF, where systemd's container range ends.
const SLOTS: u32 = 12_288;

/// Where a run folder has this ending, it is that of the confined programs that virtual machines run in: they have slots of
/// their own, so that two folders cannot give the same ids away.
pub const MACHINES: &str = "-vm";

/// The first slot of a run folder, and how many it has.
fn share_of(run_dir: &Path) -> (u32, u32) {
    let machines = run_dir.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(MACHINES.as_bytes()));
    let kept = SLOTS / 3;
    if machines { (SLOTS - kept, kept) } else { (0, SLOTS - kept) }
}

/// A range of ids, given back when dropped.
#[derive(Debug)]
pub struct Lease {
    slot: u32,
    path: PathBuf,
}

impl Lease {
    /// Takes a free range.
    pub fn take(run_dir: &Path, owner: &str) -> Result<Self, Problem> {
        let dir = run_dir.join(DIR);
        let mut bytes = [0; 4];
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        // A random start keeps slots from being reused at once and concurrent takers apart.
        let (first, count) = share_of(run_dir);
        let start = u32::from_le_bytes(bytes) % count;
        for step in 0..count {
            let slot = first + (start + step) % count;
            let path = dir.join(slot.to_string());
            match symlink(owner, &path) {
                Ok(()) => return Ok(Self { slot, path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    fs::create_dir_all(&dir).during("make the folder of user id leases")?;
                    symlink(owner, &path).during("lease user ids")?;
                    return Ok(Self { slot, path });
                }
                Err(error) => return Err(Problem::new("lease user ids", error)),
            }
        }
        let detail = format!("all {count} ranges are in use: destroy some sandboxes");
        Err(Problem { step: "lease user ids".into(), detail, errno: 0 })
    }

    /// The first id on the host.
    pub fn first_id(&self) -> u32 {
        FIRST + self.slot * RANGE
    }

    #[cfg(test)]
    pub(crate) fn leak_for_test(self) {
        std::mem::forget(self);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Gives back every range of a dead owner.
pub fn release_all_of(run_dir: &Path, owner: &str) -> io::Result<usize> {
    let mut released = 0;
    for entry in fs::read_dir(run_dir.join(DIR)).into_iter().flatten() {
        let path = entry?.path();
        if fs::read_link(&path).is_ok_and(|target| target == Path::new(owner)) {
            fs::remove_file(path)?;
            released += 1;
        }
    }
    Ok(released)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let leases: Vec<Lease> = (0..50).map(|_| Lease::take(dir.path(), "me").unwrap()).collect();
        let mut firsts: Vec<u32> = leases.iter().map(Lease::first_id).collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 50);
        assert!(firsts.iter().all(|id| id % RANGE == 0 && *id >= FIRST));
        drop(leases);
        assert_eq!(fs::read_dir(dir.path().join(DIR)).unwrap().count(), 0);
    }
}
