//! New processes in new namespaces.

use std::fs;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// Namespaces to make anew, as `CLONE_NEW*` bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespaces(pub u64);

impl Namespaces {
    /// Mounts.
    pub const MOUNT: Self = Self(libc::CLONE_NEWNS as u64);
    /// User and group ids.
    pub const USER: Self = Self(libc::CLONE_NEWUSER as u64);
    /// Process ids.
    pub const PID: Self = Self(libc::CLONE_NEWPID as u64);
    /// Network.
    pub const NET: Self = Self(libc::CLONE_NEWNET as u64);
    /// System V IPC and POSIX message queues.
    pub const IPC: Self = Self(libc::CLONE_NEWIPC as u64);
    /// Host name.
    pub const UTS: Self = Self(libc::CLONE_NEWUTS as u64);
    /// The view of the cgroup tree.
    pub const CGROUP: Self = Self(libc::CLONE_NEWCGROUP as u64);
    /// Monotonic and boot clocks.
    pub const TIME: Self = Self(0x80);
    /// None.
    pub const NONE: Self = Self(0);
}

impl std::ops::BitOr for Namespaces {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Evidence that this process has one thread, which is what makes a fork without exec sound: no other thread can hold
/// a lock (the allocator's, say) that would stay locked for ever in the child.
///
/// Whoever holds it must not start threads; it is neither `Send` nor `Sync`, so it cannot leave the proving thread.
#[derive(Debug)]
pub struct SingleThreaded(PhantomData<*const ()>);

/// Which side of a fork this is.
#[derive(Debug)]
pub enum Side {
    /// The new process.
    Child,
    /// The old one.
    Parent {
        /// The child's pid as the parent sees it.
        pid: i32,
        /// A descriptor that names the child even after its pid is reused.
        pidfd: OwnedFd,
    },
}

impl SingleThreaded {
    /// Checks it.
    pub fn prove() -> io::Result<Self> {
        // A procfs directory has two links of its own and one for each subdirectory, here: each thread.
        let threads = fs::metadata("/proc/self/task")?.nlink() - 2;
        match threads {
            1 => Ok(Self(PhantomData)),
            n => Err(io::Error::other(format!("{n} threads where one was required"))),
        }
    }

    /// Forks a child into new namespaces and, on cgroup v2, straight into `cgroup`.
    pub fn fork(&self, namespaces: Namespaces, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Side> {
        const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
        let mut pidfd: libc::c_int = -1;
        let mut args = CloneArgs {
            flags: namespaces.0 | libc::CLONE_PIDFD as u64,
            pidfd: &raw mut pidfd as u64,
            exit_signal: libc::SIGCHLD as u64,
            ..CloneArgs::default()
        };
        if let Some(fd) = cgroup {
            args.flags |= CLONE_INTO_CGROUP;
            args.cgroup = fd.as_raw_fd() as u64;
        }
        // SAFETY: without CLONE_VM this is a fork: the child has its own copy of the address space and the same stack
        // contents. `self` proves that there is no other thread, so no lock is held by one that is missing in the
        // child. `args` and `pidfd` live across the call, and the size passed is that of `args`.
        let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<CloneArgs>()) };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => Ok(Side::Child),
            pid => {
                // SAFETY: the kernel stored a new descriptor in `pidfd`, and nobody else owns it.
                let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
                Ok(Side::Parent { pid: pid as i32, pidfd })
            }
        }
    }

    /// Moves this process into new namespaces.
    pub fn unshare(&self, namespaces: Namespaces) -> io::Result<()> {
        // SAFETY: no memory is involved; being single-threaded, no other thread is left with a different view.
        match unsafe { libc::unshare(namespaces.0 as libc::c_int) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Moves this process into an existing namespace.
    pub fn enter(&self, namespace: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: no memory is involved; being single-threaded, no other thread is left with a different view.
        match unsafe { libc::setns(namespace.as_raw_fd(), 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl SingleThreaded {
    /// Makes descriptors 0, 1 and 2 copies of `fd`.
    pub fn replace_standard_fds(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        for standard in 0..=2 {
            // SAFETY: no memory is involved. 0 to 2 are owned by nobody: the standard library uses them by number only.
            if unsafe { libc::dup2(fd.as_raw_fd(), standard) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Takes a descriptor that this process was started with, before anybody else does.
    pub fn inherited(&self, number: i32) -> io::Result<OwnedFd> {
        // SAFETY: no memory is involved: a copy is asked for, of whatever has that number.
        let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
        match copy {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: the kernel made this descriptor just now, and nobody else owns it.
            copy => Ok(unsafe { OwnedFd::from_raw_fd(copy) }),
        }
    }

    /// Overwrites the environment that this process was started with, so that its memory does not hold it any more.
    pub fn erase_environment(&self) {
        // SAFETY: `environ` is an array of pointers to C strings that ends with a null pointer, or null itself; the
        // strings of a process's start are writable memory. There is no other thread that could read or change either.
        unsafe {
            let mut variable = environ;
            while !variable.is_null() && !(*variable).is_null() {
                let length = libc::strlen(*variable);
                std::ptr::write_bytes(*variable, 0, length);
                variable = variable.add(1);
            }
            libc::clearenv();
        }
    }

    /// Closes every descriptor from 3 on except those in `keep`. Meant for a freshly forked child that never returns to
    /// the code whose descriptors these were: their owners in memory must not be dropped afterwards.
    pub fn close_all_but(&self, keep: &[i32]) -> io::Result<()> {
        let mut keep: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
        keep.sort_unstable();
        let mut first = 3;
        for last in keep.iter().map(|fd| fd.saturating_sub(1)).chain([u32::MAX]) {
            if first <= last {
                // SAFETY: no memory is involved; see above for the owners of what is closed.
                if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            first = first.max(last.saturating_add(2));
        }
        Ok(())
    }
}

/// Gives this thread a root, a working directory and a umask of its own: it can then go into another mount namespace, which
/// the others of its process do not notice. Meant for a thread that ends soon.
pub fn leave_common_folders() -> io::Result<()> {
    // SAFETY: no memory and no descriptors are involved.
    match unsafe { libc::unshare(libc::CLONE_FS) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends the process at once, without running destructors or exit handlers that belong to the parent's copy.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` takes no pointers and does not return.
    unsafe { libc::_exit(code) }
}

unsafe extern "C" {
    /// The C library's list of variables.
    static mut environ: *mut *mut libc::c_char;
}

/// The kernel's `struct clone_args`, as of Linux 5.7.
#[derive(Default)]
#[repr(C)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_cannot_prove_to_have_one() {
        // The test harness itself runs this test in a second thread.
        assert!(SingleThreaded::prove().is_err());
    }
}
