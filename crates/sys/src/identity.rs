//! Who file operations act as.
//!
//! The kernel keeps a separate *file-system* user and group (`setfsuid(2)`, `setfsgid(2)`) so that a server can open
//! files on behalf of somebody without that somebody being able to signal or trace it. Moving the file-system user
//! away from 0 also drops the file capabilities (`CAP_DAC_OVERRIDE`, `CAP_CHOWN`, …) from the effective set until it
//! moves back, so permission checks are really that user's.
//!
//! gVisor has no such thing. There the *effective* ids are moved: whoever is acted for still can neither signal nor trace
//! the agent, because its real and saved ids stay what they are.
//!
//! All of this is per thread: [`ActingAs`] is neither `Send` nor `Sync`.

use std::io;
use std::marker::PhantomData;

/// Acts as another user for file operations until dropped.
#[derive(Debug)]
#[must_use = "the identity goes back when this is dropped"]
pub struct ActingAs {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    effective: bool,
    death_signal: Option<rustix::process::Signal>,
    not_send: PhantomData<*const ()>,
}

impl ActingAs {
    /// Takes on `uid`, `gid` and `groups` for file operations of this thread.
    ///
    /// Needs `CAP_SETUID` and `CAP_SETGID`. If a step fails, the former identity is restored before the error returns.
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> io::Result<Self> {
        if !has_fs_ids() {
            return Self::effectively(uid, gid, groups);
        }
        let former = Self {
            // An invalid id changes nothing and reports the present one.
            uid: set_fs_uid(u32::MAX),
            gid: set_fs_gid(u32::MAX),
            groups: current_groups()?,
            effective: false,
            death_signal: death_signal(),
            not_send: PhantomData,
        };
        set_groups(groups)?;
        set_fs_gid(gid);
        set_fs_uid(uid);
        // These two calls cannot report failure other than by not having happened.
        if set_fs_gid(u32::MAX) != gid || set_fs_uid(u32::MAX) != uid {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        Ok(former)
    }

    fn effectively(uid: u32, gid: u32, groups: &[u32]) -> io::Result<Self> {
        let (now, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        // Dropped where a step fails, which takes the steps before it back.
        let former = Self {
            uid: now,
            gid: group,
            groups: current_groups()?,
            effective: true,
            death_signal: death_signal(),
            not_send: PhantomData,
        };
        set_groups(groups)?;
        set_effective(libc::SYS_setresgid, gid)?;
        set_effective(libc::SYS_setresuid, uid)?;
        Ok(former)
    }
}

impl Drop for ActingAs {
    fn drop(&mut self) {
        // The user first: it gives back the capabilities that the others need.
        if self.effective {
            // Going back to the real and saved ids is always allowed.
            let _ = set_effective(libc::SYS_setresuid, self.uid);
            let _ = set_effective(libc::SYS_setresgid, self.gid);
        } else {
            set_fs_uid(self.uid);
            set_fs_gid(self.gid);
        }
        // Fails only without CAP_SETGID, and then `new` failed too.
        let _ = set_groups(&self.groups);
        // The kernel forgets it with every change of these ids.
        if let Some(signal) = self.death_signal {
            let _ = rustix::process::set_parent_process_death_signal(Some(signal));
        }
    }
}

/// What this process gets when its parent dies.
fn death_signal() -> Option<rustix::process::Signal> {
    rustix::process::parent_process_death_signal().ok().flatten()
}

/// Replaces the supplementary groups of the calling thread (the raw call: the C library would signal every thread).
pub fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the pointer and length describe `groups`, which outlives the call; the kernel only reads it.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) }).map(|_| ())
}

/// The supplementary groups of the calling thread.
pub fn current_groups() -> io::Result<Vec<u32>> {
    // SAFETY: a size of 0 makes the kernel return the count without touching the pointer.
    let count = check(unsafe { libc::syscall(libc::SYS_getgroups, 0, std::ptr::null_mut::<u32>()) })?;
    let mut groups = vec![0u32; count as usize];
    // SAFETY: the pointer and length describe `groups`, which is writable and large enough by the given length.
    let count = check(unsafe { libc::syscall(libc::SYS_getgroups, groups.len(), groups.as_mut_ptr()) })?;
    groups.truncate(count as usize);
    Ok(groups)
}

fn set_fs_uid(uid: u32) -> u32 {
    // SAFETY: takes a number, returns a number, touches no memory.
    unsafe { libc::syscall(libc::SYS_setfsuid, uid) as u32 }
}

fn set_fs_gid(gid: u32) -> u32 {
    // SAFETY: takes a number, returns a number, touches no memory.
    unsafe { libc::syscall(libc::SYS_setfsgid, gid) as u32 }
}

/// Whether the kernel has file-system ids.
fn has_fs_ids() -> bool {
    static KNOWN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    // SAFETY: takes a number, returns a number, touches no memory; an invalid id changes nothing.
    *KNOWN.get_or_init(|| unsafe { libc::syscall(libc::SYS_setfsuid, u32::MAX) } >= 0)
}

/// Moves the effective id only (the raw call: the C library would move every thread's).
fn set_effective(call: libc::c_long, id: u32) -> io::Result<()> {
    // SAFETY: takes numbers, touches no memory.
    check(unsafe { libc::syscall(call, u32::MAX, id, u32::MAX) }).map(|_| ())
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn files_made_while_acting_belong_to_that_user_and_the_identity_comes_back() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = std::env::temp_dir().join(format!("sys-identity-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::chown(&folder, Some(4242), Some(4343)).unwrap();
        let groups = current_groups().unwrap();
        {
            let _acting = ActingAs::new(4242, 4343, &[4343, 4444]).unwrap();
            std::fs::write(folder.join("file"), b"x").unwrap();
            assert_eq!(current_groups().unwrap(), [4343, 4444]);
            assert!(std::fs::read("/etc/shadow").is_err(), "root's permissions remained");
        }
        let made = std::fs::metadata(folder.join("file")).unwrap();
        assert_eq!((made.uid(), made.gid()), (4242, 4343));
        assert_eq!(current_groups().unwrap(), groups);
        assert!(std::fs::read("/etc/shadow").is_ok());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
