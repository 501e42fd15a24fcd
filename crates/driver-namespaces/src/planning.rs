//! From a spec to a plan.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sloplet_engine::{DriverError, Wanted, driver as engine};
use sloplet_image::Image;
use sloplet_policy::addresses::RESOLVER_V4;
use sloplet_policy::bind::VOLUME_IDS;
use sloplet_policy::devices::Shown;
use sloplet_policy::weakness::PIDS_BEYOND;
use sloplet_policy::{Bind, Spec};
use sloplet_spawner::plan::{Bounds, Container, Device, Mount, Place, Plan, PutFile, Runtime, Wall, When};
use sloplet_spawner::protocol::Privilege;

use crate::driver::failed;

/// Open files of one process: what most distributions allow.
pub const OPEN_FILES: u64 = 65_536;

/// Whether what the sandbox writes goes to a file on the host's disk. Memory is faster and is the default, but counts
/// towards the memory limit: where the disk is meant to hold more than that, it must be a disk. Only root can mount one.
pub fn disk_on_file(spec: &Spec, privilege: &Privilege) -> bool {
    *privilege == Privilege::Root && spec.limits.disk_outgrows_memory()
}

/// Bytes of all files that are put into a root: they go to the spawner in one message.
const MAX_FILES: usize = 176 * 1024;

/// The plan.
pub fn plan(
    wanted: Wanted<'_>,
    disk_on_file: bool,
    lasting: bool,
    runtime: Option<Runtime>,
) -> Result<Plan, DriverError> {
    let Wanted { spec, image, egress, .. } = wanted;
    let limits = &spec.limits;
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec().into();
    let default_user = default_user(spec, image);
    let has_kernel = runtime.as_ref().is_some_and(|runtime| !runtime.shares_kernel);
    let claimable = wanted.claimable && runtime.is_none();
    // A kernel of its own has a network of its own, which this one would not hear.
    let ear = wanted.ear && !egress && !has_kernel;
    let container = Container {
        hostname: spec.hostname.clone(),
        layers: image.layers.iter().map(|path| bytes(path)).collect(),
        system: image.binds.iter().map(|bind| bytes(&bind.source)).collect(),
        mounts: spec.shown().map(|bind| mount(bind, has_kernel)).collect::<Result<_, _>>()?,
        disk: limits.disk.0,
        inodes: limits.inodes(),
        shm: limits.memory.0 / 2,
        disk_on_file,
        mounts_owner: numeric_user(&default_user),
        default_user,
        runtime,
        devices: devices(spec),
        aio: spec.aio,
    };
    let bounds = Bounds {
        memory: limits.memory.0,
        cpu_millis: limits.cpus.millis,
        pids: limits.pids,
        open_files: OPEN_FILES,
        lifetime_ms: limits.timeout.0.as_millis().try_into().unwrap_or(u64::MAX),
    };
    let (wall, best_effort) = (Wall::Container(container), spec.best_effort);
    let weaken = spec.weaken.map(str::to_owned);
    Ok(weakened(Plan { bounds, wall, lasting, best_effort, egress, files: files(wanted)?, claimable, ear, weaken }))
}

/// A folder of the host, as the spawner shows it: what it is now, if nobody has settled that before.
pub fn mount(bind: &Bind, has_kernel: bool) -> Result<Mount, DriverError> {
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec().into();
    let bind = bind.settled().map_err(|error| failed(&format!("mount {}", bind.from.display()), error))?;
    Ok(Mount {
        from: bytes(&bind.from),
        to: bytes(&bind.to),
        writable: bind.writable,
        // A kernel of its own makes files as root inside, before it gives them to whom they are for: that one needs an id.
        ids: (bind.volume || (has_kernel && bind.writable && bind.from.is_dir())).then_some(VOLUME_IDS),
        identity: bind.identity.map(|identity| (identity.device, identity.inode)),
        owner: bind.owner,
    })
}

fn devices(spec: &Spec) -> Vec<Device> {
    let device = |shown: &Shown, node| {
        let from = shown.from.as_os_str().as_bytes().to_vec().into();
        Device { from, to: shown.to.as_bytes().to_vec().into(), node }
    };
    let nodes = spec.devices.nodes.iter().map(|shown| device(shown, true));
    nodes.chain(spec.devices.files.iter().map(|shown| device(shown, false))).collect()
}

