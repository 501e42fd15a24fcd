//! What a server can have done for it, and how it asks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::packet;
use crate::process;

/// How long the monitor may take for a task.
const PATIENCE: Timespec = Timespec { tv_sec: 600, tv_nsec: 0 };

/// Something that needs privileges. It runs in a process of its own: in a child of the monitor, or, where nothing is
/// confined, in the process that asks.
#[derive(Debug)]
pub struct Task {
    /// Names it in a request.
    pub name: &'static str,
    /// Performs it. The input is whatever the server sent: a hostile server can send anything.
    pub run: fn(&[u8], Vec<OwnedFd>) -> io::Result<Done>,
}

/// The result of a task.
#[derive(Default)]
pub struct Done {
    /// JSON.
    pub output: Vec<u8>,
    /// Descriptors that go along.
    pub fds: Vec<OwnedFd>,
    /// What the task's process does after it has answered, if it has not ended its work.
    pub then: Option<Box<dyn FnOnce()>>,
}

impl Done {
    /// Nothing but a value.
    pub fn with(output: &impl Serialize) -> io::Result<Self> {
        Ok(Self { output: serde_json::to_vec(output)?, ..Self::default() })
    }

    /// Nothing but descriptors.
    pub fn with_fds(fds: Vec<OwnedFd>) -> Self {
        Self { output: b"null".to_vec(), fds, then: None }
    }
}

/// Reads a task's input.
pub fn input<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// A request, as the monitor reads it. The first descriptor is the socket on which the answer is expected.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub task: String,
    pub input: serde_json::Value,
}

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done(serde_json::Value),
    /// The kernel's error number (0 if there is none), and what to tell.
    Failed(i32, String),
}

/// Has a task performed: by the monitor if this process is confined, else here and now. Waits for it.
pub fn perform<T: DeserializeOwned>(
    task: &Task,
    input: &impl Serialize,
    fds: Vec<OwnedFd>,
) -> io::Result<(T, Vec<OwnedFd>)> {
    let Some(monitor) = process::socket() else {
        let done = (task.run)(&serde_json::to_vec(input)?, fds)?;
        return Ok((serde_json::from_slice(&done.output)?, done.fds));
    };
    let request = Request { task: task.name.to_owned(), input: serde_json::to_value(input)? };
    // An answer comes on a socket of its own, so requests need no lock.
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let sent: Vec<_> = std::iter::once(&theirs).chain(&fds).map(AsFd::as_fd).collect();
    packet::send(monitor, &serde_json::to_vec(&request)?, &sent, SendFlags::empty()).map_err(explain)?;
    drop((theirs, fds));
    let mut ready = [PollFd::new(&ours, PollFlags::IN)];
    while let Err(error) = poll(&mut ready, Some(&PATIENCE)) {
        if error != rustix::io::Errno::INTR {
            return Err(error.into());
        }
    }
    if ready[0].revents().is_empty() {
        return Err(io::Error::new(io::ErrorKind::TimedOut, format!("the monitor did not finish '{}'", task.name)));
    }
    let Some((answer, fds)) = packet::receive(&ours)? else {
        return Err(io::Error::other(format!("the monitor gave no answer to '{}'", task.name)));
    };
    match serde_json::from_slice(&answer)? {
        Answer::Done(output) => Ok((serde_json::from_value(output)?, fds)),
        Answer::Failed(0, why) => Err(io::Error::other(why)),
        Answer::Failed(number, why) => {
            let plain = io::Error::from_raw_os_error(number);
            Err(if plain.to_string() == why { plain } else { io::Error::new(plain.kind(), why) })
        }
    }
}

/// Why nothing can be asked any more.
fn explain(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            io::Error::other("the server's monitor is gone: restart the server; its sandboxes go on")
        }
        _ => error,
    }
}
