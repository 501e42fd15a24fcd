//! Mounting and unmounting.

use std::ffi::CString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::CWD;
use rustix::mount::{
    FsOpenFlags, FsPickFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsopen, fspick, mount,
    mount_bind, mount_remount, move_mount, open_tree, unmount,
};
use sloplet_sys::attempt::{Call, attempt};

use crate::part::{Parts, Place, Tried, private_mounts, reached};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "mounts",
    ids: &[10, 11],
    tries: "mount with the old and the new calls, unmount masks, make read-only mounts writable",
    why: "whoever can mount can uncover what was covered, and show what was not",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(_: &Settings, parts: &mut Parts) {
    let mut parts = parts.of_kernel("mounts");
    for kind in ["tmpfs", "proc", "sysfs"] {
        // The last two cannot be mounted in every user namespace.
        let action = move |_: &Settings| {
            private_mounts();
            let place = Place::make()?;
            mount("none", &place.0, kind, MountFlags::empty(), None)?;
            Ok("mounted".into())
        };
        if kind == "tmpfs" { parts.add("mount tmpfs", action) } else { parts.optional(format!("mount {kind}"), action) }
    }
    parts.add("bind /", |_| {
        private_mounts();
        let place = Place::make()?;
        rustix::mount::mount_bind_recursive("/", &place.0)?;
        Ok("mounted".into())
    });
    parts.add("fsopen", |_| {
        private_mounts();
        fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        Ok("opened".into())
    });
    parts.optional("fspick", |_| {
        private_mounts();
        fspick(CWD, "/", FsPickFlags::FSPICK_CLOEXEC)?;
        Ok("opened".into())
    });
    for (name, call) in [("fsconfig", Call::FsConfig), ("fsmount", Call::FsMount)] {
        parts.add(name, move |_| {
            private_mounts();
            reached(call)
        });
    }
    parts.add("open_tree", |_| tree(OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_RECURSIVE));
    parts.add("open_tree as a path", |_| tree(OpenTreeFlags::empty()));
    parts.optional("open_tree_attr", |_| reached(Call::OpenTreeAttr));
    parts.add("move_mount", |_| {
        private_mounts();
        let place = Place::make()?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
        let tree = open_tree(CWD, "/usr", flags)?;
        move_mount(tree.as_fd(), "", CWD, &place.0, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        Ok("moved".into())
    });
    parts.add("mount_setattr", |_| {
        private_mounts();
        let place = Place::make()?;
        // On the host nothing is read-only yet; inside, /usr is.
        let made = mount("none", &place.0, "tmpfs", MountFlags::RDONLY, None).is_ok();
        let path = if made { CString::new(place.0.as_os_str().as_bytes()) } else { CString::new("/usr") };
        let path = path.map_err(std::io::Error::other)?;
        attempt(Call::MountSetattr(&path))?;
        Ok("writable".into())
    });
    parts.add("unmount a mask", |_| {
        private_mounts();
        let _ = mount_bind("/dev/null", "/proc/interrupts");
        unmount("/proc/interrupts", UnmountFlags::DETACH)?;
        Ok("the mask is off".into())
    });
    parts.add("unmount /dev", |_| {
        private_mounts();
        let _ = mount("none", "/dev", "tmpfs", MountFlags::empty(), None);
        unmount("/dev", UnmountFlags::DETACH)?;
        Ok("unmounted".into())
    });
    for path in ["/", "/usr", "/proc/sys"] {
        parts.optional(format!("make {path} writable"), move |_| {
            private_mounts();
            let _ = mount_bind(path, path);
            mount_remount(path, MountFlags::BIND, "")?;
            Ok("remounted".into())
        });
    }
    parts.optional("statmount", |_| reached(Call::StatMount));
    parts.optional("listmount", |_| reached(Call::ListMount));
}

fn tree(flags: OpenTreeFlags) -> Tried {
    private_mounts();
    open_tree(CWD, "/", flags | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    Ok("opened".into())
}
