//! Folders made, files renamed, permissions set.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sloplet_wire::{ErrorCode, Event, Failure};

use crate::context::Context;
use crate::failure::{self, fail, shown};
use crate::files::Subject;
use crate::files::resolve::{absolute, by_descriptor, make_folder};

/// Answers a `MakeDir` request.
pub(crate) fn make_dir(context: &Context, subject: &Subject, mode: u32, parents: bool) -> Result<Event, Failure> {
    let _acting = subject.actor.act()?;
    let path = &subject.path;
    let is_folder = || context.root.open_below(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).is_ok();
    let there = || match parents {
        true => Ok(Event::Done),
        false => Err(fail(ErrorCode::Exists, format!("{} is there already", shown(path)))),
    };
    // Also covers the root itself, which is nobody's entry.
    if is_folder() {
        return there();
    }
    let place =
        if parents { context.root.place_with_parents(path, &subject.actor)? } else { context.root.place(path)? };
    match make_folder(&place.folder, &place.name, mode, &subject.actor) {
        Ok(()) => Ok(Event::Done),
        Err(Errno::EXIST) if is_folder() => there(),
        Err(error) => Err(failure::errno(error, format_args!("making {}", shown(path)))),
    }
}

/// Answers a `Move` request.
pub(crate) fn rename(context: &Context, from: &Subject, to: &[u8]) -> Result<Event, Failure> {
    let _acting = from.actor.act()?;
    let to = absolute(to, &from.actor.user.home)?;
    let source = context.root.place(&from.path)?;
    let destination = context.root.place(&to)?;
    rustix::fs::renameat(&source.folder, &source.name, &destination.folder, &destination.name).map_err(|error| {
        let what = format!("moving {} to {}", shown(&from.path), shown(&to));
        match error {
            Errno::XDEV => {
                fail(ErrorCode::Invalid, format!("{what}: they are on different file systems; copy instead"))
            }
            error => failure::errno(error, what),
        }
    })?;
    Ok(Event::Done)
}

/// Bits that make a program run as its file's owner or group.
const SET_ID: u32 = 0o6000;

/// Answers a `SetMode` request.
pub(crate) fn set_mode(context: &Context, subject: &Subject, mode: u32) -> Result<Event, Failure> {
    // In a folder of the host's, whoever runs such a file out there becomes its owner.
    if mode & SET_ID != 0 {
        return Err(fail(ErrorCode::Denied, "set-user-ID and set-group-ID bits are never set from outside"));
    }
    let _acting = subject.actor.act()?;
    let file = context.root.open(&subject.path, OFlags::PATH)?;
    // The file itself is not opened: a device or FIFO would notice.
    rustix::fs::chmod(by_descriptor(&file), Mode::from_raw_mode(mode & 0o1777))
        .map_err(|error| failure::errno(error, shown(&subject.path)))?;
    Ok(Event::Done)
}
