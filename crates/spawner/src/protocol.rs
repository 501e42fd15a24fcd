//! What the engine and its spawner say to each other, over a `SOCK_SEQPACKET` socket: one CBOR message a packet,
//! descriptors alongside. Both ends are the same build, so there are no versions here.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use minicbor::{Decode, Encode};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, sendmsg,
};

use crate::plan::Plan;

/// Largest message: a plan with some hundred layers, mounts and long paths.
const MAX_MESSAGE: usize = 128 * 1024;

/// Most descriptors with one message: the kernel takes 253.
const MAX_FDS: usize = 250;

/// First message to a spawner.
#[derive(Debug, Clone, Encode, Decode)]
pub struct Setup {
    /// Where owners keep their records, see [`crate::owner`].
    #[n(0)]
    pub run_dir: String,
    /// How users inside map to users outside.
    #[n(1)]
    pub privilege: Privilege,
    /// The only kind of wall that this spawner builds: containers need preparations that hosts may forbid.
    #[n(2)]
    pub walls: Walls,
}

/// A kind of wall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Walls {
    /// Namespaces, the spawner's own included.
    #[n(0)]
    Container,
    /// No namespaces.
    #[n(1)]
    Process,
}

/// What the spawner may do on this host.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Privilege {
    /// Real root: every sandbox gets a range of user ids of its own.
    #[n(0)]
    Root,
    /// An ordinary user who is the only user inside.
    #[n(1)]
    SingleUser,
    /// An ordinary user with subordinate ids: root and the others exist inside, too.
    #[n(2)]
    SubordinateIds {
        /// First subordinate user id.
        #[n(0)]
        first_uid: u32,
        /// First subordinate group id.
        #[n(1)]
        first_gid: u32,
    },
}

/// Engine → spawner.
#[derive(Debug, Encode, Decode)]
pub enum Command {
    /// With the agent's end of the stream, an ext4 image if what it writes goes to one, and a listening socket if the
    /// sandbox outlives the spawner, in this order.
    #[n(0)]
    Create {
        /// Names the sandbox from now on.
        #[n(0)]
        id: String,
        /// What to make.
        #[n(1)]
        plan: Box<Plan>,
    },
    /// Kill everything in it; `Gone` follows.
    #[n(1)]
    Destroy {
        /// Which.
        #[n(0)]
        id: String,
    },
    /// Freeze or thaw all its processes; `Paused` follows.
    #[n(2)]
    Pause {
        /// Which.
        #[n(0)]
        id: String,
        /// Freeze or thaw.
        #[n(1)]
        frozen: bool,
    },
}

/// Spawner → engine.
#[derive(Debug, Clone, Encode, Decode)]
pub enum Report {
    /// Set up; commands may follow (they may also be sent before).
    #[n(0)]
    Ready,
    /// The spawner cannot work here at all.
    #[n(1)]
    Unable(#[n(0)] Problem),
    /// The first process exists and builds its walls; the stream tells when it serves. With a pidfd.
    #[n(2)]
    Created {
        /// Which.
        #[n(0)]
        id: String,
        /// Host pid of its PID 1.
        #[n(1)]
        pid: i32,
    },
    /// Nothing was made.
    #[n(3)]
    Failed {
        /// Which.
        #[n(0)]
        id: String,
        /// Why.
        #[n(1)]
        problem: Problem,
    },
    /// All its processes are dead and nothing of it is left on the host.
    #[n(4)]
    Gone {
        /// Which.
        #[n(0)]
        id: String,
        /// Processes that the kernel killed for want of memory during its life.
        #[n(1)]
        oom_kills: u64,
        /// It was killed because its life was over.
        #[n(2)]
        timed_out: bool,
    },
    /// `Pause` was carried out, or not.
    #[n(5)]
    Paused {
        /// Which.
        #[n(0)]
        id: String,
        /// Why not.
        #[n(1)]
        problem: Option<Problem>,
    },
}

/// A step that failed.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, thiserror::Error)]
#[error("cannot {step}: {detail}")]
pub struct Problem {
    /// What was tried, as a verb phrase.
    #[n(0)]
    pub step: String,
    /// What the kernel said, and what to do about it.
    #[n(1)]
    pub detail: String,
    /// The kernel's error number, 0 if there is none.
    #[n(2)]
    pub errno: i32,
}

impl Problem {
    /// A failed system call.
    pub fn new(step: impl Into<String>, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        Self { step: step.into(), errno: error.raw_os_error().unwrap_or(0), detail: error.to_string() }
    }
}

/// Says which step failed.
pub trait During<T> {
    /// Names the step, as a verb phrase.
    fn during(self, step: &str) -> Result<T, Problem>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, step: &str) -> Result<T, Problem> {
        self.map_err(|error| Problem::new(step, error))
    }
}

/// Sends a message with descriptors.
pub fn send<T: Encode<()>>(socket: impl AsFd, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = sloplet_wire::to_bytes(message);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message and its descriptors; `None` at the end of the conversation.
pub fn receive<T: for<'b> Decode<'b, ()>>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    // How long the next packet is: most are short, and clearing a large buffer costs more than asking.
    let (_, length) = recv(&socket, &mut [0u8; 0][..], RecvFlags::PEEK | RecvFlags::TRUNC)?;
    let mut bytes = vec![0; length.clamp(1, MAX_MESSAGE)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if got.bytes == 0 {
        return Ok(None);
    }
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::other("message too long"));
    }
    let message = minicbor::decode(&bytes[..got.bytes]).map_err(io::Error::other)?;
    Ok(Some((message, fds)))
}
