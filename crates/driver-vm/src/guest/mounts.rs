//! Mounts of the guest.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount, mount_move};

/// The file systems that everything needs, the modules, and a root that can be left: the kernel's first one cannot.
pub fn settle() -> io::Result<()> {
    let none = MountFlags::empty();
    let at = |what: &'static str| move |error: rustix::io::Errno| io::Error::other(format!("{what}: {error}"));
    mount("proc", "/proc", "proc", none, None).map_err(at("mount /proc"))?;
    mount("sys", "/sys", "sysfs", none, None).map_err(at("mount /sys"))?;
    mount("dev", "/dev", "devtmpfs", none, None).map_err(at("mount /dev"))?;
    load_modules()?;
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
    Ok(())
}

fn load_modules() -> io::Result<()> {
    let mut files: Vec<PathBuf> = fs::read_dir("/modules")?.flatten().map(|entry| entry.path()).collect();
    files.sort();
    for file in files {
        let code = fs::read(&file)?;
        match rustix::system::init_module(&code, c"") {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(io::Error::other(format!("load {}: {error}", file.display()))),
        }
    }
    Ok(())
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
