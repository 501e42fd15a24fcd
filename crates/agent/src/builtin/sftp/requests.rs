//! What is asked of files and folders.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, RenameFlags};

use super::attributes::{Attributes, long_name};
use super::handles::{Handle, Handles};
use super::packet::{Fields, Reply};
use super::{DATA, Refusal};

type Answer = Result<(), Refusal>;

/// How a file is to be opened.
mod flag {
    pub const READ: u32 = 1;
    pub const WRITE: u32 = 2;
    pub const APPEND: u32 = 4;
    pub const CREATE: u32 = 8;
    pub const TRUNCATE: u32 = 16;
    pub const EXCLUSIVE: u32 = 32;
}

/// Names that are told at once.
const NAMES: usize = 100;

pub(super) fn open(handles: &mut Handles, reply: &mut Reply, fields: &mut Fields<'_>) -> Answer {
    let (path, flags) = (fields.path()?, fields.number()?);
    let attributes = Attributes::read(fields)?;
    handles.check_room()?;
    let has = |flag: u32| flags & flag != 0;
    let writes = has(flag::WRITE) || has(flag::APPEND);
    let mut options = OpenOptions::new();
    options.read(has(flag::READ) || !writes).write(writes).mode(attributes.mode(0o666).as_raw_mode() & 0o777);
    options.append(has(flag::APPEND)).truncate(has(flag::TRUNCATE) && writes && !has(flag::APPEND));
    // First as a new one: then it is known whether this made it.
    let fresh = match has(flag::CREATE) && writes {
        true => match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !has(flag::EXCLUSIVE) => None,
            result => Some(result?),
        },
        false => None,
    };
    let made = fresh.as_ref().and_then(|_| std::path::absolute(path).ok());
    let file = match fresh {
        Some(file) => file,
        None => options.create(has(flag::CREATE) && writes).open(path)?,
    };
    reply.handle(handles.add(Handle::File { file, append: has(flag::APPEND), made }));
    Ok(())
}

pub(super) fn close(handles: &mut Handles, reply: &mut Reply, fields: &mut Fields<'_>) -> Answer {
    handles.close(fields.bytes()?)?;
    reply.done();
    Ok(())
}

pub(super) fn read(handles: &mut Handles, reply: &mut Reply, fields: &mut Fields<'_>) -> Answer {
    let (handle, offset, length) = (fields.bytes()?, fields.long()?, fields.number()?);
    let file = handles.file(handle)?;
    reply.data((length as usize).min(DATA), |space| file.read_at(space, offset))
}

pub(super) fn write(handles: &mut Handles, reply: &mut Reply, fields: &mut Fields<'_>) -> Answer {
    let (handle, offset, data) = (fields.bytes()?, fields.long()?, fields.bytes()?);
    match handles.get(handle)? {
        Handle::File { file, append: true, .. } => file.write_all(data)?,
        Handle::File { file, .. } => file.write_all_at(data, offset)?,
        Handle::Folder { .. } => return Err(Refusal::NoHandle),
    }
    reply.done();
    Ok(())
}

pub(super) fn stat(reply: &mut Reply, fields: &mut Fields<'_>, follow: bool) -> Answer {
    let path = fields.path()?;
    let metadata = if follow { fs::metadata(path)? } else { fs::symlink_metadata(path)? };
    reply.attributes(&(&metadata).into());
    Ok(())
}

pub(super) fn stat_open(handles: &mut Handles, reply: &mut Reply, fields: &mut Fields<'_>) -> Answer {
    let metadata = match handles.get(fields.bytes()?)? {
        Handle::File { file, .. } => file.metadata()?,
        Handle::Folder { path, .. } => fs::metadata(path)?,
    };
    reply.attributes(&(&metadata).into());
    Ok(())
}

pub(super) fn set(reply: &mut Reply, fields: &mut Fields<'_>, follow: bool) -> Answer {
    let path = fields.path()?;
    let attributes = Attributes::read(fields)?;
    let at = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    if let Some(size) = attributes.size {
        OpenOptions::new().write(true).open(path)?.set_len(size)?;
    }
    if let Some((uid, gid)) = attributes.ids() {
        rustix::fs::chownat(CWD, path, Some(uid), Some(gid), at)?;
    }
    if attributes.permissions.is_some() {
        rustix::fs::chmodat(CWD, path, attributes.mode(0), at)?;
    }
    if let Some(stamps) = attributes.stamps() {
        rustix::fs::utimensat(CWD, path, &stamps, at)?;
    }
    reply.done();
    Ok(())
}

