//! Members of a snapshot's layer: what a layer on a disk holds, and nothing that it cannot.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, Uid};
use rustix::io::Errno;
use sha2::Digest as _;

use super::{Unpacker, split};
use crate::attributes::Attributes;
use crate::error::ImageError;
use crate::tarstream::{Kind, Member, TarStream};

impl Unpacker<'_> {
    /// Unpacks one, which is not the root.
    pub(super) fn of_layer<R: Read>(
        &mut self,
        member: &Member,
        path: Vec<u8>,
        owner: Option<(Uid, Gid)>,
        attributes: Attributes,
        stream: &mut TarStream<R>,
    ) -> Result<(), ImageError> {
        let (parent_path, name) = split(&path);
        let parent = self.parent(&member.path, parent_path)?;
        match member.kind {
            Kind::Directory => {
                self.directory(member, parent.as_fd(), name)?;
                self.pend(path, member.mode, owner, Some(self.times(member)), attributes)
            }
            Kind::File => self.file(member, parent.as_fd(), name, owner, &attributes, stream),
            Kind::Symlink => self.symlink(member, parent.as_fd(), name, owner),
            Kind::Hardlink => self.hardlink(member, parent.as_fd(), &path, name),
            Kind::Fifo => self.fifo(member, parent.as_fd(), name, owner),
            Kind::Removed => {
                self.make_room(member, parent.as_fd(), name)?;
                let fail = |e: Errno| ImageError::unpack(&member.path, e);
                rustix::fs::mknodat(&parent, name, FileType::CharacterDevice, Mode::empty(), 0).map_err(fail)
            }
            Kind::Device => Err(ImageError::refused(&member.path, "a device")),
        }
    }

    fn fifo(
        &mut self,
        member: &Member,
        parent: BorrowedFd<'_>,
        name: &[u8],
        owner: Option<(Uid, Gid)>,
    ) -> Result<(), ImageError> {
        let fail = |e: Errno| ImageError::unpack(&member.path, e);
        self.make_room(member, parent, name)?;
        rustix::fs::mknodat(parent, name, FileType::Fifo, Mode::empty(), 0).map_err(fail)?;
        if let Some((uid, gid)) = owner {
            rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map_err(fail)?;
        }
        // It was made here a moment ago, in a folder that nobody else sees: it is no link.
        rustix::fs::chmodat(parent, name, Mode::from_raw_mode(member.mode), AtFlags::empty()).map_err(fail)?;
        rustix::fs::utimensat(parent, name, &self.times(member), AtFlags::SYMLINK_NOFOLLOW).map_err(fail)
    }

    /// What a snapshot says of a member, for the digest.
    pub(super) fn note(&mut self, member: &Member) {
        let times = [member.mtime as u64, u64::from(member.mtime_nanos)];
        let numbers = [u64::from(member.mode), member.uid, member.gid, member.size, member.sparse.unwrap_or(0)];
        let kind: u8 = match member.kind {
            Kind::File => 0,
            Kind::Directory => 1,
            Kind::Symlink => 2,
            Kind::Hardlink => 3,
            Kind::Fifo => 4,
            Kind::Removed => 5,
            Kind::Device => 6,
        };
        self.digest.update([kind, u8::from(member.sparse.is_some())]);
        for number in numbers.iter().chain(&times) {
            self.digest.update(number.to_le_bytes());
        }
        let pairs = member.attributes.iter().flat_map(|(name, value)| [name, value]);
        for text in [&member.path, &member.link].into_iter().chain(pairs) {
            self.digest.update((text.len() as u64).to_le_bytes());
            self.digest.update(text);
        }
        self.digest.update((member.attributes.len() as u64).to_le_bytes());
    }
}
