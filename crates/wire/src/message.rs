//! What the host asks and what the agent answers.
//!
//! Paths, arguments and environment are bytes, as the kernel has them. Numbers in `#[n(…)]` are the wire format: they
//! are never reused or reordered.

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

use crate::WireError;

/// A byte channel of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Channel {
    /// Host → agent: standard input, an upload, the host's half of a dialed connection.
    Input = 0,
    /// Agent → host: standard output (or the terminal), a download, the other half of a dialed connection.
    Output = 1,
    /// Agent → host: standard error.
    Error = 2,
}

/// The agent's first words.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Hello {
    /// [`crate::VERSION`] of the agent.
    #[n(0)]
    pub version: u16,
    /// The agent's build, for people.
    #[n(1)]
    pub build: String,
    /// Bytes of the longest request that it takes; [`crate::MAX_PAYLOAD`] if it does not say.
    #[n(2)]
    pub longest_request: Option<u32>,
}

/// Bring-up failed before the agent could serve.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Fatal {
    /// The step that failed, e.g. `mount overlay root`.
    #[n(0)]
    pub step: String,
    /// The kernel's error number, 0 if there is none.
    #[n(1)]
    pub errno: i32,
    /// Details for people.
    #[n(2)]
    pub detail: String,
}

/// A terminal's size in cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct TerminalSize {
    /// Columns.
    #[n(0)]
    pub columns: u16,
    /// Rows.
    #[n(1)]
    pub rows: u16,
}

/// Starts a process.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Default)]
pub struct Exec {
    /// Program and arguments. A program without a slash is looked up in the `PATH` of `env`.
    #[n(0)]
    pub argv: Vec<ByteVec>,
    /// The environment, `NAME=value` each. `HOME`, `USER` and `LOGNAME` of the user are added where they are absent.
    #[n(1)]
    pub env: Vec<ByteVec>,
    /// Working directory; the user's home (else `/`) if absent.
    #[n(2)]
    pub cwd: Option<ByteVec>,
    /// `name`, `uid` or `uid:gid`; the sandbox's default user if absent.
    #[n(3)]
    pub user: Option<String>,
    /// A terminal of this size instead of pipes; stdout and stderr then both arrive on [`Channel::Output`].
    #[n(4)]
    pub terminal: Option<TerminalSize>,
    /// Whether [`Channel::Input`] feeds its standard input; `/dev/null` otherwise.
    #[n(5)]
    pub stdin: bool,
    /// Kill the process and its process group after this long.
    #[n(6)]
    pub timeout_ms: Option<u64>,
    /// Keep it running when the stream or the connection ends; its latest output is held for [`Request::Attach`].
    #[n(7)]
    pub background: bool,
    /// A label for people, shown in process lists.
    #[n(8)]
    pub tag: Option<String>,
    /// Not the program that `argv` names, but something of the agent's own.
    #[n(9)]
    pub builtin: Option<Builtin>,
}

/// What the agent can start besides programs of the image. It is a process like any other: the user's own, under the same
/// walls, with the same streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
#[non_exhaustive]
pub enum Builtin {
    /// The user's shell in place of `argv[0]`; if that is all, as a login shell.
    #[n(0)]
    Shell,
    /// Speaks SFTP on its standard streams.
    #[n(1)]
    Sftp,
    /// Joins its standard streams with a socket: `argv[1]` is `address:port` or an absolute path. A byte on standard error
    /// says that it is connected; otherwise the reason is there.
    #[n(2)]
    Connect,
}

/// Names a path and the user on whose behalf it is used (the agent's default user if absent).
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Target {
    /// Absolute, or relative to the user's home.
    #[n(0)]
    pub path: ByteVec,
    /// `name`, `uid` or `uid:gid`; permission checks and ownership are that user's.
    #[n(1)]
    pub user: Option<String>,
    /// Permission checks are root's instead; what is made still belongs to the user.
    #[n(2)]
    #[cbor(default)]
    pub privileged: bool,
}

impl Default for Target {
    /// The home of the default user.
    fn default() -> Self {
        Self { path: b".".to_vec().into(), user: None, privileged: false }
    }
}

