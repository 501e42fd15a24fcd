//! Where an entry goes: below the folder, whatever its name says and whoever changes things meanwhile.

use std::ffi::CString;

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sloplet_wire::{ErrorCode, Failure};

use super::{MAX_PATH, Unpack};
use crate::failure::{self, fail, shown};
use crate::files::resolve::open_at;

impl Unpack {
    /// The folder (made if missing) and name of an entry.
    pub(super) fn place(&mut self, components: &[&[u8]]) -> Result<(&OwnedFd, CString), Failure> {
        let Some((name, folders)) = components.split_last() else {
            return Err(fail(ErrorCode::Invalid, "an entry of the archive has no name"));
        };
        let name = CString::new(*name).map_err(|_| fail(ErrorCode::Invalid, "a name contains a NUL byte"))?;
        if folders.is_empty() {
            return Ok((&self.base, name));
        }
        let path = folders.join(&b'/');
        let known = matches!(&self.parent, Some((known, _)) if *known == path);
        if !known {
            self.parent = Some((path, self.open_folders(folders)?));
        }
        match &self.parent {
            Some((_, folder)) => Ok((folder, name)),
            None => Err(fail(ErrorCode::Io, "a folder vanished")),
        }
    }

    fn open_folders(&self, folders: &[&[u8]]) -> Result<OwnedFd, Failure> {
        const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
        let open =
            |depth: usize| open_at(&self.base, &folders[..depth].join(&b'/'), FOLDER, Mode::empty(), self.resolve);
        let describe = |error, depth: usize| {
            failure::errno(error, format_args!("folder {}", shown(&folders[..depth].join(&b'/'))))
        };
        // Deepest first: mostly it is there.
        let mut depth = folders.len();
        let mut folder = loop {
            match open(depth) {
                Ok(folder) => break Some(folder),
                Err(Errno::NOENT) if depth > 1 => depth -= 1,
                Err(Errno::NOENT) => {
                    depth = 0;
                    break None;
                }
                Err(error) => return Err(describe(error, depth)),
            }
        };
        while depth < folders.len() {
            let parent = folder.as_ref().unwrap_or(&self.base);
            match rustix::fs::mkdirat(parent, folders[depth], Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(describe(error, depth + 1)),
            }
            depth += 1;
            folder = Some(open(depth).map_err(|error| describe(error, depth))?);
        }
        folder.ok_or_else(|| fail(ErrorCode::Io, "a folder vanished"))
    }
}

/// The names a path consists of; refuses those that lead elsewhere.
pub(super) fn components(path: &[u8]) -> Result<Vec<&[u8]>, Failure> {
    let refuse = |why: &str| fail(ErrorCode::Denied, format!("archive entry {} {why}", shown(path)));
    if path.starts_with(b"/") {
        return Err(refuse("is absolute"));
    }
    if path.len() > MAX_PATH || path.contains(&0) {
        return Err(refuse("is too long or contains a NUL byte"));
    }
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    if names.contains(&&b".."[..]) {
        return Err(refuse("leads out of the folder"));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        assert_eq!(components(b"./a//b/.").unwrap(), [b"a", b"b"]);
        assert!(components(b"./").unwrap().is_empty());
        for bad in [&b"/etc/passwd"[..], b"../x", b"a/../../x", b"a/..", b"a\0b"] {
            assert_eq!(components(bad).unwrap_err().code, ErrorCode::Denied, "{bad:?}");
        }
        assert!(components(&[b'x'; 5000]).is_err());
    }
}
