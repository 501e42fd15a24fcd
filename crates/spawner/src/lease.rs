//! Leases of user id ranges: as root, no two living sandboxes share a user id.
//!
//! A lease is a symlink `uids/<slot>`, beside the run folders of all data folders, that points to its owner's folder: made
//! and read in one system call each, and exclusive because a name can exist only once.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use sloplet_sys::private;

use crate::protocol::{During, Problem};

/// The folder of leases, beside the run folders.
const DIR: &str = "uids";

/// Ids in a range: what a Linux system inside expects.
pub const RANGE: u32 = 65_536;

/// The first id of slot 0: far above what distributions give to people, subordinate ids and systemd.
const FIRST: u32 = 0x4000_0000;

/// Slots: up to 0x6FFF_FFFF, where systemd's container range ends.
const SLOTS: u32 = 12_288;

/// The folder of all leases.
fn folder(run_dir: &Path) -> PathBuf {
    run_dir.with_file_name(DIR)
}

/// What a lease of an owner points to.
fn target(run_dir: &Path, owner: &str) -> PathBuf {
    Path::new("..").join(run_dir.file_name().unwrap_or_default()).join(owner)
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
        let (dir, owner) = (folder(run_dir), target(run_dir, owner));
        let mut bytes = [0; 4];
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        // A random start keeps slots from being reused at once and concurrent takers apart.
        let start = u32::from_le_bytes(bytes) % SLOTS;
        for step in 0..SLOTS {
            let slot = (start + step) % SLOTS;
            let path = dir.join(slot.to_string());
            match symlink(&owner, &path) {
                Ok(()) => return Ok(Self { slot, path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    private::make(&dir).during("make the folder of user id leases")?;
                    symlink(&owner, &path).during("lease user ids")?;
                    return Ok(Self { slot, path });
                }
                Err(error) => return Err(Problem::new("lease user ids", error)),
            }
        }
        let detail = format!("all {SLOTS} ranges are in use: destroy some sandboxes");
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

/// Gives back the ranges whose owners are gone; an owner's folder is there before its first lease, and as long as its last.
pub fn release_ownerless(run_dir: &Path) -> io::Result<usize> {
    let mut released = 0;
    for entry in fs::read_dir(folder(run_dir)).into_iter().flatten() {
        let path = entry?.path();
        let missing = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        // Those of earlier builds point nowhere, and say nothing.
        if fs::read_link(&path).is_ok_and(|target| target.starts_with("..")) && fs::metadata(&path).is_err_and(missing)
        {
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
        // Two data folders share the ids of one host.
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        let take = |number| Lease::take(if number % 2 == 0 { &one } else { &other }, "me").unwrap();
        let leases: Vec<Lease> = (0..50).map(take).collect();
        let mut firsts: Vec<u32> = leases.iter().map(Lease::first_id).collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 50);
        assert!(firsts.iter().all(|id| id % RANGE == 0 && *id >= FIRST));
        drop(leases);
        assert_eq!(fs::read_dir(dir.path().join(DIR)).unwrap().count(), 0);
    }
}
