//! Extensions of OpenSSH's that its client uses.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfs;

use super::attributes::Attributes;
use super::handles::{Handles, MOST};
use super::packet::{Fields, Reply};
use super::{DATA, MESSAGE, Refusal, requests};

/// What is told at the start.
pub(super) const OFFERED: [(&str, &str); 8] = [
    ("posix-rename@openssh.com", "1"),
    ("statvfs@openssh.com", "2"),
    ("fstatvfs@openssh.com", "2"),
    ("hardlink@openssh.com", "1"),
    ("fsync@openssh.com", "1"),
    ("lsetstat@openssh.com", "1"),
    ("limits@openssh.com", "1"),
    ("expand-path@openssh.com", "1"),
];

pub(super) fn answer(
    home: &Path,
    handles: &mut Handles,
    reply: &mut Reply,
    fields: &mut Fields<'_>,
) -> Result<(), Refusal> {
    match fields.bytes()? {
        b"posix-rename@openssh.com" => {
            let (from, to) = (fields.path()?, fields.path()?);
            fs::rename(from, to)?;
            reply.done();
        }
        b"hardlink@openssh.com" => {
            let (from, to) = (fields.path()?, fields.path()?);
            fs::hard_link(from, to)?;
            reply.done();
        }
        b"fsync@openssh.com" => {
            requests::sync(handles.file(fields.bytes()?)?)?;
            reply.done();
        }
        b"lsetstat@openssh.com" => return requests::set(reply, fields, false),
        b"statvfs@openssh.com" => space(reply, &rustix::fs::statvfs(fields.path()?)?),
        b"fstatvfs@openssh.com" => space(reply, &rustix::fs::fstatvfs(handles.file(fields.bytes()?)?)?),
        b"limits@openssh.com" => {
            reply.extended();
            for limit in [MESSAGE, DATA, DATA, MOST] {
                reply.long(limit as u64);
            }
        }
        b"expand-path@openssh.com" => {
            let path = fields.bytes()?;
            // Other people's homes are not looked up.
            let path = match path.strip_prefix(b"~") {
                Some(rest) if rest.is_empty() || rest.starts_with(b"/") => {
                    home.join(OsStr::from_bytes(rest.strip_prefix(b"/").unwrap_or(rest)))
                }
                Some(_) => return Err(std::io::Error::from(std::io::ErrorKind::NotFound).into()),
                None => PathBuf::from(OsStr::from_bytes(path)),
            };
            let name = requests::resolved(&path)?;
            let name = name.as_os_str().as_bytes();
            reply.names(1);
            reply.name(name, name, &Attributes::default());
        }
        _ => return Err(Refusal::Unknown),
    }
    Ok(())
}

/// How much room a file system has.
fn space(reply: &mut Reply, space: &StatVfs) {
    reply.extended();
    let flags = space.f_flag.bits() & 0b11;
    for number in [
        space.f_bsize,
        space.f_frsize,
        space.f_blocks,
        space.f_bfree,
        space.f_bavail,
        space.f_files,
        space.f_ffree,
        space.f_favail,
        space.f_fsid,
        flags,
        space.f_namemax,
    ] {
        reply.long(number);
    }
}
