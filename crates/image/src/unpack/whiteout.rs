//! What says that a name of lower layers was removed: `.wh.` names in an image, what overlayfs understands on a disk.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, Mode, Stat, XattrFlags};
use rustix::io::Errno;

use super::{Unpacker, file_type, lookup};
use crate::beneath::open_dir_beneath;
use crate::error::ImageError;
use crate::tarstream::Member;

/// Set on a directory that hides what lower layers have in it. Sandboxes mount overlayfs with `userxattr`, always.
pub(crate) const OPAQUE_XATTR: &str = "user.overlay.opaque";

pub(super) const WHITEOUT_PREFIX: &[u8] = b".wh.";
const OPAQUE_MARKER: &[u8] = b".wh..wh..opq";
/// AUFS bookkeeping, which Docker once exported; it means nothing to anybody else.
const AUFS_PREFIX: &[u8] = b".wh..wh.";

impl Unpacker<'_> {
    pub(super) fn whiteout(&mut self, member: &Member, parent_path: &[u8], name: &[u8]) -> Result<(), ImageError> {
        let fail = |e: Errno| ImageError::unpack(&member.path, e);
        let parent = self.parent(&member.path, parent_path)?;
        if name == OPAQUE_MARKER {
            return set_opaque(parent.as_fd()).map_err(fail);
        }
        if name.starts_with(AUFS_PREFIX) {
            self.done.skipped += 1;
            return Ok(());
        }
        let hidden = &name[WHITEOUT_PREFIX.len()..];
        if matches!(hidden, b"" | b"." | b"..") || hidden.starts_with(WHITEOUT_PREFIX) {
            return Err(ImageError::refused(&member.path, "a whiteout of nothing"));
        }
        // A whiteout concerns lower layers only: what this layer itself has under that name stays.
        match lookup(parent.as_fd(), hidden).map_err(fail)? {
            Some(stat) if file_type(&stat) == FileType::Directory => make_opaque(parent.as_fd(), hidden).map_err(fail),
            Some(_) => Ok(()),
            // Device 0:0 is the one device an unprivileged user may make.
            None => rustix::fs::mknodat(&parent, hidden, FileType::CharacterDevice, Mode::empty(), 0).map_err(fail),
        }
    }
}

pub(super) fn is_whiteout(stat: &Stat) -> bool {
    file_type(stat) == FileType::CharacterDevice && stat.st_rdev == 0
}

pub(super) fn make_opaque(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    set_opaque(open_dir_beneath(parent, name)?.as_fd())
}

fn set_opaque(dir: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::fs::fsetxattr(dir, OPAQUE_XATTR, b"y", XattrFlags::empty())
}
