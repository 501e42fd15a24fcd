//! Metadata.

use std::ffi::CString;

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use sloplet_wire::{Entry, Event, Failure, FileKind, LinkEnd, Rare};

use crate::context::Context;
use crate::failure::{self, shown};
use crate::files::attributes::Place;
use crate::files::resolve::by_descriptor;
use crate::files::{Subject, attributes};
use crate::users::Names;

/// Answers a `Stat` request.
pub(crate) fn stat(context: &Context, subject: &Subject) -> Result<Event, Failure> {
    let names = Names::load(&context.root);
    let _acting = subject.actor.act()?;
    let file = context.root.open(&subject.path, OFlags::PATH | OFlags::NOFOLLOW)?;
    describe(context, &file, &subject.path, &names).map(Event::Entry)
}

/// The entry of an open file.
pub(crate) fn describe(context: &Context, file: &OwnedFd, path: &[u8], names: &Names) -> Result<Entry, Failure> {
    let stat = rustix::fs::fstat(file).map_err(|error| failure::errno(error, shown(path)))?;
    // An empty path names the (symlink's own) descriptor.
    let link = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => rustix::fs::readlinkat(file, c"", Vec::new()).ok(),
        _ => None,
    };
    let mut entry = entry(path.to_vec(), &stat, link, names);
    entry.rare = rare(context, &entry, Place::Open(&by_descriptor(file)));
    Ok(entry)
}

/// What few files have.
pub(crate) fn rare(context: &Context, entry: &Entry, place: Place<'_>) -> Option<Box<Rare>> {
    let rare = match entry.kind {
        FileKind::File | FileKind::Directory => Rare { end: None, attributes: attributes::of(place) },
        FileKind::Symlink => Rare { end: link_end(context, &entry.path), attributes: Vec::new() },
        FileKind::Other => return None,
    };
    (rare != Rare::default()).then(|| Box::new(rare))
}

fn link_end(context: &Context, path: &[u8]) -> Option<LinkEnd> {
    let file = context.root.open_below(path, OFlags::PATH, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    let path = rustix::fs::readlink(by_descriptor(&file), Vec::new()).ok()?.into_bytes().into();
    Some(LinkEnd { path, kind: kind(&stat), mode: stat.st_mode & 0o7777 })
}

fn kind(stat: &Stat) -> FileKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    }
}

/// An entry from what the kernel said.
pub(crate) fn entry(path: Vec<u8>, stat: &Stat, link: Option<CString>, names: &Names) -> Entry {
    let nanoseconds = i64::try_from(stat.st_mtime_nsec).unwrap_or(0);
    Entry {
        path: path.into(),
        kind: kind(stat),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        modified_ns: stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(nanoseconds),
        link_target: link.map(|target| target.into_bytes().into()),
        owner: names.user(stat.st_uid),
        group: names.group(stat.st_gid),
        rare: None,
    }
}
