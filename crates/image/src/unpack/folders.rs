//! Folders of a layer: made before what is in them, and given their modes, owners and times when nothing more is written
//! into them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, Timestamps, Uid};
use rustix::io::Errno;
use sha2::Digest as _;

use super::whiteout::{is_whiteout, make_opaque};
use super::{Unpacked, Unpacker, file_type, lookup};
use crate::attributes::Attributes;
use crate::beneath::{make_dirs_beneath, open_dir_beneath};
use crate::digest::hex;
use crate::error::ImageError;
use crate::limits::LimitExceeded;
use crate::tarstream::Member;

/// Directories keep mode 0700 until the end; their paths are remembered up to this many bytes.
const MAX_PENDING_BYTES: usize = 128 << 20;

/// Mode, owner and time of a directory, applied when nothing more is written into it.
pub(super) struct PendingDirectory {
    path: Vec<u8>,
    mode: u32,
    owner: Option<(Uid, Gid)>,
    times: Option<Timestamps>,
    attributes: Attributes,
}

impl Unpacker<'_> {
    /// Opens the parent directory, creating what the archive left out.
    pub(super) fn parent(&mut self, entry: &[u8], path: &[u8]) -> Result<OwnedFd, ImageError> {
        let mut created = Vec::new();
        let parent = make_dirs_beneath(self.root, path, |dir| created.push(dir.to_vec()));
        let owner = self.as_root.then_some((Uid::ROOT, Gid::ROOT));
        for dir in created {
            self.budget.spend_entry()?;
            self.pend(dir, 0o755, owner, None, Attributes::default())?;
        }
        parent.map_err(|error| match error {
            Errno::LOOP => ImageError::refused(entry, "it would be written through a symbolic link"),
            Errno::NOTDIR => ImageError::refused(entry, "its parent is not a directory"),
            Errno::XDEV => ImageError::refused(entry, "it leads out of the layer"),
            other => ImageError::unpack(entry, other),
        })
    }

    pub(super) fn spend_pending(&mut self, bytes: usize) -> Result<(), ImageError> {
        self.pending_bytes += bytes + std::mem::size_of::<PendingDirectory>();
        if self.pending_bytes > MAX_PENDING_BYTES {
            return Err(LimitExceeded::Metadata(MAX_PENDING_BYTES as u64).into());
        }
        Ok(())
    }

    pub(super) fn pend(
        &mut self,
        path: Vec<u8>,
        mode: u32,
        owner: Option<(Uid, Gid)>,
        times: Option<Timestamps>,
        attributes: Attributes,
    ) -> Result<(), ImageError> {
        self.spend_pending(path.len() + attributes.bytes())?;
        self.pending.push(PendingDirectory { path, mode, owner, times, attributes });
        Ok(())
    }

    pub(super) fn directory(&mut self, member: &Member, parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), ImageError> {
        let fail = |e: Errno| ImageError::unpack(&member.path, e);
        let existing = lookup(parent, name).map_err(fail)?;
        let hides_lower = existing.as_ref().is_some_and(is_whiteout);
        match existing {
            Some(stat) if file_type(&stat) == FileType::Directory => return Ok(()),
            Some(_) => rustix::fs::unlinkat(parent, name, AtFlags::empty()).map_err(fail)?,
            None => {}
        }
        rustix::fs::mkdirat(parent, name, Mode::RWXU).map_err(fail)?;
        if hides_lower {
            // `.wh.x` came first, then a new directory x: what lower layers have in theirs must not shine through.
            make_opaque(parent, name).map_err(fail)?;
        }
        Ok(())
    }

    /// Directories get their modes, owners and times, deepest first: a parent's mode may shut its children off.
    pub(crate) fn finish(mut self) -> Result<(Unpacked, String), ImageError> {
        let owner = self.as_root.then_some((Uid::ROOT, Gid::ROOT));
        let root =
            PendingDirectory { path: Vec::new(), mode: 0o755, owner, times: None, attributes: Attributes::default() };
        // A stable sort, later entries first: of several for one directory the last one counts.
        let mut pending: Vec<_> = std::iter::once(root).chain(std::mem::take(&mut self.pending)).collect();
        pending.reverse();
        pending.sort_by(|a, b| b.path.cmp(&a.path));
        pending.dedup_by(|later, earlier| later.path == earlier.path);
        for directory in pending {
            let fail = |e: Errno| ImageError::unpack(&directory.path, e);
            let dir = match open_dir_beneath(self.root, &directory.path) {
                Ok(dir) => dir,
                // A later entry replaced the directory by something else.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(error) => return Err(fail(error)),
            };
            if let Some((uid, gid)) = directory.owner {
                rustix::fs::fchown(&dir, Some(uid), Some(gid)).map_err(fail)?;
            }
            let attributes = &directory.attributes;
            let put = attributes.put(dir.as_fd(), self.as_root);
            self.done.skipped += put.map_err(|e| ImageError::unpack(&directory.path, e))?;
            // The layer's root must stay movable and readable for the store's owner.
            let mode = if directory.path.is_empty() { directory.mode | 0o700 } else { directory.mode };
            rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode)).map_err(fail)?;
            attributes.put_access(dir.as_fd()).map_err(|e| ImageError::unpack(&directory.path, e))?;
            if let Some(times) = directory.times {
                rustix::fs::futimens(&dir, &times).map_err(fail)?;
            }
        }
        Ok((self.done, hex(&self.digest.finalize())))
    }
}
