//! Removal.

use std::ffi::{CStr, CString};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode};
use rustix::io::Errno;
use sloplet_wire::{Event, Failure};

use crate::context::Context;
use crate::failure::{self, shown};
use crate::files::Subject;
use crate::files::resolve::Place;
use crate::files::walk::FOLDER;
use crate::stream::{Job, Step, StreamIo};

/// Entries of one slice.
const ENTRIES_PER_SLICE: usize = 512;

/// Folders held open at once. Deeper ones are moved up first, so that any depth can be removed.
const MAX_OPEN: usize = 64;

/// Times a folder is read again because it was not empty after all: some file systems skip entries while others are
/// being removed, and somebody may be filling it.
const MAX_REREADS: usize = 16;

/// A `Remove` request.
pub(crate) struct Remove {
    subject: Subject,
    place: Place,
    /// Folders being emptied, the outermost first.
    stack: Vec<Level>,
    moved: u64,
}

struct Level {
    dir: Dir,
    /// Its name in the folder above (in `place` for the first).
    name: CString,
    rereads: usize,
}

impl Remove {
    pub(crate) fn new(context: &Context, subject: Subject, recursive: bool) -> Result<Self, Failure> {
        let acting = subject.actor.act()?;
        let place = context.root.place(&subject.path)?;
        let mut job = Self { subject, place, stack: Vec::new(), moved: 0 };
        let is_folder = rustix::fs::statat(&job.place.folder, &job.place.name, AtFlags::SYMLINK_NOFOLLOW)
            .map(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
            .map_err(|error| job.describe(error))?;
        match (is_folder, recursive) {
            (false, _) => rustix::fs::unlinkat(&job.place.folder, &job.place.name, AtFlags::empty()),
            (true, false) => rustix::fs::unlinkat(&job.place.folder, &job.place.name, AtFlags::REMOVEDIR),
            (true, true) => {
                let name = job.place.name.clone();
                open(&job.place.folder, &name).map(|dir| job.stack.push(Level { dir, name, rereads: 0 }))
            }
        }
        .map_err(|error| job.describe(error))?;
        drop(acting);
        Ok(job)
    }

    fn describe(&self, error: Errno) -> Failure {
        failure::errno(error, format_args!("removing {}", shown(&self.subject.path)))
    }

    /// Removes one entry of the innermost folder, or enters it, or leaves the folder.
    fn advance(&mut self) -> Result<(), Errno> {
        let depth = self.stack.len();
        let Some(level) = self.stack.last_mut() else {
            return Ok(());
        };
        let entry = match level.dir.read() {
            Some(entry) => entry?,
            None => return self.leave(),
        };
        let (name, kind) = (CString::from(entry.file_name()), entry.file_type());
        let name = name.as_c_str();
        if name == c"." || name == c".." {
            return Ok(());
        }
        let folder = self.stack[depth - 1].dir.fd()?;
        if kind != FileType::Directory {
            match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                // A folder after all.
                Err(Errno::ISDIR) => {}
                Err(error) => return Err(error),
            }
        }
        if depth < MAX_OPEN {
            match open(folder, name) {
                Ok(dir) => self.stack.push(Level { dir, name: name.into(), rereads: 0 }),
                Err(Errno::NOENT) => {}
                // A symlink by now.
                Err(Errno::NOTDIR | Errno::LOOP) => rustix::fs::unlinkat(folder, name, AtFlags::empty())?,
                Err(error) => return Err(error),
            }
            return Ok(());
        }
        self.moved += 1;
        let raised = CString::new(format!(".sloplet-removed-{}", self.moved)).unwrap_or_default();
        rustix::fs::renameat(folder, name, self.stack[0].dir.fd()?, &raised)
    }

    fn leave(&mut self) -> Result<(), Errno> {
        let Some(mut level) = self.stack.pop() else {
            return Ok(());
        };
        let result = match self.stack.last() {
            Some(above) => rustix::fs::unlinkat(above.dir.fd()?, &level.name, AtFlags::REMOVEDIR),
            None => rustix::fs::unlinkat(&self.place.folder, &level.name, AtFlags::REMOVEDIR),
        };
        match result {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTEMPTY) if level.rereads < MAX_REREADS => {
                level.rereads += 1;
                level.dir.rewind();
                self.stack.push(level);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

fn open(folder: impl AsFd, name: &CStr) -> Result<Dir, Errno> {
    let folder: OwnedFd = rustix::fs::openat(folder, name, FOLDER, Mode::empty())?;
    Dir::new(folder)
}

impl Job for Remove {
    fn step(&mut self, io: &mut StreamIo<'_>, _context: &Context) -> Result<Step, Failure> {
        let _acting = self.subject.actor.act()?;
        for _ in 0..ENTRIES_PER_SLICE {
            if self.stack.is_empty() {
                io.event(&Event::Done);
                return Ok(Step::Finished);
            }
            self.advance().map_err(|error| self.describe(error))?;
        }
        Ok(Step::Again)
    }
}
