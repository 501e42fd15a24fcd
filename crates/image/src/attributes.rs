//! Extended attributes of what a sandbox has written: which of them belong to it, and how they are set again.
//!
//! `user.*` are the programs' own. Of the overlay's there is one mark, of folders that hide what is below them, and those
//! that programs inside gave such names, which the overlay keeps escaped. Access control lists and file capabilities
//! are what they are everywhere. All others belong to the host: labels of its security modules, above all.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::error::ImageError;
use crate::tarstream::{Kind, Member};
use crate::unpack::{ID_COUNT, OPAQUE_XATTR};

/// The largest attribute that the kernel takes, and the longest list of names that it gives.
pub(crate) const MAX_ATTRIBUTE: usize = 64 * 1024;

pub(crate) const CAPABILITY: &[u8] = b"security.capability";
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Attributes that commands inside gave a name of the overlay's own are kept by it under these.
const ESCAPED: &[u8] = b"user.overlay.overlay.";

/// Whether an attribute of this name belongs to what a sandbox has written.
pub(crate) fn belongs(name: &[u8]) -> bool {
    let own = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
    own || name.starts_with(ESCAPED) || [OPAQUE_XATTR.as_bytes(), CAPABILITY, ACCESS, DEFAULT].contains(&name)
}

/// Those of a file or folder that belong to it, in the order of their names.
pub(crate) fn of(file: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let length = match rustix::fs::flistxattr(file, &mut buffer[..MAX_ATTRIBUTE]) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        length => length?,
    };
    let names = buffer[..length].to_vec();
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| belongs(name)) {
        let length = rustix::fs::fgetxattr(file, name, &mut buffer[..MAX_ATTRIBUTE])?;
        found.push((name.to_vec(), buffer[..length].to_vec()));
    }
    found.sort();
    Ok(found)
}

/// Attributes that were looked at and may be set.
#[derive(Debug, Default, Clone)]
pub(crate) struct Attributes(Vec<(Vec<u8>, Vec<u8>)>);

impl Attributes {
    /// Those of a member, if a layer can have them.
    pub(crate) fn check(member: &Member) -> Result<Self, ImageError> {
        let refused = |reason: &str| Err(ImageError::refused(&member.path, reason));
        if !member.attributes.is_empty() && !matches!(member.kind, Kind::File | Kind::Directory) {
            return refused("attributes of something that is neither a file nor a folder");
        }
        for (name, value) in &member.attributes {
            if !belongs(name) || name.contains(&0) || name.len() > 255 || value.len() > MAX_ATTRIBUTE {
                return refused("an attribute that no snapshot has");
            }
            if name == OPAQUE_XATTR.as_bytes() && (value != b"y" || member.kind != Kind::Directory) {
                return refused("a mark of the overlay's that it would not make");
            }
            if name == CAPABILITY && (value.len() != 20 || member.kind != Kind::File) {
                return refused("file capabilities of a form that no snapshot has");
            }
            if (name == ACCESS || name == DEFAULT) && !is_list(value) {
                return refused("an access control list that makes no sense");
            }
        }
        Ok(Self(member.attributes.clone()))
    }

    /// What they take in memory, about.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len() + 48).sum()
    }

    /// Sets all but access control lists. Returns how many could not be: only root may give programs capabilities.
    pub(crate) fn put(&self, file: BorrowedFd<'_>, as_root: bool) -> io::Result<u64> {
        let mut left_out = 0;
        for (name, value) in self.0.iter().filter(|(name, _)| name != ACCESS && name != DEFAULT) {
            if name == CAPABILITY && !as_root {
                left_out += 1;
                continue;
            }
            rustix::fs::fsetxattr(file, name.as_slice(), value, XattrFlags::empty())?;
        }
        Ok(left_out)
    }

    /// Sets access control lists: after the mode, which changes them, and when nothing more is made in a folder, since
    /// that would inherit them.
    pub(crate) fn put_access(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        for (name, value) in self.0.iter().filter(|(name, _)| name == ACCESS || name == DEFAULT) {
            rustix::fs::fsetxattr(file, name.as_slice(), value, XattrFlags::empty())?;
        }
        Ok(())
    }
}

/// Version 2, then entries of tag, permissions and id. The kernel looks at the rest.
fn is_list(value: &[u8]) -> bool {
    let Some(entries) = value.strip_prefix(&[2, 0, 0, 0]) else { return false };
    let known = |entry: &[u8]| match entry {
        // Named users and groups have ids; the others have none.
        [0x02 | 0x08, 0, _, _, id @ ..] => id.try_into().is_ok_and(|id| u64::from(u32::from_le_bytes(id)) < ID_COUNT),
        [_, 0, ..] => true,
        _ => false,
    };
    entries.len().is_multiple_of(8) && entries.chunks(8).all(known)
}
