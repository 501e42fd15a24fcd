//! What tells a machine from the one that it was saved from: the files in which the host says who it is, its boot id, its name.
//!
//! They are changed where they are: files of the spawner's, each mounted read-only at its place in the sandbox. What is in the
//! sandbox's root is hostile: only what is such a mount is written to.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags, fstatfs, ftruncate, open, openat2, statx};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sloplet_sys::mount::{Attributes, clear_attributes, set_attributes};

use super::keeper::translate;
use crate::talk::PutFile;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What `statfs` says of those file systems that the spawner's files can be on: ext4, and one in memory.
const STAGES: [i64; 2] = [0xef53, 0x0102_1994];

/// Gives the sandbox with this first process a name and files, in place of `old` ones. Takes a thread of its own into the
/// sandbox's namespaces.
pub fn renew(pid: i32, hostname: &str, old: &[PutFile], new: &[PutFile]) -> io::Result<()> {
    let space = |name: &str| open(format!("/proc/{pid}/ns/{name}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let (names, mounts) = (space("uts")?, space("mnt")?);
    let root = open(format!("/proc/{pid}/root"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let changes = changes(old, new)?;
    let hostname = hostname.to_owned();
    let thread = std::thread::spawn(move || {
        sloplet_sys::clone::leave_common_folders()?;
        move_into_link_name_space(names.as_fd(), Some(LinkNameSpaceType::HostNameAndNISDomainName))?;
        rustix::system::sethostname(hostname.as_bytes())?;
        move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?;
        let mut random = [0; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let boot_id = sloplet_spawner::container::procfs::uuid(random);
        rewrite(&root, BOOT_ID, |_| boot_id.clone().into_bytes())?;
        for (path, before, after) in &changes {
            // What comes before it is the image's.
            rewrite(&root, path, |content| {
                let kept = content.strip_suffix(&before[..]).unwrap_or_default();
                [kept, after].concat()
            })?;
        }
        Ok(())
    });
    thread.join().map_err(|_| io::Error::other("the thread ended early"))?
}

/// A place, what was put there, and what is to be there.
type Change = (String, Vec<u8>, Vec<u8>);

fn changes(old: &[PutFile], new: &[PutFile]) -> io::Result<Vec<Change>> {
    let mut changes = Vec::new();
    for (before, after) in old.iter().zip(new).filter(|(before, after)| before != after) {
        let (before, after) = (translate(before.clone())?, translate(after.clone())?);
        if before.places != after.places {
            return Err(io::Error::other("files of another kind than those of the saved machine"));
        }
        let places = after.places.iter().map(|(path, _)| (path.clone(), before.content.clone(), after.content.clone()));
        changes.extend(places);
    }
    match old.len() == new.len() {
        true => Ok(changes),
        false => Err(io::Error::other("other files than those of the saved machine")),
    }
}

/// Changes a file of ours. Nothing happens where there is none.
fn rewrite(root: &OwnedFd, path: &str, change: impl FnOnce(&[u8]) -> Vec<u8>) -> io::Result<()> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve);
    let Ok(place) = found else { return Ok(()) };
    if !is_ours(&place)? {
        return Ok(());
    }
    let reach = |flags| openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve);
    let mut content = Vec::new();
    std::io::Read::read_to_end(&mut std::fs::File::from(reach(OFlags::RDONLY)?), &mut content)?;
    clear_attributes(place.as_fd(), Attributes::READ_ONLY)?;
    let written = reach(OFlags::WRONLY).map_err(io::Error::from).and_then(|file| {
        ftruncate(&file, 0)?;
        std::io::Write::write_all(&mut std::fs::File::from(file), &change(&content))
    });
    set_attributes(place.as_fd(), Attributes::READ_ONLY, false, None)?;
    written
}

/// Whether this is a plain file that is the root of a mount: nobody inside can make one.
fn is_ours(place: &OwnedFd) -> io::Result<bool> {
    let told = statx(place, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE)?;
    let is_root = told.stx_attributes.contains(rustix::fs::StatxAttributes::MOUNT_ROOT);
    let is_file = rustix::fs::FileType::from_raw_mode(told.stx_mode.into()).is_file();
    Ok(is_root && is_file && STAGES.contains(&(fstatfs(place)?.f_type as i64)))
}
