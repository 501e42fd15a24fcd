//! Bounded disks on files, for what does not fit into memory.
//!
//! An empty ext4 file system of each size is made once and kept; a sandbox gets a sparse copy of it without a name, which
//! is freed when the last process that could reach it is gone.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, CWD, OFlags, SeekFrom, ftruncate, ioctl_ficlone, linkat, seek};
use rustix::io::Errno;
use sloplet_engine::DriverError;
use sloplet_policy::Limits;

use crate::driver::failed;

/// Opens a disk that there is.
pub fn open_device(device: &Path) -> Result<OwnedFd, DriverError> {
    let opened = OpenOptions::new().read(true).write(true).open(device);
    opened.map(Into::into).map_err(|error| failed(&format!("open the disk {}", device.display()), error))
}

/// An empty disk for these limits that is kept: to be shown, and not to be changed.
pub fn empty(data_dir: &Path, limits: &Limits) -> Result<PathBuf, DriverError> {
    template(&folder(data_dir)?, limits)
}

fn folder(data_dir: &Path) -> Result<PathBuf, DriverError> {
    let dir = data_dir.join("disks");
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.map_err(|error| failed("make the folder of disks", error))?;
    Ok(dir)
}

/// A new disk for these limits.
pub fn provide(data_dir: &Path, limits: &Limits) -> Result<OwnedFd, DriverError> {
    let dir = folder(data_dir)?;
    let template = File::open(template(&dir, limits)?).map_err(|error| failed("open an empty disk", error))?;
    let copy = nameless(&dir)?;
    if ioctl_ficlone(&copy, &template).is_err() {
        copy_sparse(&template, &copy).map_err(|error| failed("copy an empty disk", error))?;
    }
    Ok(copy.into())
}

/// An empty file system of that size, made at the first use.
fn template(dir: &Path, limits: &Limits) -> Result<PathBuf, DriverError> {
    let path = dir.join(format!("ext4-{}-{}", limits.disk.0, limits.inodes()));
    if path.exists() {
        return Ok(path);
    }
    // Without a name until it is whole: whoever is killed while making it leaves nothing.
    let draft = nameless(dir)?;
    format(&draft, limits)?;
    let by_fd = format!("/proc/self/fd/{}", draft.as_raw_fd());
    match linkat(CWD, by_fd, CWD, &path, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) | Err(Errno::EXIST) => Ok(path),
        Err(error) => Err(failed("keep an empty disk", error)),
    }
}

fn nameless(dir: &Path) -> Result<File, DriverError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(OFlags::TMPFILE.bits() as i32);
    options.open(dir).map_err(|error| failed("make a disk", error))
}

fn format(file: &File, limits: &Limits) -> Result<(), DriverError> {
    ftruncate(file, limits.disk.0).map_err(|error| match error {
        Errno::FBIG => failed("make a disk", format!("{} is more than a file can hold here: give less", limits.disk)),
        error => failed("make a disk", error),
    })?;
    let mkfs = find_mkfs().ok_or_else(|| failed("make a disk", "mkfs.ext4 is missing: apt-get install e2fsprogs"))?;
    let output = Command::new(mkfs)
        .args([
            "-q",
            "-F",
            "-m",
            "0",
            "-O",
            "^has_journal,^resize_inode",
            "-E",
            "lazy_itable_init=1,nodiscard,root_owner=0:0",
        ])
        .args(["-N", &limits.inodes().to_string()])
        .arg(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed("start mkfs.ext4", error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed("make a disk", said.lines().last().unwrap_or("mkfs.ext4 failed")))
}

/// A disk that is kept: with a journal, so that it survives a crash of the host.
pub fn make_volume(path: &Path, bytes: u64) -> Result<(), DriverError> {
    let step = "make a volume's disk";
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|error| failed(step, error))?;
    ftruncate(&file, bytes).map_err(|error| failed(step, error))?;
    let mkfs = find_mkfs().ok_or_else(|| failed(step, "mkfs.ext4 is missing: apt-get install e2fsprogs"))?;
    let options = ["-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0"];
    let made = Command::new(&mkfs).args(options).arg(path).stdin(Stdio::null()).output();
    let made = made.map_err(|error| failed("start mkfs.ext4", error))?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr);
        return Err(failed(step, said.lines().last().unwrap_or("mkfs.ext4 failed")));
    }
    // A volume is empty when it is new; without this program it has a folder for what a repair would find.
    let tool = mkfs.with_file_name("debugfs");
    let _ = Command::new(tool).args(["-w", "-R", "rmdir lost+found"]).arg(path).stdin(Stdio::null()).output();
    Ok(())
}

/// `mkfs.ext4`, which lies outside an ordinary user's search path.
pub fn find_mkfs() -> Option<PathBuf> {
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin"]
        .iter()
        .map(|dir| Path::new(dir).join("mkfs.ext4"))
        .find(|path| path.exists())
}

/// Copies the few blocks that an empty file system has.
fn copy_sparse(from: &File, to: &File) -> std::io::Result<()> {
    let length = from.metadata()?.len();
    ftruncate(to, length)?;
    let mut buffer = vec![0; 256 * 1024];
    let mut at = 0;
    loop {
        at = match seek(from, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(()),
            start => start?,
        };
        let end = seek(from, SeekFrom::Hole(at))?;
        while at < end {
            let want = buffer.len().min((end - at) as usize);
            let got = from.read_at(&mut buffer[..want], at)?;
            to.write_all_at(&buffer[..got], at)?;
            at += got as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_disk_is_sparse_private_and_nameless() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { disk: sloplet_policy::ByteSize::gib(4), ..Limits::default() };
        let disk = File::from(provide(dir.path(), &limits).unwrap());
        let meta = disk.metadata().unwrap();
        assert_eq!((meta.len(), meta.nlink()), (4 << 30, 0));
        assert!(meta.blocks() * 512 < 64 << 20, "{} blocks", meta.blocks());
        let mut magic = [0; 2];
        disk.read_exact_at(&mut magic, 1024 + 0x38).unwrap();
        assert_eq!(magic, [0x53, 0xEF], "the superblock of ext4 was copied");
    }
}
