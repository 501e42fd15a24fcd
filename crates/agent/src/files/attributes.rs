//! Extended attributes of the `user.` namespace.

use std::ffi::{CStr, CString};

use rustix::fd::OwnedFd;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use sloplet_wire::Attribute;

/// The namespace that anybody may write.
const PREFIX: &[u8] = b"user.";

/// Read of all names and of all values together; more is not told.
const MAX_BYTES: usize = 16 * 1024;

/// A file as the agent itself finds it.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// By the magic path of its descriptor.
    Open(&'a str),
    /// By a name in a folder; a symlink is not followed.
    Named(&'a [u8]),
}

impl Place<'_> {
    fn list(self, names: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Open(path) => rustix::fs::listxattr(path, names),
            Self::Named(path) => rustix::fs::llistxattr(path, names),
        }
    }

    fn get(self, name: &CStr, value: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Open(path) => rustix::fs::getxattr(path, name, value),
            Self::Named(path) => rustix::fs::lgetxattr(path, name, value),
        }
    }
}

/// Those of a file; none where there can be none.
pub(crate) fn of(place: Place<'_>) -> Vec<Attribute> {
    // Most files have none: that is one call.
    let mut names = vec![0; 256];
    let len = loop {
        match place.list(&mut names) {
            Ok(len) => break len,
            Err(Errno::RANGE) if names.len() < MAX_BYTES => names.resize(MAX_BYTES, 0),
            Err(_) => return Vec::new(),
        }
    };
    let (mut found, mut left) = (Vec::new(), MAX_BYTES);
    for name in names[..len].split(|byte| *byte == 0) {
        let (Some(short), Ok(whole)) = (name.strip_prefix(PREFIX), CString::new(name)) else { continue };
        // A buffer of no length would ask for the size.
        let mut value = vec![0; left.max(1)];
        let Ok(len) = place.get(&whole, &mut value) else { continue };
        value.truncate(len);
        left = left.saturating_sub(len);
        found.push(Attribute { name: short.to_vec().into(), value: value.into() });
    }
    found
}

/// Gives them to a file.
pub(crate) fn set(file: &OwnedFd, attributes: &[Attribute]) -> Result<(), Errno> {
    for attribute in attributes {
        let name = CString::new([PREFIX, &attribute.name].concat()).map_err(|_| Errno::INVAL)?;
        match rustix::fs::fsetxattr(file, &name, &attribute.value, XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP) => return Ok(()),
            result => result?,
        }
    }
    Ok(())
}
