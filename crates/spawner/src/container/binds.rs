//! Layers and mounts: opened by the spawner, attached by the child.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use minicbor::bytes::ByteVec;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, fstat};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use sloplet_policy::Realm;
use sloplet_policy::source::{find, through};
use sloplet_sys::clone::SingleThreaded;
use sloplet_sys::mount::{Attributes, set_attributes};

use super::devices::{self, clone_open, clone_tree};
use super::procfs;
use super::root::{attach, make_place};
use crate::idmap;
use crate::lease::Lease;
use crate::plan::{Container, Device, Mount, Plan, Runtime, Wall};
use crate::protocol::{During, Privilege, Problem};

/// What the child needs and cannot open itself: its user ids reach none of the host's folders.
#[derive(Debug)]
pub struct Materials {
    /// The prepared `/dev`.
    pub devices: OwnedFd,
    /// What covers parts of `/proc`.
    pub masks: OwnedFd,
    /// A disk for what the sandbox writes; memory otherwise.
    pub disk: Option<OwnedFd>,
    /// Layers of the root, topmost first.
    pub layers: Vec<OwnedFd>,
    /// Host folders of the image.
    pub system: Vec<OwnedFd>,
    /// What goes with devices.
    pub shown: Vec<OwnedFd>,
    /// Host folders of the user.
    pub mounts: Vec<OwnedFd>,
    /// The programs of a runtime and of the agent behind it, and its libraries.
    pub runtime: Vec<OwnedFd>,
}

/// Where the spawner prepared its templates.
#[derive(Debug, Clone, Copy)]
pub struct Templates<'a> {
    /// `/dev`.
    pub devices: &'a Path,
    /// Masks of `/proc`.
    pub masks: &'a Path,
}

impl Materials {
    /// Opens everything. `namespace` is the child's user namespace.
    pub fn open(
        thread: &SingleThreaded,
        whole: &Plan,
        privilege: &Privilege,
        templates: Templates<'_>,
        lease: Option<&Lease>,
        namespace: BorrowedFd<'_>,
        image: Option<&OwnedFd>,
    ) -> Result<Self, Problem> {
        let Wall::Container(plan) = &whole.wall else {
            return Err(Problem::plain("start", "this kind of wall has no root of its own"));
        };
        let shift = (*privilege == Privilege::Root).then_some(namespace);
        let lacks: Lacks<'_> = &|protection| whole.lacks(protection);
        let layers = plan.layers.iter().map(|path| open_layer(host_path(path), shift)).collect::<Result<_, _>>()?;
        let system = plan.system.iter().map(|path| open_system(host_path(path), lacks)).collect::<Result<_, _>>()?;
        let owner = lease.map(|lease| (lease.first_id(), plan.mounts_owner));
        let mounts =
            plan.mounts.iter().map(|mount| open_mount(thread, mount, owner, lacks)).collect::<Result<_, _>>()?;
        let disk = image.map(|file| mount_disk(file, shift)).transpose()?;
        let devices = if whole.lacks("devices") { Path::new("/dev") } else { templates.devices };
        let nodes: Vec<&Device> = plan.devices.iter().filter(|device| device.node).collect();
        let devices = match nodes.is_empty() {
            true => devices::open_copy(devices, privilege)?,
            false => devices::open_own(templates.devices, privilege, &nodes)?,
        };
        let shown = plan.devices.iter().filter(|device| !device.node);
        let shown = shown.map(|device| open_system(host_path(&device.from), lacks)).collect::<Result<_, _>>()?;
        let programs = plan.runtime.iter().flat_map(Runtime::programs);
        let runtime = programs.map(|path| open_system(host_path(path), lacks)).collect::<Result<_, _>>()?;
        Ok(Self { devices, masks: procfs::open_copy(templates.masks)?, disk, layers, system, shown, mounts, runtime })
    }

