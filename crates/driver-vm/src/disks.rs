//! Disks of a machine: one for each layer of its image, made once, read-only; an empty one for what it writes.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sloplet_engine::DriverError;
use sloplet_engine::driver::Unsupported;
use sloplet_image::Image;
use sloplet_image::outside;
use sloplet_policy::source::through;
use sloplet_policy::{Bind, Spec};

use crate::{cache, failed};

/// Devices that a machine has room for, besides those of its own.
const MOST: usize = 16;

/// The disks of an image and of what is shown besides.
#[derive(Debug, Default)]
pub struct Disks {
    /// Layers, topmost first.
    pub layers: Vec<PathBuf>,
    /// Folders that the image takes from the host.
    pub system: Vec<PathBuf>,
    /// What is mounted by the user's wish; for a single file, its name on the disk.
    pub mounts: Vec<(PathBuf, Option<String>)>,
    /// Folders to be removed when the machine is up.
    pub passing: Vec<tempfile::TempDir>,
}

/// Makes what is missing. Takes as long as copying all files once, the first time.
pub fn provide(data_dir: &Path, image: &Image, spec: &Spec) -> Result<Disks, DriverError> {
    if image.layers.len() + image.binds.len() + spec.mounts.len() > MOST {
        let detail = format!("a virtual machine has room for {MOST} layers, folders of the host and mounts together");
        return Err(failed("give the machine its disks", detail));
    }
    if spec.mounts.iter().any(|bind| bind.writable || bind.volume) {
        let why = "show a folder that is written to: use a read-only mount, and 'sloplet cp' for what comes out";
        return Err(DriverError::Unsupported(Unsupported(why)));
    }
    let mut disks = Disks::default();
    for layer in &image.layers {
        disks.layers.push(kept(data_dir, layer, &cache::stamp(layer), false)?);
    }
    for bind in &image.binds {
        disks.system.push(kept(data_dir, &bind.source, &age_of(&bind.source), true)?);
    }
    for bind in &spec.mounts {
        let dir = tempfile::tempdir_in(data_dir.join(cache::FOLDER)).map_err(|error| failed("make a disk", error))?;
        let file = dir.path().join(DISK);
        // mkfs.erofs goes by paths, and follows links that others put in their place meanwhile: it gets a copy.
        let copy = dir.path().join("copy");
        let copied = copy_mount(bind, &copy).map_err(|error| failed(&format!("copy {}", bind.from.display()), error));
        let name = copied?.then(|| "file".to_owned());
        make(&copy, &file)?;
        fs::remove_dir_all(&copy).map_err(|error| failed("make a disk", error))?;
        disks.mounts.push((file, name));
        disks.passing.push(dir);
    }
    Ok(disks)
}

/// Copies exactly what was checked; returns whether it is a single file.
fn copy_mount(bind: &Bind, copy: &Path) -> io::Result<bool> {
    if outside::is_out_of_reach(&bind.from) {
        let brought = copy.with_extension("brought");
        let is_folder = outside::bring(&bind.from, bind.identity, false, &brought)?;
        match is_folder {
            true => fs::rename(&brought, copy)?,
            false => fs::create_dir(copy).and_then(|()| fs::rename(&brought, copy.join("file")))?,
        }
        return Ok(!is_folder);
    }
    let source = bind.open()?;
    let through = through(&source);
    let meta = fs::metadata(&through)?;
    fs::create_dir(copy)?;
    if !meta.is_dir() {
        return fs::copy(&through, copy.join("file")).map(|_| true);
    }
    sloplet_image::copy_tree(source, copy)?;
    fs::set_permissions(copy, meta.permissions())?;
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(copy, Some(meta.uid()), Some(meta.gid()))?;
    }
    Ok(false)
}

/// The name of a disk in its folder.
const DISK: &str = "disk";

/// The disk of a folder that does not change while its stamp is the same.
fn kept(data_dir: &Path, source: &Path, stamp: &str, replace: bool) -> Result<PathBuf, DriverError> {
    let path = source.display().to_string();
    let owner = if rustix::process::geteuid().is_root() { "root" } else { "user" };
    let stem = cache::key(&[&path, owner]);
    let name = format!("disk-{stem}-{}", cache::key(&[stamp]));
    let folder = cache::folder(data_dir, &name, |dir| {
        make(source, &dir.join(DISK))?;
        fs::write(dir.join(cache::SOURCE), &path).map_err(|error| failed("keep a disk", error))
    })?;
    if replace {
        // Disks of earlier states of the host. Whoever still uses one has it open.
        for entry in fs::read_dir(data_dir.join(cache::FOLDER)).into_iter().flatten().flatten() {
            let other = entry.file_name().to_string_lossy().into_owned();
            if other.starts_with(&format!("disk-{stem}-")) && other != name && !other.ends_with(".lock") {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
    Ok(folder.join(DISK))
}

/// Packs a folder into a read-only file system.
fn make(source: &Path, target: &Path) -> Result<(), DriverError> {
    let step = format!("make a disk of {}", source.display());
    let mut command = Command::new("mkfs.erofs");
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    if !rustix::process::geteuid().is_root() {
        // An ordinary user's images belong to that user, and to root inside.
        command.arg("--all-root");
    }
    let output =
        command.arg("-d0").arg(target).arg(source).stdin(Stdio::null()).output().map_err(|error| {
            match error.kind() {
                std::io::ErrorKind::NotFound => failed(&step, "mkfs.erofs is missing: apt-get install erofs-utils"),
                _ => failed(&step, error),
            }
        })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(&step, said.lines().last().unwrap_or("mkfs.erofs failed")))
}

/// What changes when something is installed on the host: the age of its package database and of the folders that programs
/// are put into.
fn age_of(source: &Path) -> String {
    let below = ["", "bin", "sbin", "lib", "share", "local", "local/bin", "local/lib", "lib/x86_64-linux-gnu"];
    let databases =
        ["/var/lib/dpkg/status", "/var/lib/rpm/rpmdb.sqlite", "/var/lib/pacman/local", "/lib/apk/db/installed"];
    let folders = below.iter().map(|name| cache::stamp(&source.join(name)));
    folders.chain(databases.iter().map(|path| cache::stamp(Path::new(path)))).collect::<Vec<_>>().join(" ")
}