/// What is put into the root: what names its own machine and, with a way out, finds that, before all else.
fn files(wanted: Wanted<'_>) -> Result<Vec<PutFile>, DriverError> {
    let step = "put files into the sandbox's root";
    let bytes: usize = wanted.files.iter().map(|file| file.content.len()).sum();
    if bytes > MAX_FILES {
        return Err(failed(step, format!("they have {bytes} bytes, and at most {MAX_FILES} can be put")));
    }
    let rooted = |path: &str| path.starts_with('/') && !path.split('/').any(|part| part == "..");
    if let Some((path, _)) = wanted.files.iter().flat_map(|file| &file.places).find(|(path, _)| !rooted(path)) {
        return Err(failed(step, format!("'{path}' is no absolute path without '..'")));
    }
    Ok(own_files(&wanted.spec.hostname, wanted.egress).iter().chain(wanted.files).map(translate).collect())
}

/// What a sandbox needs to find itself by name, as on any Linux, and with a way out also others.
pub fn own_files(hostname: &str, egress: bool) -> Vec<engine::PutFile> {
    let mut files = vec![engine::PutFile::hosts(hostname)];
    if egress {
        // One that does not answer is asked again soon: it is the same machine.
        let resolver = format!("nameserver {RESOLVER_V4}\noptions timeout:2 attempts:2\n");
        files.push(engine::PutFile::new("/etc/resolv.conf", engine::When::Always, resolver));
    }
    files
}

fn translate(file: &engine::PutFile) -> PutFile {
    let place = |(path, when): &(String, engine::When)| {
        let when = match when {
            engine::When::Always => When::Always,
            engine::When::Absent => When::Absent,
            engine::When::Present => When::Present,
        };
        Place { path: path.clone(), when }
    };
    PutFile {
        places: file.places.iter().map(place).collect(),
        content: file.content.clone().into(),
        after: file.after.clone(),
        mode: file.mode,
    }
}

/// The spec's, else the image's wish, else `user`; never root unless that was said.
pub fn default_user(spec: &Spec, image: &Image) -> String {
    let wish = image.config.user.as_deref().filter(|user| !user.is_empty() && !is_root(user));
    let fallback = if has_user(image) { "user" } else { "1000:1000" };
    spec.user.as_deref().or(wish).unwrap_or(fallback).to_owned()
}

fn is_root(user: &str) -> bool {
    matches!(user.split(':').next(), Some("root" | "0"))
}

/// Whether the image knows a `user`. Read from the topmost layer that has the file; symlinks are not followed.
fn has_user(image: &Image) -> bool {
    let path = image.layers.iter().map(|layer| layer.join("etc/passwd"));
    let Some(file) = path.into_iter().find(|path| std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file()))
    else {
        return false;
    };
    std::fs::read(file).is_ok_and(|text| text.split(|byte| *byte == b'\n').any(|line| line.starts_with(b"user:")))
}

fn numeric_user(user: &str) -> u32 {
    match user.split(':').next() {
        Some("root") => 0,
        Some(text) => text.parse().ok().filter(|id| *id < 65_536).unwrap_or(sloplet_spawner::idmap::USER),
        None => sloplet_spawner::idmap::USER,
    }
}

/// The folder of the host that such a test asks for, after all other mounts, and where it is inside.
pub fn host_folder(lacks: impl Fn(&str) -> bool) -> Option<(&'static str, &'static str)> {
    let folders = [
        ("sysfs", "/sys", "/sys"),
        ("host-root", "/", "/mnt/host"),
        ("host-run", "/run", "/run"),
        ("host-shm", "/dev/shm", "/dev/shm"),
    ];
    folders.into_iter().find(|(name, ..)| lacks(name)).map(|(_, path, inside)| (path, inside))
}

/// The plan without the bound, or with the host's folder, that a test of the verifier asks for.
fn weakened(mut plan: Plan) -> Plan {
    let lacks = |name: &str| plan.lacks(name);
    let (pids, memory, cpus) = (lacks("pids"), lacks("memory"), lacks("cpus"));
    let (disk, files, deadline) = (lacks("disk"), lacks("files"), lacks("deadline"));
    let shown = host_folder(lacks);
    let bounds = &mut plan.bounds;
    bounds.pids += if pids { PIDS_BEYOND } else { 0 };
    bounds.memory = if memory { 1 << 42 } else { bounds.memory };
    bounds.cpu_millis = if cpus { 64_000 } else { bounds.cpu_millis };
    bounds.lifetime_ms = if deadline { 30_000 } else { bounds.lifetime_ms };
    if let Wall::Container(container) = &mut plan.wall {
        container.disk = if disk { 1 << 30 } else { container.disk };
        container.inodes = if files || disk { 1 << 20 } else { container.inodes };
        container.shm = if memory { 1 << 30 } else { container.shm };
        if let Some((path, inside)) = shown {
            let bytes = |path: &str| path.as_bytes().to_vec().into();
            container.mounts.push(Mount {
                from: bytes(path),
                to: bytes(inside),
                writable: false,
                ids: None,
                identity: None,
                owner: None,
            });
        }
    }
    plan
}
