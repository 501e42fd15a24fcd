//! A folder as a tar stream.

use std::ffi::CStr;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sloplet_wire::{Channel, ErrorCode, Event, Failure};
use tar::{EntryType, Header};

use crate::context::Context;
use crate::failure::{self, fail, shown};
use crate::files::Subject;
use crate::files::resolve::Place;
use crate::files::walk::{FOLDER, Walk};
use crate::stream::{Job, Step, StreamIo};

/// Tar counts in these.
const BLOCK: usize = 512;

/// Entries begun in one slice.
const ENTRIES_PER_SLICE: usize = 64;

/// Longest name in a plain header; longer ones come in an entry of their own before it.
const MAX_PLAIN_NAME: usize = 100;

/// A `Pack` request.
pub(crate) struct Pack {
    subject: Subject,
    source: Source,
    /// Headers and padding, to be sent before anything else.
    pending: Vec<u8>,
    sent: usize,
    /// The file whose content comes next.
    file: Option<Content>,
    trailer_made: bool,
}

enum Source {
    Folder(Walk),
    Single(Option<Place>),
}

struct Content {
    file: OwnedFd,
    offset: u64,
    left: u64,
    padding: usize,
}

impl Pack {
    pub(crate) fn new(context: &Context, subject: Subject) -> Result<Self, Failure> {
        let acting = subject.actor.act()?;
        let describe = |error| failure::errno(error, shown(&subject.path));
        let kind = rustix::fs::fstat(context.root.open(&subject.path, OFlags::PATH)?)
            .map(|stat| FileType::from_raw_mode(stat.st_mode))
            .map_err(describe)?;
        let source = match kind {
            FileType::Directory => {
                let folder = context.root.open(&subject.path, FOLDER.difference(OFlags::NOFOLLOW))?;
                Source::Folder(Walk::new(folder).map_err(describe)?)
            }
            FileType::RegularFile => Source::Single(Some(context.root.place(&subject.path)?)),
            _ => {
                return Err(fail(ErrorCode::WrongType, format!("{} is neither folder nor file", shown(&subject.path))));
            }
        };
        drop(acting);
        Ok(Self { subject, source, pending: Vec::new(), sent: 0, file: None, trailer_made: false })
    }

    /// Puts the next entry's header in `pending` and opens its content; `false` at the end.
    fn next_entry(&mut self) -> Result<bool, Failure> {
        match &mut self.source {
            Source::Single(place) => {
                let Some(place) = place.take() else { return Ok(false) };
                let path = place.name.to_bytes().to_vec();
                add(&mut self.pending, &mut self.file, &place.folder, &place.name, path)?;
            }
            Source::Folder(walk) => {
                let Some(name) = walk.next() else { return Ok(false) };
                let path = walk.path_of(&name);
                let folder = walk.folder().map_err(|error| failure::errno(error, shown(&path)))?;
                if add(&mut self.pending, &mut self.file, folder, &name, path.clone())? == Some(FileType::Directory) {
                    match walk.descend(&name) {
                        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                        Err(error) => return Err(failure::errno(error, format_args!("packing {}", shown(&path)))),
                    }
                }
            }
        }
        Ok(true)
    }
}