    /// To be passed to the child.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let many = [&self.layers, &self.system, &self.shown, &self.mounts, &self.runtime]
            .into_iter()
            .flatten()
            .map(AsFd::as_fd);
        [self.devices.as_fd(), self.masks.as_fd()]
            .into_iter()
            .chain(self.disk.as_ref().map(AsFd::as_fd))
            .chain(many)
            .collect()
    }

    /// As received; the plan says how many of each there are.
    pub fn from_fds(plan: &Container, fds: Vec<OwnedFd>) -> Result<Self, Problem> {
        let mut fds = fds.into_iter();
        let mut next =
            || fds.next().ok_or_else(|| std::io::Error::other("too few descriptors")).during("receive mounts");
        let devices = next()?;
        let masks = next()?;
        let disk = plan.disk_on_file.then(&mut next).transpose()?;
        let mut take = |count: usize| (0..count).map(|_| next()).collect::<Result<Vec<_>, _>>();
        let (layers, system) = (take(plan.layers.len())?, take(plan.system.len())?);
        let shown = take(plan.devices.iter().filter(|device| !device.node).count())?;
        let mounts = take(plan.mounts.len())?;
        let runtime = take(plan.runtime.iter().flat_map(Runtime::programs).count())?;
        Ok(Self { devices, masks, disk, layers, system, shown, mounts, runtime })
    }
}

/// Says which protections a test has taken away.
pub type Lacks<'a> = &'a dyn Fn(&str) -> bool;

fn host_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// A folder of the host without anything mounted below it. For a confined server it must be one that the server may have.
fn clone_checked(path: &Path, check: fn(&Realm, &Path) -> std::io::Result<()>) -> Result<OwnedFd, Problem> {
    let Some(realm) = Realm::get() else { return clone_tree(path, false) };
    let step = format!("open {}", path.display());
    let (found, real) = find(path).during(&step)?;
    check(realm, &real).during(&step)?;
    clone_open(&found).during(&step)
}

