//! What the engine and its spawner say to each other, over a `SOCK_SEQPACKET` socket: one CBOR message a packet,
//! descriptors alongside. The two ends are the same build, except where an engine adopts the spawner of an earlier one:
//! so fields and variants keep their numbers and are only added.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use minicbor::{Decode, Encode};
use rustix::net::SendFlags;
use sloplet_monitor::packet;

use crate::cgroup::Tables;
use crate::plan::{Mount, Plan};

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
    /// Whether it stays when the engine goes, with the sandboxes that are made to last, and waits for the next engine on
    /// a socket in its folder.
    #[n(3)]
    pub lasting: bool,
    /// Where its sandboxes' control groups can be made.
    #[n(4)]
    pub tables: Tables,
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
pub struct Order {
    /// Names the order in its answer.
    #[n(0)]
    pub ticket: u64,
    /// What to do.
    #[n(1)]
    pub command: Command,
}

/// What can be ordered.
#[derive(Debug, Encode, Decode)]
pub enum Command {
    /// With the agent's end of the stream and, if what it writes goes to one, an ext4 image, in this order. `Created`
    /// follows.
    #[n(0)]
    Create {
        /// Names the sandbox from now on.
        #[n(0)]
        id: String,
        /// What to make.
        #[n(1)]
        plan: Box<Plan>,
    },
    /// Kill everything in it; `Gone` follows, and no other answer.
    #[n(1)]
    Destroy {
        /// Which.
        #[n(0)]
        id: String,
    },
    /// Freeze or thaw all its processes.
    #[n(2)]
    Pause {
        /// Which.
        #[n(0)]
        id: String,
        /// Freeze or thaw.
        #[n(1)]
        frozen: bool,
    },
    /// Replace its deadline.
    #[n(3)]
    SetDeadline {
        /// Which.
        #[n(0)]
        id: String,
        /// From now on; never if absent.
        #[n(1)]
        after_ms: Option<u64>,
        /// What happens then.
        #[n(2)]
        overdue: Overdue,
    },
    /// Tell what it uses; `Used` follows.
    #[n(4)]
    Usage {
        /// Which.
        #[n(0)]
        id: String,
    },
    /// Copy what it has written to the empty folder that comes along; `Saved` follows.
    #[n(5)]
    Snapshot {
        /// Which.
        #[n(0)]
        id: String,
    },
    /// Make no more sandboxes, and end with the last.
    #[n(6)]
    Retire,
    /// Replace the bounds that its control group keeps.
    #[n(7)]
    SetLimits {
        /// Which.
        #[n(0)]
        id: String,
        /// Bytes of memory.
        #[n(1)]
        memory: u64,
        /// Thousandths of a processor.
        #[n(2)]
        cpu_millis: u32,
        /// Processes and threads.
        #[n(3)]
        pids: u32,
    },
    /// Give one that was made to be claimed what its claimer wants. If that fails, it is fit for nothing any more.
    #[n(8)]
    Attach {
        /// Which.
        #[n(0)]
        id: String,
        /// Host folders shown from now on.
        #[n(1)]
        mounts: Vec<Mount>,
        /// Its host name from now on.
        #[n(2)]
        hostname: Option<String>,
    },
}

impl Command {
    /// The sandbox that it is about.
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Create { id, .. }
            | Self::Destroy { id }
            | Self::Pause { id, .. }
            | Self::SetDeadline { id, .. }
            | Self::SetLimits { id, .. }
            | Self::Attach { id, .. }
            | Self::Usage { id }
            | Self::Snapshot { id } => Some(id),
            Self::Retire => None,
        }
    }
}

/// What happens to a sandbox at its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Overdue {
    /// Everything in it is killed.
    #[n(0)]
    Destroy,
    /// It is frozen, and has no deadline any more.
    #[n(1)]
    Freeze,
}

/// Spawner → engine.
#[derive(Debug, Clone, Encode, Decode)]
pub enum Report {
    /// Set up; orders may follow (they may also be sent before).
    #[n(0)]
    Ready(#[n(0)] Standing),
    /// The spawner cannot work here at all.
    #[n(1)]
    Unable(#[n(0)] Problem),
    /// The first process exists and builds its walls; the stream tells when it serves. With a pidfd and the sockets of its
    /// outlet, if it has one: stream sockets are listeners, datagram sockets are resolvers.
    #[n(2)]
    Created {
        /// Of the order.
        #[n(0)]
        ticket: u64,
        /// Which.
        #[n(1)]
        id: String,
        /// Host pid of its PID 1.
        #[n(2)]
        pid: i32,
    },
    /// It was carried out.
    #[n(3)]
    Done {
        /// Of the order.
        #[n(0)]
        ticket: u64,
    },
    /// It was not, and nothing is left of the attempt.
    #[n(4)]
    Refused {
        /// Of the order.
        #[n(0)]
        ticket: u64,
        /// Why.
        #[n(1)]
        problem: Problem,
    },
    /// All its processes are dead and nothing of it is left on the host.
    #[n(5)]
    Gone {
        /// Which.
        #[n(0)]
        id: String,
        /// How it ended.
        #[n(1)]
        end: Gone,
    },
    /// To an engine that adopts: a sandbox that lives. With the sockets of its outlet.
    #[n(6)]
    Living(#[n(0)] Living),
    /// It was frozen or thawed.
    #[n(7)]
    Frozen {
        /// Which.
        #[n(0)]
        id: String,
        /// Whether it is frozen now.
        #[n(1)]
        frozen: bool,
        /// By its deadline, not by an order.
        #[n(2)]
        overdue: bool,
    },
    /// The answer to `Usage`.
    #[n(8)]
    Used {
        /// Of the order.
        #[n(0)]
        ticket: u64,
        /// The figures.
        #[n(1)]
        usage: Usage,
    },
    /// The answer to `Snapshot`.
    #[n(9)]
    Saved {
        /// Of the order.
        #[n(0)]
        ticket: u64,
        /// What was saved.
        #[n(1)]
        saved: Saved,
    },
}

/// What a spawner is, and what it has to tell first.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Standing {
    /// Its name as an owner.
    #[n(0)]
    pub owner: String,
    /// Its program, see [`crate::build`].
    #[n(1)]
    pub build: String,
    /// How its sandboxes' users map to users outside.
    #[n(2)]
    pub privilege: Privilege,
    /// The walls it builds.
    #[n(3)]
    pub walls: Walls,
    /// How many `Living` follow at once.
    #[n(4)]
    pub living: u32,
    /// How many `Gone` that nobody has heard of follow after that.
    #[n(5)]
    pub unheard: u32,
}

/// A sandbox that is there already.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Living {
    /// Which.
    #[n(0)]
    pub id: String,
    /// Host pid of its PID 1.
    #[n(1)]
    pub pid: i32,
    /// Whether it is frozen.
    #[n(2)]
    pub frozen: bool,
    /// How long ago it was made.
    #[n(3)]
    pub age_ms: u64,
}

/// The end of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Gone {
    /// Processes that the kernel killed for want of memory during its life.
    #[n(0)]
    pub oom_kills: u64,
    /// It was killed because its life was over.
    #[n(1)]
    pub timed_out: bool,
}