pub(super) fn set_open(handles: &mut Handles, reply: &mut Reply, fields: &mut Fields<'_>) -> Answer {
    let file = handles.file(fields.bytes()?)?;
    let attributes = Attributes::read(fields)?;
    if let Some(size) = attributes.size {
        file.set_len(size)?;
    }
    if let Some((uid, gid)) = attributes.ids() {
        rustix::fs::fchown(file, Some(uid), Some(gid))?;
    }
    if attributes.permissions.is_some() {
        rustix::fs::fchmod(file, attributes.mode(0))?;
    }
    if let Some(stamps) = attributes.stamps() {
        rustix::fs::futimens(file, &stamps)?;
    }
    reply.done();
    Ok(())
}

pub(super) fn open_folder(handles: &mut Handles, reply: &mut Reply, fields: &mut Fields<'_>) -> Answer {
    let path = fields.path()?;
    handles.check_room()?;
    let entries = fs::read_dir(path)?;
    reply.handle(handles.add(Handle::Folder { entries, path: std::path::absolute(path)? }));
    Ok(())
}

pub(super) fn read_folder(handles: &mut Handles, reply: &mut Reply, fields: &mut Fields<'_>) -> Answer {
    let Handle::Folder { entries, .. } = handles.get(fields.bytes()?)? else { return Err(Refusal::NoHandle) };
    let mut found = Vec::new();
    for entry in entries.take(NAMES) {
        let entry = entry?;
        // It may be gone by now.
        if let Ok(metadata) = entry.metadata() {
            found.push((entry.file_name(), metadata));
        }
    }
    if found.is_empty() {
        return Err(Refusal::End);
    }
    reply.names(found.len() as u32);
    for (name, metadata) in found {
        let name = name.as_bytes();
        reply.name(name, &long_name(name, &metadata), &(&metadata).into());
    }
    Ok(())
}

pub(super) fn remove(reply: &mut Reply, fields: &mut Fields<'_>) -> Answer {
    fs::remove_file(fields.path()?)?;
    reply.done();
    Ok(())
}

pub(super) fn make_folder(reply: &mut Reply, fields: &mut Fields<'_>) -> Answer {
    let path = fields.path()?;
    rustix::fs::mkdir(path, Attributes::read(fields)?.mode(0o777))?;
    reply.done();
    Ok(())
}

pub(super) fn remove_folder(reply: &mut Reply, fields: &mut Fields<'_>) -> Answer {
    fs::remove_dir(fields.path()?)?;
    reply.done();
    Ok(())
}

pub(super) fn real_path(reply: &mut Reply, fields: &mut Fields<'_>) -> Answer {
    let path = resolved(fields.path()?)?;
    let name = path.as_os_str().as_bytes();
    reply.names(1);
    reply.name(name, name, &Attributes::default());
    Ok(())
}

/// The path without links; its last name need not exist.
pub(super) fn resolved(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (folder, name) = (path.parent(), path.file_name());
            let (Some(folder), Some(name)) = (folder, name) else { return Err(error) };
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            fs::canonicalize(folder).map(|folder| folder.join(name))
        }
        result => result,
    }
}

/// Renames, unless there is something in the way: that is what version 3 says.
pub(super) fn rename(reply: &mut Reply, fields: &mut Fields<'_>) -> Answer {
    let (from, to) = (fields.path()?, fields.path()?);
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            if fs::symlink_metadata(to).is_ok() {
                return Err(io::Error::from(io::ErrorKind::AlreadyExists).into());
            }
            fs::rename(from, to)?;
        }
        result => result?,
    }
    reply.done();
    Ok(())
}

pub(super) fn read_link(reply: &mut Reply, fields: &mut Fields<'_>) -> Answer {
    let target = fs::read_link(fields.path()?)?;
    let name = target.as_os_str().as_bytes();
    reply.names(1);
    reply.name(name, name, &Attributes::default());
    Ok(())
}

/// The target comes first: the draft says otherwise, but all clients follow OpenSSH.
pub(super) fn link(reply: &mut Reply, fields: &mut Fields<'_>) -> Answer {
    let (target, link) = (OsStr::from_bytes(fields.bytes()?), fields.path()?);
    std::os::unix::fs::symlink(target, link)?;
    reply.done();
    Ok(())
}

/// Waits until what was written is on its disk.
pub(super) fn sync(file: &File) -> io::Result<()> {
    file.sync_all()
}
