//! Uploads.

use std::ffi::CString;

use rustix::fd::OwnedFd;
use rustix::fs::{Access, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sloplet_wire::{Attribute, ErrorCode, Event, Failure, MAX_PAYLOAD};

use crate::context::{Actor, Context};
use crate::failure::{self, fail, shown};
use crate::files::Subject;
use crate::files::attributes;
use crate::files::entry::describe;
use crate::files::resolve::Place;
use crate::stream::{Job, Step, StreamIo};
use crate::users::Names;

/// As many symlinks as the kernel itself follows.
const MAX_LINKS: usize = 40;

/// How the files are called in which uploads arrive.
pub(crate) const TEMPORARY_PREFIX: &str = ".sloplet-";

/// A name for one.
pub(crate) fn temporary_name() -> CString {
    let mut random = [0; 8];
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    CString::new(format!("{TEMPORARY_PREFIX}{:016x}", u64::from_le_bytes(random))).unwrap_or_default()
}

/// A `Write` request.
pub(crate) struct Write {
    path: Vec<u8>,
    temporary: Temporary,
}

/// A file that is removed again unless it is put in its place.
struct Temporary {
    actor: Actor,
    place: Place,
    file: OwnedFd,
    name: Option<CString>,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _acting = self.actor.act();
            let _ = rustix::fs::unlinkat(&self.place.folder, name, AtFlags::empty());
        }
    }
}

impl Write {
    pub(crate) fn new(
        context: &Context,
        subject: Subject,
        mode: u32,
        parents: bool,
        attributes: Vec<Attribute>,
    ) -> Result<Self, Failure> {
        let acting = subject.actor.act()?;
        let (place, path, existing) = follow(context, &subject, parents)?;
        let mode = match &existing {
            None => mode,
            Some(stat) => {
                check_replaceable(&place, &path, stat)?;
                stat.st_mode
            }
        };
        let name = temporary_name();
        let describe = |error| failure::errno(error, format_args!("writing {}", shown(&path)));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&place.folder, &name, flags, Mode::RUSR | Mode::WUSR).map_err(describe)?;
        let temporary = Temporary { actor: subject.actor.clone(), place, file, name: Some(name) };
        if let Some((uid, gid)) = temporary.actor.owner() {
            rustix::fs::fchown(&temporary.file, Some(uid), Some(gid)).map_err(describe)?;
        } else if let Some(stat) = existing {
            // Root writing somebody's file leaves it theirs; for others the kernel refuses, and it becomes their own.
            let (uid, gid) = (rustix::fs::Uid::from_raw(stat.st_uid), rustix::fs::Gid::from_raw(stat.st_gid));
            let _ = rustix::fs::fchown(&temporary.file, Some(uid), Some(gid));
        }
        attributes::set(&temporary.file, &attributes).map_err(describe)?;
        // As a plain write does: new content is never setuid.
        rustix::fs::fchmod(&temporary.file, Mode::from_raw_mode(mode & 0o1777)).map_err(describe)?;
        drop(acting);
        Ok(Self { path, temporary })
    }

    fn describe(&self, error: Errno) -> Failure {
        failure::errno(error, format_args!("writing {}", shown(&self.path)))
    }

    fn commit(&mut self, context: &Context) -> Result<Event, Failure> {
        let entry = describe(context, &self.temporary.file, &self.path, &Names::load(&context.root))?;
        let _acting = self.temporary.actor.act()?;
        let Temporary { place, name, .. } = &mut self.temporary;
        if let Some(from) = name {
            rustix::fs::renameat(&place.folder, &*from, &place.folder, &place.name)
                .map_err(|error| failure::errno(error, format_args!("writing {}", shown(&self.path))))?;
        }
        *name = None;
        Ok(Event::Entry(entry))
    }
}

impl Job for Write {
    fn take(&mut self, input: &[u8]) -> usize {
        // What goes wrong here does so again in the step that follows, which tells it.
        match self.temporary.actor.act() {
            Ok(_acting) => rustix::io::write(&self.temporary.file, input).unwrap_or(0),
            Err(_) => 0,
        }
    }

    fn step(&mut self, io: &mut StreamIo<'_>, context: &Context) -> Result<Step, Failure> {
        let input = io.input();
        let slice = &input[..input.len().min(MAX_PAYLOAD)];
        if !slice.is_empty() {
            let _acting = self.temporary.actor.act()?;
            let written = match rustix::io::write(&self.temporary.file, slice) {
                Ok(len) => len,
                Err(Errno::INTR) => 0,
                Err(error) => return Err(self.describe(error)),
            };
            io.consume_input(written);
            return Ok(Step::Again);
        }
        if !io.input_is_over() {
            return Ok(Step::Wait);
        }
        let event = self.commit(context)?;
        io.event(&event);
        Ok(Step::Finished)
    }
}

/// Follows symlinks in the last component, by path: each path is resolved as a whole again, below the root.
fn follow(context: &Context, subject: &Subject, parents: bool) -> Result<(Place, Vec<u8>, Option<Stat>), Failure> {
    let mut path = subject.path.clone();
    for _ in 0..MAX_LINKS {
        let place = match parents {
            true => context.root.place_with_parents(&path, &subject.actor)?,
            false => context.root.place(&path)?,
        };
        let stat = match rustix::fs::statat(&place.folder, &place.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok((place, path, None)),
            Err(error) => return Err(failure::errno(error, shown(&path))),
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            return Ok((place, path, Some(stat)));
        }
        let link = rustix::fs::readlinkat(&place.folder, &place.name, Vec::new())
            .map_err(|error| failure::errno(error, shown(&path)))?
            .into_bytes();
        if link.starts_with(b"/") {
            path = link;
        } else {
            while path.last() == Some(&b'/') {
                path.pop();
            }
            path.truncate(path.len() - place.name.count_bytes());
            path.extend_from_slice(&link);
        }
    }
    Err(failure::errno(Errno::LOOP, shown(&path)))
}

/// Renaming over a file needs no permission on it; writing it would.
fn check_replaceable(place: &Place, path: &[u8], stat: &Stat) -> Result<(), Failure> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(fail(ErrorCode::WrongType, format!("{} is a folder", shown(path)))),
        _ => {
            return Err(fail(ErrorCode::WrongType, format!("{} is not a regular file", shown(path))));
        }
    }
    rustix::fs::accessat(&place.folder, &place.name, Access::WRITE_OK, AtFlags::EACCESS)
        .map_err(|error| failure::errno(error, format_args!("writing {}", shown(path))))
}
