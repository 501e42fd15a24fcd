//! Mounts of the guest.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount, mount_move};

use crate::modules;

/// Where the module that drives disks is put away.
const DISKS_DRIVER: &str = "/run/disks.ko";

/// The module that drives disks. It is loaded when they are needed: a machine that was booted before it was known what for
/// must not have looked at any.
#[derive(Debug)]
pub struct DisksDriver(Vec<u8>);

impl DisksDriver {
    /// Keeps it where another process of this program finds it.
    pub fn put_away(self) -> io::Result<()> {
        fs::write(DISKS_DRIVER, self.0)
    }

    /// What another process has put away.
    pub fn found() -> Option<Self> {
        fs::read(DISKS_DRIVER).ok().map(Self)
    }

    /// Loads it.
    pub fn load(self) -> io::Result<()> {
        insert(&self.0).map_err(|error| io::Error::other(format!("load what drives disks: {error}")))
    }
}

/// The file systems that everything needs, the modules, and a root that can be left: the kernel's first one cannot. Returns the
/// module that is left to be loaded, unless it is part of the kernel.
pub fn settle() -> io::Result<Option<DisksDriver>> {
    let none = MountFlags::empty();
    let at = |what: &'static str| move |error: rustix::io::Errno| io::Error::other(format!("{what}: {error}"));
    mount("proc", "/proc", "proc", none, None).map_err(at("mount /proc"))?;
    mount("sys", "/sys", "sysfs", none, None).map_err(at("mount /sys"))?;
    mount("dev", "/dev", "devtmpfs", none, None).map_err(at("mount /dev"))?;
    let disks = load_modules()?;
    mount("root", "/root", "tmpfs", none, Some(c"mode=0755")).map_err(at("mount a root"))?;
    for folder in ["proc", "sys", "dev", "tmp", "run", "layers", "mounts", "etc"] {
        fs::create_dir(Path::new("/root").join(folder))?;
    }
    for place in ["/proc", "/sys", "/dev"] {
        mount_move(place, format!("/root{place}")).map_err(at("move a mount"))?;
    }
    let _ = fs::remove_dir_all("/modules");
    let _ = fs::remove_file("/init");
    rustix::process::chdir("/root")?;
    mount_move("/root", "/").map_err(at("move the root"))?;
    rustix::process::chroot(".")?;
    rustix::process::chdir("/")?;
    mount("cgroup", "/sys/fs/cgroup", "cgroup2", none, None).map_err(at("mount cgroups"))?;
    let _ = sloplet_sys::loopback::bring_up();
    for (setting, value) in
        [("kernel/sysrq", "0"), ("kernel/core_pattern", "|/bin/false"), ("vm/overcommit_memory", "1")]
    {
        let _ = fs::write(Path::new("/proc/sys").join(setting), value);
    }
    Ok(disks)
}

fn load_modules() -> io::Result<Option<DisksDriver>> {
    let mut files: Vec<PathBuf> = fs::read_dir("/modules")?.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let mut disks = None;
    for file in files {
        let code = fs::read(&file)?;
        if file.to_string_lossy().ends_with(modules::DISKS) {
            disks = Some(DisksDriver(code));
            continue;
        }
        insert(&code).map_err(|error| io::Error::other(format!("load {}: {error}", file.display())))?;
    }
    Ok(disks)
}

fn insert(code: &[u8]) -> rustix::io::Result<()> {
    match rustix::system::init_module(code, c"") {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// The device that the host calls `name`. They come up one after the other: it is waited for.
pub fn device(name: &str) -> io::Result<PathBuf> {
    for _ in 0..200 {
        for entry in fs::read_dir("/sys/block")?.flatten() {
            let serial = fs::read_to_string(entry.path().join("serial")).unwrap_or_default();
            let path = Path::new("/dev").join(entry.file_name());
            if serial.trim_matches(|c: char| c.is_whitespace() || c == '\0') == name && path.exists() {
                return Ok(path);
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Err(io::Error::other(format!("there is no disk '{name}'")))
}

/// Mounts a read-only disk.
pub fn disk(name: &str, target: &Path) -> io::Result<()> {
    fs::create_dir_all(target)?;
    let device = device(name)?;
    let fault = |error| io::Error::other(format!("mount the disk '{name}': {error}"));
    mount(&device, target, "erofs", MountFlags::RDONLY | MountFlags::NODEV, None).map_err(fault)
}
