//! Starting programs from a small process, and hearing of their end.
//!
//! # Why plain `fork`
//! A `vfork`-like clone suspends the parent until the child has executed its program, and a hostile program can make
//! that long: by stopping the half-made child with SIGSTOP, or by holding a write lease on the file to be executed
//! (opening it then waits up to 45 s). An agent that serves others meanwhile must not wait for either, so the child gets
//! its own copy of a small address space, and its fate arrives through a close-on-exec pipe.
//!
//! Between fork and exec the child makes system calls only: all strings and arrays are prepared by the parent, nothing
//! is allocated or freed.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use crate::filter::SockFilter;

/// The user a program runs as.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// User id, real, effective and saved.
    pub uid: u32,
    /// Group id, real, effective and saved.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Where a program starts.
#[derive(Debug)]
pub enum WorkDir {
    /// There, or not at all.
    Required(CString),
    /// There if possible, else in `/`.
    Preferred(CString),
}

/// Everything about a program to be started.
#[derive(Debug)]
pub struct Program<'a> {
    /// Paths to try in turn, the result of a `PATH` search; a missing or unusable one leads to the next.
    pub candidates: &'a [CString],
    /// Arguments, the program's name first.
    pub argv: &'a [CString],
    /// The whole environment.
    pub env: &'a [CString],
    /// Working directory, entered as the new user.
    pub cwd: &'a WorkDir,
    /// Standard input, output and error.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Whether standard input is a terminal that is to control the new session.
    pub terminal: bool,
    /// A seccomp filter of its own, on top of the caller's; needs no_new_privs or `CAP_SYS_ADMIN` in the user namespace.
    pub filter: Option<&'a [SockFilter]>,
    /// The user to become; the present one if absent.
    pub credentials: Option<&'a Credentials>,
    /// Signals to set back to their default action, from [`ignored_signals`]. (Handlers are reset by exec itself.)
    pub ignored_signals: &'a [i32],
    /// What the child does in place of a program; its result is the exit code. Only where the caller has one thread: locks
    /// of others would stay locked in the child.
    pub inner: Option<fn(&[CString]) -> u8>,
}

/// A step of [`start`] that may fail in the child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// Opening a session, moving standard streams, taking the terminal.
    Setup = 0,
    /// Becoming the user.
    Identity = 1,
    /// Entering the working directory.
    WorkDir = 2,
    /// Executing the program.
    Exec = 3,
}

/// Why a program did not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartError {
    /// The step.
    pub step: Step,
    /// The kernel's error number.
    pub errno: i32,
}

/// A child between fork and exec.
#[derive(Debug)]
pub struct Starting {
    /// Its pid, which is also its session and process group.
    pub pid: i32,
    /// Ends once the program runs, or yields what [`outcome`] decodes. Non-blocking.
    pub status: OwnedFd,
}

/// Forks a child that becomes `program`, in a session of its own, with default signal actions, an empty signal mask,
/// umask 022 and no other descriptors than the three given.
///
/// Sound with threads too (the child keeps to what a signal handler may do), but cheap only from a small process.
pub fn start(program: &Program<'_>) -> io::Result<Starting> {
    let argv = pointers(program.argv);
    let env = pointers(program.env);
    let (status, status_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&status, rustix::fs::OFlags::NONBLOCK)?;
    // The child overwrites 0, 1 and 2.
    let status_write = rustix::io::fcntl_dupfd_cloexec(&status_write, 3)?;

    // SAFETY: the child calls only `become_program`, which keeps to async-signal-safe functions and never returns,
    // allocates, locks or unwinds; so it does not matter what other threads were doing. With `inner` it does all that, as the
    // copy of a process with one thread; were there others, the C library's allocator would still be usable after its fork.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => become_program(program, &argv, &env, status_write.as_raw_fd()),
        pid => Ok(Starting { pid, status }),
    }
}