/// A layer, read-only; its owners are shifted into the sandbox's range.
fn open_layer(path: &Path, shift: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Problem> {
    let layer = clone_checked(path, Realm::check_data)?;
    let attributes = Attributes::READ_ONLY | Attributes::NO_DEV;
    if let Err(error) = set_attributes(layer.as_fd(), attributes, false, shift) {
        let step = format!("shift the owners of {}", path.display());
        let mut problem = Problem::new(step, error);
        problem
            .detail
            .push_str(" (id-mapped mounts need Linux 5.19 and ext4, xfs or btrfs: choose --data on such a disk)");
        return Err(problem);
    }
    Ok(layer)
}

/// A system folder of the host, read-only, without anything mounted below it.
fn open_system(path: &Path, lacks: Lacks<'_>) -> Result<OwnedFd, Problem> {
    let tree = clone_checked(path, Realm::check_system)?;
    let attributes = flags(true, lacks);
    set_attributes(tree.as_fd(), attributes, false, None).during(&format!("make {} read-only", path.display()))?;
    Ok(tree)
}

/// A folder the user wants shown. As root, its owner becomes the sandbox's user, so that what is written inside belongs
/// to that owner outside, and nothing of anybody else's can be changed. In a volume others inside have ids, too. `owner` is
/// the first of the sandbox's ids, and who inside owns what is shown.
pub fn open_mount(
    thread: &SingleThreaded,
    mount: &Mount,
    owner: Option<(u32, u32)>,
    lacks: Lacks<'_>,
) -> Result<OwnedFd, Problem> {
    let path = host_path(&mount.from);
    let step = format!("mount {}", path.display());
    // No link on this path is followed, so what is checked is what is opened.
    if let Some(realm) = Realm::get().filter(|_| !lacks("protected-paths")) {
        realm.check_shown(path).during(&step)?;
    }
    let source = mount.open()?;
    let is_file = FileType::from_raw_mode(fstat(&source).during(&step)?.st_mode) == FileType::RegularFile;
    let tree = match mount.ids.is_some() && is_file {
        true => mount_volume(&source, path, mount.writable)?,
        false => clone_open(&source).during(&step)?,
    };
    let attributes = flags(!mount.writable, lacks);
    let shift = match owner {
        Some((first, owner)) => {
            let stat = fstat(&tree).during(&step)?;
            let (user, group) = mount.owner.unwrap_or((stat.st_uid, stat.st_gid));
            let lines = |own| idmap::for_mount(own, owner, first, mount.ids);
            Some(idmap::mapping_only(thread, &lines(user), &lines(group))?)
        }
        None => None,
    };
    match set_attributes(tree.as_fd(), attributes, false, shift.as_ref().map(AsFd::as_fd)) {
        // A file system that knows no id mapping can still be shown read-only, for what everybody may read.
        Err(error) if shift.is_some() && !mount.writable && error.raw_os_error() == Some(22) => {
            set_attributes(tree.as_fd(), attributes, false, None).during(&step)?;
        }
        result => result.during(&step)?,
    }
    Ok(tree)
}

/// Mounts the disk that a volume is. One who writes, or many who read: the kernel must never have it twice otherwise. The
/// lock on the file is the loop device's, so it lasts as long as anybody has the disk, also while a dead sandbox's is being
/// written back; that is waited for.
fn mount_volume(source: &OwnedFd, path: &Path, writable: bool) -> Result<OwnedFd, Problem> {
    let step = format!("mount the volume {}", path.display());
    let file = rustix::fs::open(through(source), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).during(&step)?;
    let lock = match writable {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    };
    let mut tries = 0;
    while let Err(error) = flock(&file, lock) {
        tries += 1;
        if error != Errno::WOULDBLOCK || tries > 300 {
            return Err(Problem::new(step, error));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let (_device, device) = sloplet_sys::loopdev::attach(&file).during(&step)?;
    let mut options = vec![("source", device.display().to_string())];
    if !writable {
        options.push(("ro", String::new()));
    }
    super::root::new_filesystem("ext4", &options, MountAttrFlags::empty())
}

/// What holds for all that is shown of the host.
fn flags(read_only: bool, lacks: Lacks<'_>) -> Attributes {
    let wanted = [
        (read_only && !lacks("read-only-mounts"), Attributes::READ_ONLY),
        (!lacks("nosuid"), Attributes::NO_SUID),
        (!lacks("nodev"), Attributes::NO_DEV),
    ];
    wanted.into_iter().filter(|(on, _)| *on).fold(Attributes::default(), |all, (_, flag)| all | flag)
}

/// Mounts an image file (it has no name any more: it is freed with the sandbox's last process), or a disk of the machine.
fn mount_disk(image: &OwnedFd, shift: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Problem> {
    let step = "mount the sandbox's disk";
    let stat = fstat(image).during(step)?;
    let attached = match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => None,
        _ => Some(sloplet_sys::loopdev::attach(image).during(step)?),
    };
    let source = match &attached {
        Some((_, path)) => path.display().to_string(),
        None => format!("/proc/self/fd/{}", image.as_raw_fd()),
    };
    let options = [("source", source)];
    let disk = super::root::new_filesystem("ext4", &options, MountAttrFlags::empty())?;
    set_attributes(disk.as_fd(), Attributes::NO_DEV, false, shift).during(step)?;
    Ok(disk)
}

/// Attaches system folders and mounts at their places in the new root.
pub fn attach_all(root: &OwnedFd, plan: &Container, system: Vec<OwnedFd>, mounts: Vec<OwnedFd>) -> Result<(), Problem> {
    attach_system(root, plan, system)?;
    attach_mounts(root, &plan.mounts, mounts)
}

/// Attaches what the user wants shown.
pub fn attach_mounts(root: &OwnedFd, mounts: &[Mount], trees: Vec<OwnedFd>) -> Result<(), Problem> {
    attach_each(root, mounts.iter().map(|mount| &mount.to).zip(trees))
}

/// Attaches what goes with devices.
pub fn attach_shown(root: &OwnedFd, plan: &Container, shown: Vec<OwnedFd>) -> Result<(), Problem> {
    let files = plan.devices.iter().filter(|device| !device.node);
    attach_each(root, files.map(|device| &device.to).zip(shown))
}

/// Attaches system folders only.
pub fn attach_system(root: &OwnedFd, plan: &Container, system: Vec<OwnedFd>) -> Result<(), Problem> {
    attach_each(root, plan.system.iter().zip(system))
}

fn attach_each<'a>(root: &OwnedFd, trees: impl Iterator<Item = (&'a ByteVec, OwnedFd)>) -> Result<(), Problem> {
    for (target, tree) in trees {
        let name = String::from_utf8_lossy(target);
        let is_dir = FileType::from_raw_mode(fstat(&tree).during("look at a mount")?.st_mode) == FileType::Directory;
        attach(tree, make_place(root.as_fd(), &name, is_dir)?.as_fd(), &name)?;
    }
    Ok(())
}