/// What the host asks; opens a stream.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Request {
    /// → `Started`, data, `End` of both output channels, `Exited`.
    #[n(0)]
    Exec(#[n(0)] Exec),
    /// Re-attaches to a background process: `Started`, held output, then as `Exec`.
    #[n(1)]
    Attach {
        /// Its pid inside.
        #[n(0)]
        pid: u32,
    },
    /// → `Done`. Sends a signal to a process started by this agent, or to its whole process group.
    #[n(2)]
    Signal {
        /// Its pid inside.
        #[n(0)]
        pid: u32,
        /// Signal number.
        #[n(1)]
        signal: i32,
        /// The whole group.
        #[n(2)]
        group: bool,
    },
    /// → `Done`. Changes the size of a process's terminal.
    #[n(3)]
    Resize {
        /// Its pid inside.
        #[n(0)]
        pid: u32,
        /// The new size.
        #[n(1)]
        size: TerminalSize,
    },
    /// → `Done`. Writes to the standard input of a process from outside its own stream; `end` closes it.
    #[n(4)]
    SendInput {
        /// Its pid inside.
        #[n(0)]
        pid: u32,
        /// Bytes to write.
        #[n(1)]
        data: ByteVec,
        /// Close standard input after them.
        #[n(2)]
        end: bool,
    },
    /// → `Processes`.
    #[n(5)]
    Processes,
    /// → `Entry`. Does not follow a final symlink.
    #[n(6)]
    Stat(#[n(0)] Target),
    /// → any number of `Entries`, then `Done`. Depth 1 is the folder itself; symlinks are not followed.
    #[n(7)]
    List {
        /// The folder.
        #[n(0)]
        target: Target,
        /// Levels to descend, at least 1.
        #[n(1)]
        depth: u32,
    },
    /// → `Done`; `Exists` if it is there already and `parents` is false.
    #[n(8)]
    MakeDir {
        /// The folder.
        #[n(0)]
        target: Target,
        /// Permission bits.
        #[n(1)]
        mode: u32,
        /// Make missing parents too, and be content if it exists.
        #[n(2)]
        parents: bool,
    },
    /// → `Done`. Renames, replacing a file in the way.
    #[n(9)]
    Move {
        /// From.
        #[n(0)]
        from: Target,
        /// To.
        #[n(1)]
        to: ByteVec,
    },
    /// → `Done`.
    #[n(10)]
    Remove {
        /// File or folder.
        #[n(0)]
        target: Target,
        /// A folder with all that is in it.
        #[n(1)]
        recursive: bool,
    },
    /// → `Done`.
    #[n(11)]
    SetMode {
        /// File or folder.
        #[n(0)]
        target: Target,
        /// Permission bits.
        #[n(1)]
        mode: u32,
    },
    /// → `Entry`, data on `Output`, `End`, `Done`. Regular files only.
    #[n(12)]
    Read {
        /// The file.
        #[n(0)]
        target: Target,
        /// Where to start.
        #[n(1)]
        offset: u64,
        /// How much at most; to the end if absent.
        #[n(2)]
        length: Option<u64>,
    },
    /// Data and `End` on `Input` → `Entry`. Written beside the target and renamed over it, so nothing is half-done.
    #[n(13)]
    Write {
        /// The file.
        #[n(0)]
        target: Target,
        /// Permission bits of a new file; an existing file keeps its own.
        #[n(1)]
        mode: u32,
        /// Make missing parent folders.
        #[n(2)]
        parents: bool,
        /// Extended attributes it gets; those of a file in its place are lost. Dropped where the file system has none.
        #[n(3)]
        #[cbor(default)]
        attributes: Vec<Attribute>,
    },
    /// → `Done` once watching, then `Change`s until the stream is reset.
    #[n(14)]
    Watch {
        /// The folder.
        #[n(0)]
        target: Target,
        /// All folders below it too, including ones made later.
        #[n(1)]
        recursive: bool,
    },
    /// → a tar archive of the folder's content (or of the one file) on `Output`, `End`, `Done`.
    #[n(15)]
    Pack(#[n(0)] Target),
    /// A tar archive on `Input`, unpacked below the folder, which is made if missing → `Done`.
    #[n(16)]
    Unpack(#[n(0)] Target),
    /// Connects to a TCP port on loopback inside → `Done`, then bytes both ways.
    #[n(17)]
    Dial {
        /// The port.
        #[n(0)]
        port: u16,
    },
    /// Listens on a TCP port on loopback inside → `Listening`, until the stream is reset.
    #[n(18)]
    Listen {
        /// The port, from 1024; 0 for any.
        #[n(0)]
        port: u16,
    },
    /// Waits for a connection to a port that is listened on by [`Self::Listen`] → `Done`, then bytes both ways.
    /// Of several that wait for one port, the latest is told.
    #[n(19)]
    Accept {
        /// The port.
        #[n(0)]
        port: u16,
    },
    /// → `Done`. What is started from now on is under the filter that the agent was given for later: the sandbox is about to
    /// be shown a folder of the host for writing. Refused while anything but the agent runs, which would not be under it.
    #[n(20)]
    FilterCommands,
    /// Makes a Unix socket that only the user can connect to, and listens on it → `Done`, until the stream is reset: then it is
    /// removed. A socket that nobody listens on any more is replaced; anything else at that path is a failure.
    #[n(21)]
    ListenAt(#[n(0)] Target),
    /// Waits for a connection to a socket that is listened on by [`Self::ListenAt`] with the same target, as
    /// [`Self::Accept`] does.
    #[n(22)]
    AcceptAt(#[n(0)] Target),
}

/// What is held of a background process's output. Its bytes are counted over both channels, in the order in which the agent read
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Held {
    /// Bytes before the first that is held.
    #[n(0)]
    pub dropped: u64,
    /// Bytes so far.
    #[n(1)]
    pub written: u64,
}

/// What the agent answers, on the stream of the request.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Event {
    /// The request is complete (or, for `Watch`, `Dial`, `ListenAt` and those that accept, established).
    #[n(0)]
    Done,
    /// The request failed; the stream is over.
    #[n(1)]
    Failed(#[n(0)] Failure),
    /// The process runs.
    #[n(2)]
    Started {
        /// Its pid inside.
        #[n(0)]
        pid: u32,
        /// What is held of its output, and follows now; for `Attach`.
        #[n(1)]
        held: Option<Held>,
    },
    /// The process ended and its output is complete; the stream is over.
    #[n(3)]
    Exited(#[n(0)] Exit),
    /// Running processes.
    #[n(4)]
    Processes(#[n(0)] Vec<ProcessInfo>),
    /// One file.
    #[n(5)]
    Entry(#[n(0)] Entry),
    /// Several files of a listing.
    #[n(6)]
    Entries(#[n(0)] Vec<Entry>),
    /// Something changed in a watched folder.
    #[n(7)]
    Change(#[n(0)] Change),
    /// The agent listens.
    #[n(8)]
    Listening {
        /// On this port.
        #[n(0)]
        port: u16,
    },
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The kind of failure.
    #[n(0)]
    pub code: ErrorCode,
    /// For people: what was tried and what the kernel said.
    #[n(1)]
    pub message: String,
}

/// Kinds of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
#[non_exhaustive]
pub enum ErrorCode {
    /// This agent does not know the request.
    #[n(0)]
    Unsupported,
    /// The request makes no sense.
    #[n(1)]
    Invalid,
    /// No such file, process or program.
    #[n(2)]
    NotFound,
    /// It is there already.
    #[n(3)]
    Exists,
    /// Not permitted to that user.
    #[n(4)]
    Denied,
    /// Not the kind of file that the request needs.
    #[n(5)]
    WrongType,
    /// Disk, memory, processes or descriptors inside are used up.
    #[n(6)]
    Exhausted,
    /// Nothing listens on that port.
    #[n(7)]
    Refused,
    /// Any other error.
    #[n(8)]
    Io,
    /// No such user.
    #[n(9)]
    NoUser,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Default)]
pub struct Exit {
    /// Exit code, if it exited.
    #[n(0)]
    pub code: Option<i32>,
    /// The signal that ended it, if one did.
    #[n(1)]
    pub signal: Option<i32>,
    /// It was killed because `timeout_ms` passed.
    #[n(2)]
    pub timed_out: bool,
    /// Processor time used, user and system, in microseconds.
    #[n(3)]
    pub cpu_us: u64,
    /// Largest resident size in KiB.
    #[n(4)]
    pub max_rss_kib: u64,
}

impl Exit {
    /// The code a shell would report: its own, or 128 + signal.
    pub fn shell_code(&self) -> i32 {
        self.code.or(self.signal.map(|signal| signal.saturating_add(128))).unwrap_or(255)
    }
}

/// A running process.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct ProcessInfo {
    /// Its pid inside.
    #[n(0)]
    pub pid: u32,
    /// Its parent.
    #[n(1)]
    pub parent: u32,
    /// Its command line, arguments separated by NUL.
    #[n(2)]
    pub command: ByteVec,
    /// Its user id inside.
    #[n(3)]
    pub uid: u32,
    /// Whether the agent started it on request.
    #[n(4)]
    pub managed: bool,
    /// Its label, if it was given one.
    #[n(5)]
    pub tag: Option<String>,
    /// Resident size in KiB.
    #[n(6)]
    pub rss_kib: u64,
    /// Processor time used in microseconds.
    #[n(7)]
    pub cpu_us: u64,
    /// Whether it has a terminal from the agent.
    #[n(8)]
    pub terminal: bool,
}

/// Kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum FileKind {
    /// Regular file.
    #[n(0)]
    File,
    /// Folder.
    #[n(1)]
    Directory,
    /// Symbolic link.
    #[n(2)]
    Symlink,
    /// Device, FIFO or socket.
    #[n(3)]
    Other,
}

/// A file's metadata.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Entry {
    /// Absolute path.
    #[n(0)]
    pub path: ByteVec,
    /// Kind.
    #[n(1)]
    pub kind: FileKind,
    /// Size in bytes.
    #[n(2)]
    pub size: u64,
    /// Permission bits, including setuid, setgid and sticky.
    #[n(3)]
    pub mode: u32,
    /// Owner inside.
    #[n(4)]
    pub uid: u32,
    /// Group inside.
    #[n(5)]
    pub gid: u32,
    /// Modification time in nanoseconds since 1970.
    #[n(6)]
    pub modified_ns: i64,
    /// Where a symlink points.
    #[n(7)]
    pub link_target: Option<ByteVec>,
    /// Owner's name inside, if it has one.
    #[n(8)]
    pub owner: Option<String>,
    /// Group's name inside, if it has one.
    #[n(9)]
    pub group: Option<String>,
    /// What few files have.
    #[n(10)]
    pub rare: Option<Box<Rare>>,
}

/// Metadata that few files have.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Default)]
pub struct Rare {
    /// Where a symlink leads in the end, if there is something.
    #[n(0)]
    pub end: Option<LinkEnd>,
    /// Extended attributes.
    #[n(1)]
    pub attributes: Vec<Attribute>,
}

/// Where a symlink leads in the end.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct LinkEnd {
    /// Absolute path without symlinks.
    #[n(0)]
    pub path: ByteVec,
    /// Kind.
    #[n(1)]
    pub kind: FileKind,
    /// Permission bits.
    #[n(2)]
    pub mode: u32,
}

/// An extended attribute of the `user.` namespace.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Attribute {
    /// Its name without `user.`.
    #[n(0)]
    pub name: ByteVec,
    /// Its value.
    #[n(1)]
    pub value: ByteVec,
}

/// Something changed in a watched folder.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Change {
    /// What happened.
    #[n(0)]
    pub kind: ChangeKind,
    /// Path relative to the watched folder.
    #[n(1)]
    pub path: ByteVec,
}

/// What happened to a watched file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum ChangeKind {
    /// Made.
    #[n(0)]
    Create,
    /// Written.
    #[n(1)]
    Write,
    /// Removed.
    #[n(2)]
    Remove,
    /// Renamed.
    #[n(3)]
    Rename,
    /// Its permissions or owner changed.
    #[n(4)]
    Attributes,
    /// Events were lost because there were too many; look again.
    #[n(5)]
    Overflow,
}

/// Encodes a message.
pub fn to_bytes<T: Encode<()>>(message: &T) -> Vec<u8> {
    let mut out = Vec::new();
    // Writing into a Vec cannot fail, and no message has a failing encoder.
    let _ = minicbor::encode(message, &mut out);
    out
}

/// Decodes a message; `what` names it in the error.
pub fn from_bytes<'b, T: Decode<'b, ()>>(bytes: &'b [u8], what: &'static str) -> Result<T, WireError> {
    minicbor::decode(bytes).map_err(|_| WireError::Malformed(what))
}
