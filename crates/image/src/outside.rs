//! Files and folders of the host that a confined server cannot read itself.
//!
//! The monitor's child opens them, after its own check, and sends what is in them. The server receives and unpacks: a stream
//! cannot make the privileged side write anywhere.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sloplet_monitor::{Done, Task, is_confined, perform, task};
use sloplet_policy::Realm;
use sloplet_policy::source::{self, Identity, through};

use crate::copy;
use crate::tree::Tree;

/// Sends a file or folder of the host to a confined server.
pub static READ: Task = Task { name: "read-outside", run: read };

#[derive(Debug, Serialize, Deserialize)]
struct Wanted {
    real: PathBuf,
    /// What was checked; without, whatever is there.
    identity: Option<(u64, u64)>,
    /// Whether it is masked before anybody inside sees it.
    masked: bool,
}

/// What a file or folder is.
#[derive(Debug, Serialize, Deserialize)]
struct Meta {
    is_folder: bool,
    /// Bytes of a file.
    size: u64,
    mode: u32,
    uid: u32,
    gid: u32,
}

/// Whether this process cannot read what is at a path, and has to have it [brought](bring).
pub fn is_out_of_reach(path: &Path) -> bool {
    is_confined() && Realm::get().is_some_and(|realm| realm.check_data(path).is_err())
}

/// Copies a file or folder of the host, by its real path, to a new place in the data folder; `masked` if it is masked before
/// anybody inside sees it. Returns whether it is a folder.
pub fn bring(real: &Path, identity: Option<Identity>, masked: bool, target: &Path) -> io::Result<bool> {
    let identity = identity.map(|identity| (identity.device, identity.inode));
    let wanted = Wanted { real: real.to_owned(), identity, masked };
    let (meta, mut fds) = perform::<Meta>(&READ, &wanted, Vec::new())?;
    let mut stream = File::from(fds.pop().ok_or(rustix::io::Errno::MFILE)?);
    if meta.is_folder {
        fs::create_dir(target)?;
        copy::unpack(io::BufReader::with_capacity(256 << 10, stream), target)?;
        fs::set_permissions(target, fs::Permissions::from_mode(meta.mode))?;
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(target, Some(meta.uid), Some(meta.gid))?;
        }
    } else {
        let copied = io::copy(&mut stream, &mut File::create_new(target)?)?;
        if copied < meta.size {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it could not be read to its end"));
        }
    }
    Ok(meta.is_folder)
}

fn read(input: &[u8], _: Vec<OwnedFd>) -> io::Result<Done> {
    let Wanted { real, identity, masked } = task::input(input)?;
    if let Some(realm) = Realm::get() {
        if masked { realm.check_masked(&real)? } else { realm.check_shown(&real)? }
    }
    let source = source::reopen(&real, identity.map(|(device, inode)| Identity { device, inode }))?;
    let meta = fs::metadata(through(&source))?;
    if !meta.is_dir() && !meta.is_file() {
        return Err(io::Error::other("it is neither a file nor a folder"));
    }
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let told = Meta { is_folder: meta.is_dir(), size: meta.len(), mode: meta.mode(), uid: meta.uid(), gid: meta.gid() };
    let then = move || {
        let mut writer = io::BufWriter::with_capacity(256 << 10, File::from(writer));
        // What is cut short is noticed by whoever reads: an archive has an end, and so has a file by its size.
        let _ = match meta.is_dir() {
            true => Tree::of_open(source).write_tar(writer).map(drop),
            false => File::open(through(&source)).and_then(|mut file| io::copy(&mut file, &mut writer)).map(drop),
        };
    };
    Ok(Done { then: Some(Box::new(then)), fds: vec![reader], ..Done::with(&told)? })
}
