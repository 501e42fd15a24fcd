//! Downloads.

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use sloplet_wire::{Channel, Entry, ErrorCode, Event, Failure};

use crate::context::Context;
use crate::failure::{self, fail, shown};
use crate::files::Subject;
use crate::files::entry::describe;
use crate::stream::{Job, Step, StreamIo};
use crate::users::Names;

/// Read at most of a file that claims to be empty, as those of procfs do.
const MAX_OF_UNSIZED: u64 = 64 * 1024 * 1024;

/// A `Read` request.
pub(crate) struct Read {
    file: OwnedFd,
    path: Vec<u8>,
    /// Sent first.
    entry: Option<Entry>,
    offset: u64,
    left: u64,
}

/// Opens a regular file and nothing else. Opening a device or FIFO can have effects, so its kind is looked at first;
/// and non-blocking, in case it is replaced in between or leased.
pub(crate) fn open_regular(context: &Context, path: &[u8]) -> Result<OwnedFd, Failure> {
    let regular = |file: &OwnedFd| {
        let stat = rustix::fs::fstat(file).map_err(|error| failure::errno(error, shown(path)))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(()),
            FileType::Directory => Err(fail(ErrorCode::WrongType, format!("{} is a folder", shown(path)))),
            _ => Err(fail(ErrorCode::WrongType, format!("{} is not a regular file", shown(path)))),
        }
    };
    regular(&context.root.open(path, OFlags::PATH)?)?;
    let file = context.root.open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    regular(&file)?;
    Ok(file)
}

impl Read {
    pub(crate) fn new(context: &Context, subject: &Subject, offset: u64, length: Option<u64>) -> Result<Self, Failure> {
        let names = Names::load(&context.root);
        let _acting = subject.actor.act()?;
        let file = open_regular(context, &subject.path)?;
        let entry = describe(context, &file, &subject.path, &names)?;
        // What is appended while reading is not awaited: somebody might never stop.
        let most = if entry.size == 0 { MAX_OF_UNSIZED } else { entry.size.saturating_sub(offset) };
        let left = length.unwrap_or(u64::MAX).min(most);
        Ok(Self { file, path: subject.path.clone(), entry: Some(entry), offset, left })
    }
}

impl Job for Read {
    fn step(&mut self, io: &mut StreamIo<'_>, _context: &Context) -> Result<Step, Failure> {
        if let Some(entry) = self.entry.take() {
            io.event(&Event::Entry(entry));
        }
        if self.left > 0 {
            let max = usize::try_from(self.left).unwrap_or(usize::MAX).min(io.room(Channel::Output));
            if max == 0 {
                return Ok(Step::Wait);
            }
            let read = io.data(Channel::Output, max, |place| rustix::io::pread(&self.file, place, self.offset));
            match read.map(<[u8]>::len) {
                Ok(0) => self.left = 0,
                Ok(len) => {
                    self.offset += len as u64;
                    self.left -= len as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(failure::errno(error, format_args!("reading {}", shown(&self.path)))),
            }
        }
        if self.left > 0 {
            return Ok(Step::Again);
        }
        io.end(Channel::Output);
        io.event(&Event::Done);
        Ok(Step::Finished)
    }
}
