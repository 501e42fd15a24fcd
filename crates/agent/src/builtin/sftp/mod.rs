//! An SFTP server, version 3, with those extensions of OpenSSH that its client uses. It acts as the user it runs as: who may
//! do what is decided by the kernel.
//!
//! - `packet`: fields of messages. `attributes`: what is known of a file. `handles`: what is open.
//! - `requests`: what is asked of paths; `extended`: the same for extensions.
//!
//! Files are written in place, as OpenSSH does. One that was made by an upload that never ended is removed again: a
//! connection that is cut leaves no half file behind.

mod attributes;
mod extended;
mod handles;
mod packet;
mod requests;

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use handles::Handles;
use packet::{Fields, Reply};

/// Bytes of a message. OpenSSH's limit.
const MESSAGE: usize = 256 * 1024;

/// Of that, what is left for data.
const DATA: usize = MESSAGE - 1024;

const VERSION: u32 = 3;

/// Kinds of messages.
mod kind {
    pub const INIT: u8 = 1;
    pub const VERSION: u8 = 2;
    pub const OPEN: u8 = 3;
    pub const CLOSE: u8 = 4;
    pub const READ: u8 = 5;
    pub const WRITE: u8 = 6;
    pub const LSTAT: u8 = 7;
    pub const FSTAT: u8 = 8;
    pub const SETSTAT: u8 = 9;
    pub const FSETSTAT: u8 = 10;
    pub const OPENDIR: u8 = 11;
    pub const READDIR: u8 = 12;
    pub const REMOVE: u8 = 13;
    pub const MKDIR: u8 = 14;
    pub const RMDIR: u8 = 15;
    pub const REALPATH: u8 = 16;
    pub const STAT: u8 = 17;
    pub const RENAME: u8 = 18;
    pub const READLINK: u8 = 19;
    pub const SYMLINK: u8 = 20;
    pub const EXTENDED: u8 = 200;
}

/// Why a request was not carried out.
#[derive(Debug)]
enum Refusal {
    /// The kernel said so.
    Os(io::Error),
    /// There is no more.
    End,
    /// It cannot be read.
    Malformed,
    /// No such request here.
    Unknown,
    /// It names a handle that is not open.
    NoHandle,
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Os(error)
    }
}

impl From<rustix::io::Errno> for Refusal {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Os(error.into())
    }
}

/// Serves until the client has gone.
pub(super) fn run(argv: &[CString]) -> u8 {
    let home = argv.last().map_or(&b"/"[..], |home| home.as_bytes());
    let home = PathBuf::from(OsStr::from_bytes(home));
    let mut server = Server { home, handles: Handles::default(), reply: Reply::default() };
    let served = server.serve();
    server.handles.abandon();
    u8::from(served.is_err())
}

struct Server {
    home: PathBuf,
    handles: Handles,
    reply: Reply,
}

impl Server {
    fn serve(&mut self) -> io::Result<()> {
        let mut message = Vec::new();
        if !read_message(&mut message)? || message.first() != Some(&kind::INIT) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.reply.version(VERSION, &extended::OFFERED);
        self.reply.send()?;
        while read_message(&mut message)? {
            let mut fields = Fields(&message);
            let (Ok(kind), Ok(id)) = (fields.byte(), fields.number()) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            self.reply.begin(id);
            if let Err(refusal) = self.answer(kind, &mut fields) {
                self.reply.refuse(id, &refusal);
            }
            self.reply.send()?;
        }
        Ok(())
    }

    fn answer(&mut self, kind: u8, fields: &mut Fields<'_>) -> Result<(), Refusal> {
        let Self { home, handles, reply } = self;
        match kind {
            kind::OPEN => requests::open(handles, reply, fields),
            kind::CLOSE => requests::close(handles, reply, fields),
            kind::READ => requests::read(handles, reply, fields),
            kind::WRITE => requests::write(handles, reply, fields),
            kind::LSTAT => requests::stat(reply, fields, false),
            kind::STAT => requests::stat(reply, fields, true),
            kind::FSTAT => requests::stat_open(handles, reply, fields),
            kind::SETSTAT => requests::set(reply, fields, true),
            kind::FSETSTAT => requests::set_open(handles, reply, fields),
            kind::OPENDIR => requests::open_folder(handles, reply, fields),
            kind::READDIR => requests::read_folder(handles, reply, fields),
            kind::REMOVE => requests::remove(reply, fields),
            kind::MKDIR => requests::make_folder(reply, fields),
            kind::RMDIR => requests::remove_folder(reply, fields),
            kind::REALPATH => requests::real_path(reply, fields),
            kind::RENAME => requests::rename(reply, fields),
            kind::READLINK => requests::read_link(reply, fields),
            kind::SYMLINK => requests::link(reply, fields),
            kind::EXTENDED => extended::answer(home, handles, reply, fields),
            _ => Err(Refusal::Unknown),
        }
    }
}

/// The next message without its length; false at the end.
fn read_message(message: &mut Vec<u8>) -> io::Result<bool> {
    let mut length = [0; 4];
    if !fill(&mut length)? {
        return Ok(false);
    }
    let length = u32::from_be_bytes(length) as usize;
    if length == 0 || length > MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    message.resize(length, 0);
    fill(message)
}

/// Fills the buffer; false if the input ends first.
fn fill(mut buffer: &mut [u8]) -> io::Result<bool> {
    while !buffer.is_empty() {
        match rustix::io::read(rustix::stdio::stdin(), &mut *buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => buffer = &mut buffer[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// Reads the fields of a message without acting on it; see [`crate::fuzzing`].
#[cfg(feature = "fuzzing")]
pub fn fields(message: &[u8]) {
    let mut fields = Fields(message);
    let (Ok(_), Ok(id)) = (fields.byte(), fields.number()) else { return };
    let rest = fields.0;
    for paths in 0..3 {
        let mut fields = Fields(rest);
        let read = (0..paths).try_for_each(|_| fields.path().map(|path| assert!(!path.as_os_str().is_empty())));
        if read.is_ok()
            && let Ok(attributes) = attributes::Attributes::read(&mut fields)
        {
            let mut reply = Reply::default();
            reply.begin(id);
            reply.attributes(&attributes);
            let _ = (attributes.mode(0o666), attributes.ids(), attributes.stamps());
        }
    }
    // Only what names a handle: none is open, so nothing is done.
    let mut server = Server { home: PathBuf::from("/"), handles: Handles::default(), reply: Reply::default() };
    for kind in [kind::CLOSE, kind::READ, kind::WRITE, kind::FSTAT, kind::FSETSTAT, kind::READDIR] {
        assert!(server.answer(kind, &mut Fields(rest)).is_err(), "a handle that is not open");
    }
}
