//! Two ways to start a spawner.
//!
//! Usually it is a fresh process of the binary with a hidden subcommand: sound in any program, and nothing of the
//! engine's memory goes along. A program that is about to run one sandbox can do without the cost of an exec: it forks
//! the spawner as the first thing it does, before it has threads, secrets or much of a memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, pidfd_open, pidfd_send_signal, waitid};
use rustix::thread::{sched_getaffinity, sched_getcpu, sched_setaffinity};
use sloplet_monitor::{Done, Task, is_confined, perform};
use sloplet_policy::Realm;
use sloplet_sys::clone::{Namespaces, Side, SingleThreaded, exit_now};

use crate::protocol::{During, Problem};
use crate::server::{self, Haste};

/// The hidden subcommand that makes the binary a spawner; its conversation is on standard input.
pub const SUBCOMMAND: &str = "__spawner";

const STEP: &str = "start the spawner";

/// Starts spawners.
#[derive(Debug)]
pub struct Launcher {
    program: PathBuf,
    forked: Mutex<Option<Forked>>,
}

impl Launcher {
    /// Starts `program`, a binary with the hidden subcommand.
    pub fn new(program: &Path) -> Self {
        Self { program: program.to_owned(), forked: Mutex::new(None) }
    }

    /// Uses `forked` for the first spawner.
    pub fn first(&self, forked: Forked) {
        *self.forked.lock().unwrap_or_else(PoisonError::into_inner) = Some(forked);
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Which build its spawners are.
    pub fn build(&self) -> String {
        crate::build::of(&self.program)
    }

    /// A new spawner, waiting for its set-up.
    pub(crate) fn launch(&self) -> Result<(OwnedFd, Process), Problem> {
        if let Some(forked) = self.forked.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Ok((forked.socket, Process::Forked(forked.pidfd)));
        }
        let (ours, theirs) = conversation()?;
        if is_confined() {
            let ((), mut fds) = perform(&LAUNCH, &(), vec![theirs]).during(STEP)?;
            let pidfd = fds.pop().ok_or_else(|| Problem::no_descriptors(STEP))?;
            return Ok((ours, Process::Elsewhere(pidfd)));
        }
        let spawned = command(&self.program, theirs).spawn();
        Ok((ours, Process::Program(spawned.during(&format!("{STEP} {}", self.program.display()))?)))
    }
}

fn command(program: &Path, conversation: OwnedFd) -> Command {
    let mut command = Command::new(program);
    command.arg(SUBCOMMAND).env_clear();
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").current_dir("/");
    command.stdin(Stdio::from(conversation)).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Starts a spawner for a confined server, with the conversation that is passed. The spawner checks what it is told to make
/// against the server's realm.
pub static LAUNCH: Task = Task {
    name: "launch-spawner",
    run: |_, mut fds| {
        let conversation = fds.pop().ok_or(Errno::INVAL)?;
        let pidfd = pidfd_open(getpid(), PidfdFlags::empty())?;
        let mut command = command(Path::new("/proc/self/exe"), conversation);
        command.args(Realm::get().map(Realm::words).unwrap_or_default());
        // Where that fails, the conversation is over, and whoever talks hears so.
        let then = Box::new(move || drop(command.exec()));
        Ok(Done { output: b"null".to_vec(), fds: vec![pidfd], then: Some(then) })
    },
};

/// Ends a spawner that hangs, for a confined server, which may send no signals.
pub static END: Task = Task {
    name: "end-spawner",
    run: |_, mut fds| {
        let pidfd = fds.pop().ok_or(Errno::INVAL)?;
        let known = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
        let pid = known.lines().find_map(|line| line.strip_prefix("Pid:")).map(str::trim).unwrap_or_default();
        // Nobody else's processes are called so, and the descriptor names this one whatever becomes of its pid.
        let called = std::fs::read(format!("/proc/{pid}/cmdline"))?;
        if called.split(|byte| *byte == 0).nth(1) != Some(SUBCOMMAND.as_bytes()) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "that process is no spawner"));
        }
        pidfd_send_signal(&pidfd, Signal::KILL)?;
        Done::with(&())
    },
};

