//! Metadata.

use std::ffi::CString;

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, OFlags, Stat};
use sloplet_wire::{Entry, Event, Failure, FileKind};

use crate::context::Context;
use crate::failure::{self, shown};
use crate::files::Subject;
use crate::users::Names;

/// Answers a `Stat` request.
pub(crate) fn stat(context: &Context, subject: &Subject) -> Result<Event, Failure> {
    let names = Names::load(&context.root);
    let _acting = subject.actor.act()?;
    let file = context.root.open(&subject.path, OFlags::PATH | OFlags::NOFOLLOW)?;
    describe(&file, &subject.path, &names).map(Event::Entry)
}

/// The entry of an open file.
pub(crate) fn describe(file: &OwnedFd, path: &[u8], names: &Names) -> Result<Entry, Failure> {
    let stat = rustix::fs::fstat(file).map_err(|error| failure::errno(error, shown(path)))?;
    // An empty path names the (symlink's own) descriptor.
    let link = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => rustix::fs::readlinkat(file, c"", Vec::new()).ok(),
        _ => None,
    };
    Ok(entry(path.to_vec(), &stat, link, names))
}

/// An entry from what the kernel said.
pub(crate) fn entry(path: Vec<u8>, stat: &Stat, link: Option<CString>, names: &Names) -> Entry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let nanoseconds = i64::try_from(stat.st_mtime_nsec).unwrap_or(0);
    Entry {
        path: path.into(),
        kind,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        modified_ns: stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(nanoseconds),
        link_target: link.map(|target| target.into_bytes().into()),
        owner: names.user(stat.st_uid),
        group: names.group(stat.st_gid),
    }
}