/// Adds one entry; returns its kind unless it is gone or left out.
fn add(
    pending: &mut Vec<u8>,
    content: &mut Option<Content>,
    folder: impl rustix::fd::AsFd,
    name: &CStr,
    mut path: Vec<u8>,
) -> Result<Option<FileType>, Failure> {
    let describe = |error, path: &[u8]| failure::errno(error, format_args!("packing {}", shown(path)));
    let stat = match rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(describe(error, &path)),
    };
    let kind = FileType::from_raw_mode(stat.st_mode);
    match kind {
        FileType::Directory => {
            path.push(b'/');
            header(pending, EntryType::Directory, &path, &[], &stat, 0);
        }
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(&folder, name, Vec::new()).map_err(|error| describe(error, &path))?;
            header(pending, EntryType::Symlink, &path, target.as_bytes(), &stat, 0);
        }
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let file = match rustix::fs::openat(&folder, name, flags, Mode::empty()) {
                Ok(file) => file,
                Err(Errno::NOENT | Errno::LOOP) => return Ok(None),
                Err(error) => return Err(describe(error, &path)),
            };
            let stat = rustix::fs::fstat(&file).map_err(|error| describe(error, &path))?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return Ok(None);
            }
            let size = u64::try_from(stat.st_size).unwrap_or(0);
            header(pending, EntryType::Regular, &path, &[], &stat, size);
            *content = Some(Content { file, offset: 0, left: size, padding: padding(size) });
        }
        _ => return Ok(None),
    }
    Ok(Some(kind))
}

fn padding(size: u64) -> usize {
    (size.next_multiple_of(BLOCK as u64) - size) as usize
}

fn header(out: &mut Vec<u8>, kind: EntryType, path: &[u8], link: &[u8], stat: &Stat, size: u64) {
    for (kind, name) in [(EntryType::GNULongName, path), (EntryType::GNULongLink, link)] {
        if name.len() > MAX_PLAIN_NAME {
            let mut long = Header::new_gnu();
            put(&mut long.as_old_mut().name, b"././@LongLink");
            long.set_entry_type(kind);
            long.set_mode(0o644);
            long.set_uid(0);
            long.set_gid(0);
            long.set_mtime(0);
            long.set_size(name.len() as u64 + 1);
            long.set_cksum();
            out.extend_from_slice(long.as_bytes());
            out.extend_from_slice(name);
            out.push(0);
            out.resize(out.len() + padding(name.len() as u64 + 1), 0);
        }
    }
    let mut header = Header::new_gnu();
    put(&mut header.as_old_mut().name, path);
    put(&mut header.as_old_mut().linkname, link);
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_size(size);
    header.set_cksum();
    out.extend_from_slice(header.as_bytes());
}

fn put(field: &mut [u8], bytes: &[u8]) {
    let len = field.len().min(bytes.len());
    field[..len].copy_from_slice(&bytes[..len]);
}

impl Job for Pack {
    fn step(&mut self, io: &mut StreamIo<'_>, _context: &Context) -> Result<Step, Failure> {
        let _acting = self.subject.actor.act()?;
        for _ in 0..ENTRIES_PER_SLICE {
            let room = io.room(Channel::Output);
            if room == 0 {
                return Ok(Step::Wait);
            }
            if self.sent < self.pending.len() {
                let rest = &self.pending[self.sent..];
                let slice = &rest[..rest.len().min(room)];
                io.send(Channel::Output, slice);
                self.sent += slice.len();
                continue;
            }
            self.pending.clear();
            self.sent = 0;
            if let Some(content) = &mut self.file {
                let max = usize::try_from(content.left).unwrap_or(usize::MAX).min(room);
                let read = io.data(Channel::Output, max, |place| {
                    match rustix::io::pread(&content.file, &mut *place, content.offset)? {
                        // It has shrunk, but its size is already told.
                        0 => {
                            place.fill(0);
                            Ok(place.len())
                        }
                        len => Ok(len),
                    }
                });
                match read.map(<[u8]>::len) {
                    Ok(len) => {
                        content.offset += len as u64;
                        content.left -= len as u64;
                    }
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(failure::errno(error, "packing a file")),
                }
                if content.left == 0 {
                    self.pending = vec![0; content.padding];
                    self.file = None;
                } else if max > 64 * 1024 {
                    return Ok(Step::Again);
                }
                continue;
            }
            if self.trailer_made {
                io.end(Channel::Output);
                io.event(&Event::Done);
                return Ok(Step::Finished);
            }
            if !self.next_entry()? {
                self.pending = vec![0; 2 * BLOCK];
                self.trailer_made = true;
            }
        }
        Ok(Step::Again)
    }
}