/// What a sandbox uses; 0 where this host does not count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct Usage {
    /// Processor time so far, in microseconds.
    #[n(0)]
    pub cpu_us: u64,
    /// Bytes of memory, without what the kernel could drop at once.
    #[n(1)]
    pub memory: u64,
    /// The most it ever had.
    #[n(2)]
    pub memory_peak: u64,
    /// Processes and threads.
    #[n(3)]
    pub pids: u64,
    /// Bytes written that are still there.
    #[n(4)]
    pub disk_used: u64,
    /// Bytes it may write.
    #[n(5)]
    pub disk_total: u64,
    /// Files made that are still there.
    #[n(6)]
    pub files_used: u64,
    /// Files it may make.
    #[n(7)]
    pub files_total: u64,
    /// Bytes of memory that hold copies of files on disks; spawners of earlier builds do not say.
    #[n(8)]
    pub cache: Option<u64>,
}

/// A finished snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct Saved {
    /// Bytes of file content, without holes.
    #[n(0)]
    pub bytes: u64,
    /// Files, folders, links and marks of removed ones.
    #[n(1)]
    pub files: u64,
    /// Sockets and devices that were left out.
    #[n(2)]
    pub skipped: u64,
    /// For how long the sandbox was frozen because of it, in microseconds.
    #[n(3)]
    pub frozen_us: u64,
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
    /// Something that is not as it should be, without the kernel having said so.
    pub fn plain(step: &str, detail: impl Into<String>) -> Self {
        Self { step: step.to_owned(), detail: detail.into(), errno: 0 }
    }

    /// Too many files are open here.
    pub fn no_descriptors(step: &str) -> Self {
        let detail = "too many files are open: raise 'ulimit -n', or destroy some sandboxes".to_owned();
        Self { step: step.to_owned(), detail, errno: rustix::io::Errno::MFILE.raw_os_error() }
    }

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
    send_with(socket, message, fds, SendFlags::empty())
}

/// The same without waiting for room.
pub fn send_now<T: Encode<()>>(socket: impl AsFd, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket, message, fds, SendFlags::DONTWAIT)
}

fn send_with<T: Encode<()>>(
    socket: impl AsFd,
    message: &T,
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    packet::send(socket, &sloplet_wire::to_bytes(message), fds, flags)
}

/// Receives a message and its descriptors; `None` at the end of the conversation. Where this process cannot have that many
/// more descriptors, none comes along: the message is heard, and whoever needs them says so.
pub fn receive<T: for<'b> Decode<'b, ()>>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let Some((bytes, fds)) = packet::receive(socket)? else { return Ok(None) };
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let message = minicbor::decode(&bytes).map_err(invalid)?;
    Ok(Some((message, fds)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    /// In a process of its own: the limit is that of all its threads.
    #[test]
    fn a_message_whose_descriptors_were_cut_off_is_heard_without_them_and_so_is_the_next() {
        const ALONE: &str = "SLOPLET_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let name = "a_message_whose_descriptors_were_cut_off_is_heard_without_them_and_so_is_the_next";
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let done = again.args(["--exact", &format!("protocol::tests::{name}")]).env(ALONE, "1").output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
            assert!(String::from_utf8_lossy(&done.stdout).contains("1 passed"), "the test has another name");
            return;
        }
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let created = Report::Created { ticket: 7, id: "x".into(), pid: 1 };
        send(&ours, &created, &[ours.as_fd(), ours.as_fd(), theirs.as_fd()]).unwrap();
        send(&ours, &Report::Done { ticket: 8 }, &[]).unwrap();
        // No further descriptor can be had; those in use stay usable.
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: limit.maximum }).unwrap();
        let cut = receive::<Report>(&theirs);
        setrlimit(Resource::Nofile, limit).unwrap();
        let (report, fds) = cut.unwrap().unwrap();
        assert!(matches!(report, Report::Created { ticket: 7, .. }) && fds.is_empty());
        assert!(matches!(receive::<Report>(&theirs).unwrap(), Some((Report::Done { ticket: 8 }, _))));
    }
}
