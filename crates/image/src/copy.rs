//! A copy of a directory that others may be changing: nothing outside of it gets in.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::sync_channel;

use crate::tree::{ChunkReader, ChunkWriter, Tree};

/// Copies files, folders and links of an open directory into `target`, an empty one that nobody else can change. No link is
/// followed. Owners are kept if this process is root.
pub fn copy_tree(source: OwnedFd, target: &Path) -> io::Result<()> {
    let tree = Tree::of_open(source);
    let (sender, receiver) = sync_channel(64);
    std::thread::scope(|scope| {
        let packing = scope.spawn(move || tree.write_tar(io::BufWriter::with_capacity(256 << 10, ChunkWriter(sender))));
        let unpacked = unpack(ChunkReader::new(receiver), target);
        match packing.join() {
            // A failed packer ends the stream early: its own error says more than the truncation it caused.
            Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            Err(_) => Err(io::Error::other("packing it failed")),
            Ok(_) => unpacked,
        }
    })
}

/// Unpacks what [`Tree::write_tar`] wrote.
pub(crate) fn unpack(tar: impl io::Read, target: &Path) -> io::Result<()> {
    let mut archive = tar::Archive::new(tar);
    archive.set_preserve_permissions(true);
    archive.set_preserve_mtime(true);
    archive.set_preserve_ownerships(rustix::process::geteuid().is_root());
    let mut folders = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            // Its permissions and time come last: they may forbid to put anything into it.
            std::fs::create_dir(target.join(entry.path()?))?;
            folders.push(entry);
        } else if kind.is_file() || kind.is_symlink() || kind.is_hard_link() {
            entry.unpack_in(target)?;
        }
    }
    // The innermost first.
    folders.into_iter().rev().try_for_each(|mut folder| folder.unpack_in(target).map(drop))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_copy_has_all_that_is_there_and_nothing_that_links_lead_to() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("closed/deep")).unwrap();
        fs::create_dir(&to).unwrap();
        fs::write(from.join("closed/deep/file"), "content").unwrap();
        fs::hard_link(from.join("closed/deep/file"), from.join("same")).unwrap();
        symlink("/etc", from.join("link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, from.join("pipe"), rustix::fs::Mode::RWXU).unwrap();
        fs::set_permissions(from.join("closed"), Permissions::from_mode(0o555)).unwrap();
        let open = rustix::fs::open(&from, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        // Whatever takes its place: what is open is copied.
        fs::rename(&from, dir.path().join("moved")).unwrap();
        symlink("/etc", &from).unwrap();
        copy_tree(open, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("closed/deep/file")).unwrap(), "content");
        assert_eq!(fs::metadata(to.join("same")).unwrap().nlink(), 2);
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("/etc"));
        assert_eq!(fs::metadata(to.join("closed")).unwrap().mode() & 0o777, 0o555);
        assert!(!to.join("pipe").exists() && !to.join("passwd").exists());
        fs::set_permissions(to.join("closed"), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(dir.path().join("moved/closed"), Permissions::from_mode(0o755)).unwrap();
    }
}
