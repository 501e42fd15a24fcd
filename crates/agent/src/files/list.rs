//! Listings.

use rustix::fs::{AtFlags, FileType};
use sloplet_wire::{Event, Failure, to_bytes};

use crate::context::Context;
use crate::failure::{self, shown};
use crate::files::Subject;
use crate::files::attributes::Place;
use crate::files::entry::{entry, rare};
use crate::files::resolve::by_descriptor;
use crate::files::walk::{FOLDER, Walk};
use crate::stream::{Job, Step, StreamIo};
use crate::users::Names;

/// Entries of one slice.
const ENTRIES_PER_SLICE: usize = 256;

/// Encoded bytes after which a frame is full; one more entry (of two long paths) still fits in.
const FRAME_BYTES: usize = 96 * 1024;

/// A `List` request.
pub(crate) struct List {
    subject: Subject,
    walk: Walk,
    depth: usize,
    names: Names,
}

impl List {
    pub(crate) fn new(context: &Context, mut subject: Subject, depth: u32) -> Result<Self, Failure> {
        let names = Names::load(&context.root);
        let _acting = subject.actor.act()?;
        // The folder itself may be named through a symlink.
        let folder = context.root.open(&subject.path, FOLDER.difference(rustix::fs::OFlags::NOFOLLOW))?;
        let walk = Walk::new(folder).map_err(|error| failure::errno(error, shown(&subject.path)))?;
        if subject.path.last() != Some(&b'/') {
            subject.path.push(b'/');
        }
        Ok(Self { subject, walk, depth: depth.max(1) as usize, names })
    }
}

impl Job for List {
    fn step(&mut self, io: &mut StreamIo<'_>, context: &Context) -> Result<Step, Failure> {
        if !io.out.has_room() {
            return Ok(Step::Wait);
        }
        let _acting = self.subject.actor.act()?;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let mut over = false;
        while entries.len() < ENTRIES_PER_SLICE && bytes < FRAME_BYTES {
            let Some(name) = self.walk.next() else {
                over = true;
                break;
            };
            let Ok(folder) = self.walk.folder() else { continue };
            // Gone since it was read.
            let Ok(stat) = rustix::fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let kind = FileType::from_raw_mode(stat.st_mode);
            let link = match kind {
                FileType::Symlink => rustix::fs::readlinkat(folder, &name, Vec::new()).ok(),
                _ => None,
            };
            let path = [self.subject.path.clone(), self.walk.path_of(&name)].concat();
            let mut found = entry(path, &stat, link, &self.names);
            let place = [by_descriptor(&folder).as_bytes(), b"/", name.to_bytes()].concat();
            found.rare = rare(context, &found, Place::Named(&place));
            bytes += to_bytes(&found).len();
            entries.push(found);
            if kind == FileType::Directory && self.walk.depth() < self.depth {
                // One that may not be read is listed but not entered.
                let _ = self.walk.descend(&name);
            }
        }
        if !entries.is_empty() {
            io.event(&Event::Entries(entries));
        }
        if !over {
            return Ok(Step::Again);
        }
        io.event(&Event::Done);
        Ok(Step::Finished)
    }
}