/// Decodes what was read from [`Starting::status`]: nothing means that the program runs.
pub fn outcome(bytes: &[u8]) -> Result<(), StartError> {
    match bytes {
        [] => Ok(()),
        [step, a, b, c, d] => {
            let step = match step {
                0 => Step::Setup,
                1 => Step::Identity,
                2 => Step::WorkDir,
                _ => Step::Exec,
            };
            Err(StartError { step, errno: i32::from_le_bytes([*a, *b, *c, *d]) })
        }
        _ => Err(StartError { step: Step::Setup, errno: libc::EIO }),
    }
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// The child's part. Never returns.
fn become_program(
    program: &Program<'_>,
    argv: &[*const libc::c_char],
    env: &[*const libc::c_char],
    status: RawFd,
) -> ! {
    let Err((step, errno)) = try_become(program, argv, env);
    let number = errno.to_le_bytes();
    let report = [step as u8, number[0], number[1], number[2], number[3]];
    // SAFETY: `report` is readable for its length, and `_exit` ends the process without running anything of the
    // parent's (buffers, destructors). A SIGPIPE or failed write changes nothing: the process ends anyway.
    unsafe {
        libc::write(status, report.as_ptr().cast(), report.len());
        libc::_exit(127)
    }
}

fn try_become(
    program: &Program<'_>,
    argv: &[*const libc::c_char],
    env: &[*const libc::c_char],
) -> Result<std::convert::Infallible, (Step, i32)> {
    let at = |step: Step, result: libc::c_long| if result < 0 { Err((step, errno())) } else { Ok(result) };

    // SAFETY: plain system calls on numbers, or on pointers to memory of `program`, `argv` and `env` and
    // locals, all alive until exec replaces the address space. `argv` and `env` end with a null pointer and point to
    // C strings of `program`.
    unsafe {
        at(Step::Setup, libc::setsid().into())?;

        // A descriptor below 3 would be overwritten while the others move: lift it first.
        let mut sources = [0; 3];
        for (source, fd) in sources.iter_mut().zip(program.stdio) {
            *source = fd.as_raw_fd();
            if *source < 3 {
                *source = at(Step::Setup, libc::fcntl(*source, libc::F_DUPFD_CLOEXEC, 3).into())? as RawFd;
            }
        }
        for (target, source) in (0..).zip(sources) {
            at(Step::Setup, libc::dup2(source, target).into())?;
        }
        if program.terminal {
            at(Step::Setup, libc::ioctl(0, libc::TIOCSCTTY, 0).into())?;
        }
        // Everything else closes at exec; not at once, because the status pipe must outlive failures. Where the call is
        // unknown nothing is lost: all descriptors of the parent are close-on-exec, this is the second lock.
        libc::syscall(libc::SYS_close_range, 3u32, LAST, libc::CLOSE_RANGE_CLOEXEC);

        for signal in program.ignored_signals {
            // All zero: the default action. The raw call, because the C library refuses the two signals it uses itself.
            let default = KernelAction::default();
            let size = size_of::<u64>();
            libc::syscall(libc::SYS_rt_sigaction, *signal, &raw const default, ptr::null_mut::<KernelAction>(), size);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
        libc::umask(0o022);

        if let Some(filter) = program.filter {
            let filter = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
            let mode = libc::SECCOMP_SET_MODE_FILTER;
            if libc::syscall(libc::SYS_seccomp, mode, 0, &raw const filter) < 0 {
                // Without the capability for it, a filter takes a promise: no new privileges, and so no sudo.
                at(Step::Setup, libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into())?;
                at(Step::Setup, libc::syscall(libc::SYS_seccomp, mode, 0, &raw const filter))?;
            }
        }
        if let Some(user) = program.credentials {
            let groups = (user.groups.len(), user.groups.as_ptr());
            at(Step::Identity, libc::syscall(libc::SYS_setgroups, groups.0, groups.1))?;
            at(Step::Identity, libc::syscall(libc::SYS_setresgid, user.gid, user.gid, user.gid))?;
            at(Step::Identity, libc::syscall(libc::SYS_setresuid, user.uid, user.uid, user.uid))?;
        }
        match program.cwd {
            WorkDir::Required(path) => at(Step::WorkDir, libc::chdir(path.as_ptr()).into())?,
            WorkDir::Preferred(path) if libc::chdir(path.as_ptr()) < 0 => {
                at(Step::WorkDir, libc::chdir(c"/".as_ptr()).into())?
            }
            WorkDir::Preferred(_) => 0,
        };

        if let Some(inner) = program.inner {
            // Its memory is a copy of the caller's: nobody of its new user's may look. A change of user does the same, unless
            // the host was told otherwise.
            at(Step::Setup, libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0).into())?;
            // Without exec nothing closes by itself; with this the status pipe does, which says that all is well. The
            // descriptors' owners are in memory that nobody drops: this process ends below.
            at(Step::Setup, libc::syscall(libc::SYS_close_range, 3u32, LAST, 0))?;
            // A panic must not unwind into the parent's frames.
            let code = std::panic::catch_unwind(|| inner(program.argv)).unwrap_or(101);
            libc::_exit(code.into());
        }

        // As execvp: a candidate that may not be executed does not end the search but decides its result.
        let mut result = libc::ENOENT;
        for candidate in program.candidates {
            libc::execve(candidate.as_ptr(), argv.as_ptr(), env.as_ptr());
            match errno() {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => result = libc::EACCES,
                other => return Err((Step::Exec, other)),
            }
        }
        Err((Step::Exec, result))
    }
}

/// No descriptor is beyond. gVisor refuses more.
const LAST: u32 = i32::MAX as u32;

fn errno() -> i32 {
    // SAFETY: the location of this thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

/// The kernel's `struct sigaction`, which is not the C library's.
#[derive(Default)]
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

/// Signals that are ignored in this process and would stay so across exec.
pub fn ignored_signals() -> Vec<i32> {
    let ignored = |signal: &i32| {
        let mut action = KernelAction::default();
        let size = size_of::<u64>();
        // SAFETY: a null new action only queries; `action` is as large as the kernel's struct on every architecture.
        let result = unsafe {
            libc::syscall(libc::SYS_rt_sigaction, *signal, ptr::null::<KernelAction>(), &raw mut action, size)
        };
        result == 0 && action.handler == libc::SIG_IGN
    };
    (1..=64).filter(ignored).collect()
}

/// Ignores SIGPIPE and SIGXFSZ, so that writing to a program that is gone, or beyond the bound of a file, is an error instead
/// of death.
pub fn ignore_failed_writes() {
    for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
        // SAFETY: setting a signal to be ignored installs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Blocks SIGCHLD and returns a non-blocking descriptor that becomes readable when children end.
pub fn child_signals() -> io::Result<OwnedFd> {
    // SAFETY: `set` is initialised by `sigemptyset` before use and outlives the calls; a returned descriptor is new and
    // owned by nobody else.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        // A disposition of "ignore" would make the kernel reap by itself and lose the exit codes.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        if libc::sigprocmask(libc::SIG_BLOCK, &set, ptr::null_mut()) < 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Blocks a signal and returns a non-blocking descriptor that becomes readable when it comes.
pub fn await_signal(signal: i32) -> io::Result<OwnedFd> {
    // SAFETY: as in `child_signals`.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        if libc::sigprocmask(libc::SIG_BLOCK, &set, ptr::null_mut()) < 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// A child that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Its pid.
    pub pid: i32,
    /// Its exit code, if it exited.
    pub code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Processor time of it and its reaped children, user and system, in microseconds.
    pub cpu_us: u64,
    /// Its largest resident size in KiB.
    pub max_rss_kib: u64,
}

/// Reaps one child that ended, own or adopted; `None` if there is none now.
pub fn reap() -> Option<Ended> {
    let mut status = 0;
    // SAFETY: all-zero is a valid `rusage`; both pointers are to live locals that the kernel fills.
    let (pid, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(-1, &mut status, libc::WNOHANG, &mut usage), usage)
    };
    if pid <= 0 {
        return None;
    }
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    Some(Ended {
        pid,
        code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
        cpu_us: micros(usage.ru_utime) + micros(usage.ru_stime),
        max_rss_kib: usage.ru_maxrss as u64,
    })
}

/// Sends `signal` to `pid`, or to the process group `-pid`. Takes any number: real-time signals have no names.
pub fn send_signal(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: takes numbers, touches no memory.
    if unsafe { libc::kill(pid, signal) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Hands freed memory back to the kernel, for a process that will be idle for long.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator's own function, allowed at any time outside of it.
    unsafe {
        libc::malloc_trim(0)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    // `start` itself is tested through the agent, where its caller owns all children.

    #[test]
    fn outcomes_are_decoded() {
        assert_eq!(outcome(&[]), Ok(()));
        assert_eq!(outcome(&[3, 2, 0, 0, 0]), Err(StartError { step: Step::Exec, errno: libc::ENOENT }));
        assert_eq!(outcome(&[1, 2]), Err(StartError { step: Step::Setup, errno: libc::EIO }));
    }

    #[test]
    fn a_signal_without_a_name_is_sent_and_a_bad_one_refused() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(send_signal(child.id() as i32, 65).is_err());
        send_signal(child.id() as i32, 40).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(40));
    }

    #[test]
    fn ignored_signals_are_found() {
        // The test runner, as every Rust program, ignores SIGPIPE.
        assert!(ignored_signals().contains(&libc::SIGPIPE));
    }
}
