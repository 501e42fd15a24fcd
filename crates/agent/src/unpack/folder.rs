//! Folders of an archive.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sloplet_wire::{ErrorCode, Failure};

use super::Unpack;
use crate::failure::{self, fail, shown};
use crate::files::resolve::open_at;

/// Folders whose owner may not write in them wait for their permissions until the end. No sane archive has many.
const MAX_DELAYED: usize = 4096;

impl Unpack {
    pub(super) fn folder(&mut self, components: &[&[u8]], mode: u32) -> Result<(), Failure> {
        if components.is_empty() {
            // The folder itself, which keeps its own permissions.
            return Ok(());
        }
        let path = components.join(&b'/');
        let (parent, name) = self.place(components)?;
        let describe = |error| failure::errno(error, format_args!("unpacking {}", shown(&path)));
        let mode = mode & 0o1777;
        // Files must be put in before a read-only folder becomes so.
        match rustix::fs::mkdirat(parent, &name, Mode::from_raw_mode(mode | 0o300)) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                // Also through a symlink that stays inside.
                open_at(
                    &self.base,
                    &path,
                    OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
                    Mode::empty(),
                    self.resolve,
                )
                .map_err(describe)?;
                return Ok(());
            }
            Err(error) => return Err(describe(error)),
        }
        if mode & 0o300 != 0o300 {
            if self.delayed.len() >= MAX_DELAYED {
                return Err(fail(ErrorCode::Exhausted, "the archive has too many read-only folders"));
            }
            self.delayed.push((path, mode));
        }
        Ok(())
    }

    /// Gives folders the permissions that waited.
    pub(super) fn settle_folders(&mut self) -> Result<(), Failure> {
        // The innermost first: the outer ones may forbid to reach them.
        while let Some((path, mode)) = self.delayed.pop() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let describe = |error| failure::errno(error, format_args!("unpacking {}", shown(&path)));
            match open_at(&self.base, &path, flags, Mode::empty(), self.resolve) {
                Ok(folder) => rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode)).map_err(describe)?,
                // Replaced by a later entry.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(describe(error)),
            }
        }
        Ok(())
    }
}