/// Ends a spawner's process, by way of the monitor where there is one.
pub(crate) fn end(pidfd: OwnedFd) -> io::Result<()> {
    match is_confined() {
        true => perform(&END, &(), vec![pidfd]).map(|((), _)| ()),
        false => Ok(pidfd_send_signal(pidfd, Signal::KILL)?),
    }
}

/// A spawner that was forked, not yet set up.
#[derive(Debug)]
pub struct Forked {
    socket: OwnedFd,
    pidfd: OwnedFd,
}

impl Forked {
    /// Forks. Fails if this process has threads already.
    pub fn fork(haste: Haste) -> Result<Self, Problem> {
        let thread = SingleThreaded::prove().during(STEP)?;
        let (ours, theirs) = conversation()?;
        match thread.fork(Namespaces::NONE, None).during(STEP)? {
            Side::Parent { pid, pidfd } => {
                let _ = Pid::from_raw(pid).map(spread);
                Ok(Self { socket: ours, pidfd })
            }
            Side::Child => {
                let code = detach(&thread, &theirs).map_or(1, |()| server::serve(theirs, haste));
                exit_now(code)
            }
        }
    }
}

/// Has a child that has just been forked start on another processor. The kernel often leaves it to wait behind its parent,
/// which has a millisecond of other things to do.
fn spread(child: Pid) -> rustix::io::Result<()> {
    let all = sched_getaffinity(Some(child))?;
    let mut others = all;
    others.unset(sched_getcpu());
    if others.count() > 0 {
        // It waits, so it moves at once; and may then run anywhere again.
        sched_setaffinity(Some(child), &others)?;
        sched_setaffinity(Some(child), &all)?;
    }
    Ok(())
}

/// Lets go of all that belongs to whoever started the program: its streams (a pipe would stay open), its working
/// directory (it could not be unmounted), its environment (the agent's memory should not hold it).
fn detach(thread: &SingleThreaded, control: &OwnedFd) -> io::Result<()> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    thread.replace_standard_fds(null.as_fd())?;
    drop(null); // before it is closed behind its back
    thread.close_all_but(&[control.as_raw_fd()])?;
    thread.erase_environment();
    rustix::process::chdir("/")?;
    Ok(())
}

fn conversation() -> Result<(OwnedFd, OwnedFd), Problem> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).during(STEP)
}

/// A spawner's process.
#[derive(Debug)]
pub(crate) enum Process {
    Program(Child),
    Forked(OwnedFd),
    /// The monitor's child.
    Elsewhere(OwnedFd),
}

impl Process {
    /// Whether it has ended; its exit status is asked for, so that nothing is left of it.
    pub(crate) fn has_ended(&mut self) -> bool {
        match self {
            Self::Program(child) => !matches!(child.try_wait(), Ok(None)),
            Self::Forked(pidfd) => {
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
                !matches!(waitid(WaitId::PidFd(pidfd.as_fd()), options), Ok(None))
            }
            Self::Elsewhere(pidfd) => {
                let mut ready = [PollFd::new(pidfd, PollFlags::IN)];
                !matches!(poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
            }
        }
    }

    /// Ends it, with all that it has made.
    pub(crate) fn kill(&mut self) {
        let _ = match self {
            Self::Program(child) => child.kill().map_err(drop),
            Self::Forked(pidfd) => pidfd_send_signal(pidfd, Signal::KILL).map_err(drop),
            Self::Elsewhere(pidfd) => pidfd.try_clone().and_then(end).map_err(drop),
        };
    }

    pub(crate) fn wait(&mut self) {
        match self {
            Self::Program(child) => {
                let _ = child.wait();
            }
            Self::Forked(pidfd) => {
                while matches!(waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED), Err(Errno::INTR)) {}
            }
            Self::Elsewhere(pidfd) => {
                while matches!(poll(&mut [PollFd::new(pidfd, PollFlags::IN)], None), Err(Errno::INTR)) {}
            }
        }
    }
}
