//! The monitor: one thread, one socket, a child for each task.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, WaitOptions, getpid, setsid, wait};
use sloplet_sys::clone::{Namespaces, Side, SingleThreaded, exit_now};

use crate::packet;
use crate::task::{Answer, Done, Request, Task};

/// The server's end of the conversation, once there is a monitor.
static MONITOR: OnceLock<OwnedFd> = OnceLock::new();

/// The process that the monitor works for.
static SERVER: OnceLock<Pid> = OnceLock::new();

/// How often ended children are looked for.
const REAP: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Whether this process has a monitor that performs what it may not do itself.
pub fn is_confined() -> bool {
    MONITOR.get().is_some()
}

pub(crate) fn socket() -> Option<BorrowedFd<'static>> {
    MONITOR.get().map(AsFd::as_fd)
}

/// The pid of the server, in the monitor and its children.
pub(crate) fn server() -> Option<Pid> {
    SERVER.get().copied()
}

/// Forks the monitor, which performs `tasks` from now on. Fails if this process has threads already, or has a monitor.
pub fn fork(tasks: &'static [&'static Task]) -> io::Result<()> {
    let thread = SingleThreaded::prove()?;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let _ = SERVER.set(getpid());
    match thread.fork(Namespaces::NONE, None)? {
        Side::Parent { .. } => MONITOR.set(ours).map_err(|_| io::Error::other("there is a monitor already")),
        Side::Child => {
            let served = detach(&thread, &theirs).and_then(|()| serve(&thread, &theirs, tasks));
            exit_now(i32::from(served.is_err()))
        }
    }
}

/// Lets go of the server's descriptors, terminal and working folder.
fn detach(thread: &SingleThreaded, socket: &OwnedFd) -> io::Result<()> {
    // A Ctrl-C at the terminal is for the server, which may still need the monitor to end in order.
    let _ = setsid();
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    thread.replace_standard_fds(null.as_fd())?;
    drop(null);
    thread.close_all_but(&[socket.as_raw_fd()])?;
    rustix::process::chdir("/")?;
    Ok(())
}

fn serve(thread: &SingleThreaded, socket: &OwnedFd, tasks: &[&Task]) -> io::Result<()> {
    let mut children = 0usize;
    loop {
        while children > 0 && matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {
            children -= 1;
        }
        let mut ready = [PollFd::new(socket, PollFlags::IN)];
        match poll(&mut ready, (children > 0).then_some(&REAP)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match packet::receive(socket) {
            Ok(Some((request, fds))) => children += usize::from(start(thread, tasks, &request, fds)?),
            // The server is gone.
            Ok(None) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(Errno::CONNRESET.raw_os_error()) => return Ok(()),
            // Not a request; the server waits for an answer in vain, and is told so by the closed socket.
            Err(_) => {}
        }
    }
}

/// Starts a child for a request; returns whether there is one.
fn start(thread: &SingleThreaded, tasks: &[&Task], request: &[u8], mut fds: Vec<OwnedFd>) -> io::Result<bool> {
    if fds.is_empty() {
        return Ok(false);
    }
    let reply = fds.remove(0);
    match thread.fork(Namespaces::NONE, None) {
        Ok(Side::Parent { .. }) => Ok(true),
        Ok(Side::Child) => {
            let done = run(tasks, request, fds);
            answer(&reply, done);
            exit_now(0)
        }
        Err(error) => {
            let _ = send(&reply, &Answer::Failed(error.raw_os_error().unwrap_or(0), error.to_string()), &[]);
            Ok(false)
        }
    }
}

fn run(tasks: &[&Task], request: &[u8], fds: Vec<OwnedFd>) -> io::Result<Done> {
    let request: Request = crate::task::input(request)?;
    let task = tasks.iter().find(|task| task.name == request.task);
    let task = task.ok_or_else(|| io::Error::other(format!("the monitor does not know '{}'", request.task)))?;
    (task.run)(&serde_json::to_vec(&request.input)?, fds)
}

fn answer(reply: &OwnedFd, done: io::Result<Done>) {
    let failed =
        |error: io::Error| Answer::Failed(error.raw_os_error().unwrap_or_else(|| number(&error)), error.to_string());
    let (told, fds, then) = match done {
        Ok(Done { output, fds, then }) => match serde_json::from_slice(&output) {
            Ok(output) => (Answer::Done(output), fds, then),
            Err(error) => (failed(error.into()), Vec::new(), None),
        },
        Err(error) => (failed(error), Vec::new(), None),
    };
    let _ = send(reply, &told, &fds);
    drop(fds);
    if let Some(then) = then {
        then();
    }
}

/// The kernel's number for an error that has words of its own: callers tell some kinds apart.
fn number(error: &io::Error) -> i32 {
    let errno = match error.kind() {
        io::ErrorKind::NotFound => Errno::NOENT,
        io::ErrorKind::PermissionDenied => Errno::ACCESS,
        io::ErrorKind::WouldBlock => Errno::AGAIN,
        io::ErrorKind::ConnectionRefused => Errno::CONNREFUSED,
        io::ErrorKind::InvalidInput => Errno::INVAL,
        _ => return 0,
    };
    errno.raw_os_error()
}

fn send(reply: &OwnedFd, answer: &Answer, fds: &[OwnedFd]) -> io::Result<()> {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    packet::send(reply, &serde_json::to_vec(answer)?, &fds, SendFlags::empty())
}
