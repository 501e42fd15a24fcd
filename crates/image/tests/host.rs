//! The `host` image as an attacker would look at it: what of the host is in there?
#![allow(clippy::unwrap_used, clippy::panic, reason = "clippy sees only #[test] functions as tests")]

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sloplet_image::{HostBind, Store};

fn store() -> (tempfile::TempDir, Store) {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).unwrap();
    (data, store)
}

/// Every path in a tree, relative to it.
fn walk(root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            found.insert(path.strip_prefix(root).unwrap().to_path_buf());
            if std::fs::symlink_metadata(&path).unwrap().is_dir() {
                left.push(path);
            }
        }
    }
    found
}

#[test]
fn only_usr_and_real_system_directories_are_bound() {
    let (_data, store) = store();
    let image = store.resolve("host").unwrap();
    assert_eq!(image.binds[0], HostBind { source: "/usr".into(), target: "/usr".into() });
    for bind in &image.binds[1..] {
        let name = bind.source.strip_prefix("/").unwrap().to_str().unwrap();
        assert!(["bin", "sbin", "lib", "lib32", "lib64", "libx32"].contains(&name), "{bind:?}");
        assert!(std::fs::symlink_metadata(&bind.source).unwrap().is_dir());
    }
    let layer = &image.layers[0];
    for bind in &image.binds {
        let point = layer.join(bind.target.strip_prefix("/").unwrap());
        assert_eq!(std::fs::read_dir(point).unwrap().count(), 0, "an empty mount point for {bind:?}");
    }
    if std::fs::symlink_metadata("/bin").unwrap().is_symlink() {
        assert_eq!(std::fs::read_link(layer.join("bin")).unwrap(), std::fs::read_link("/bin").unwrap());
    }
}

#[test]
fn nothing_secret_of_the_host_is_inside() {
    let (_data, store) = store();
    let image = store.resolve("host").unwrap();
    let layer = &image.layers[0];
    let paths = walk(layer);
    let host_shadow = std::fs::read("/etc/shadow").unwrap_or_default();
    let machine_id = std::fs::read("/etc/machine-id").unwrap_or_default();
    for forbidden in [
        "etc/shadow",
        "etc/gshadow",
        "etc/ssh",
        "etc/ssl/private",
        "etc/sudoers",
        "etc/machine-id",
        "etc/environment",
        "etc/gitconfig",
        "etc/npmrc",
        "etc/pip.conf",
        "etc/profile.d",
        "etc/apt",
        "etc/docker",
        "etc/ld.so.preload",
        "etc/fstab",
        "etc/crontab",
        "etc/systemd",
    ] {
        assert!(!paths.contains(Path::new(forbidden)), "{forbidden} must not be in the host image");
    }
    for (dir, allowed) in [
        ("root", &[][..]),
        ("home", &["home/user", "home/user/.bashrc", "home/user/.profile"][..]),
        ("run", &["run/lock"][..]),
        ("opt", &[]),
        ("srv", &[]),
        ("mnt", &[]),
        ("tmp", &[]),
        ("boot", &[]),
        ("var/log", &[]),
        ("var/cache", &[]),
        ("var/lib", &["var/lib/misc"]),
        ("var/spool", &[]),
        ("var/tmp", &[]),
        ("proc", &[]),
        ("dev", &[]),
        ("sys", &[]),
    ] {
        let inside: Vec<_> = paths.iter().filter(|p| p.starts_with(dir) && *p != Path::new(dir)).collect();
        assert!(inside.iter().all(|p| allowed.iter().any(|a| Path::new(a) == p.as_path())), "{dir}: {inside:?}");
    }
    for path in &paths {
        let full = layer.join(path);
        let metadata = std::fs::symlink_metadata(&full).unwrap();
        if metadata.is_file() {
            let content = std::fs::read(&full).unwrap();
            assert!(!content.windows(16).any(|w| w == b"PRIVATE KEY-----"), "{path:?} holds a private key");
            assert!(host_shadow.is_empty() || content != host_shadow, "{path:?} is the shadow file");
            assert!(machine_id.is_empty() || content != machine_id, "{path:?} is the machine id");
            // Whatever was copied, any user of the host may read.
            let host_file = Path::new("/").join(path);
            if let Ok(host) = std::fs::symlink_metadata(&host_file)
                && host.is_file()
                && std::fs::read(&host_file).is_ok_and(|c| c == content)
            {
                assert_eq!(host.mode() & 0o004, 0o004, "{path:?} is not world-readable on the host");
            }
            assert_eq!(metadata.mode() & 0o6000, 0, "{path:?} is setuid or setgid");
        } else {
            assert!(metadata.is_dir() || metadata.is_symlink(), "{path:?} is something odd");
        }
    }
}

#[test]
fn accounts_and_environment_are_made_up() {
    let (_data, store) = store();
    let image = store.resolve("host").unwrap();
    let layer = &image.layers[0];
    let passwd = std::fs::read_to_string(layer.join("etc/passwd")).unwrap();
    let users: Vec<_> = passwd.lines().map(|l| l.split(':').next().unwrap()).collect();
    assert_eq!(users, ["root", "user", "nobody"]);
    assert!(passwd.contains("user:x:1000:1000:user:/home/user:"));
    assert!(std::fs::read_to_string(layer.join("etc/nsswitch.conf")).unwrap().contains("hosts: files dns\n"));
    let names: Vec<_> = image.config.env.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["PATH", "LANG"], "nothing of the caller's environment");
    let mode = |path: &str| std::fs::symlink_metadata(layer.join(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("tmp"), mode("root"), mode("var/tmp"), mode("")), (0o1777, 0o700, 0o1777, 0o755));
    let owner = |path: &str| std::fs::symlink_metadata(layer.join(path)).unwrap().uid();
    let me = rustix::process::geteuid().as_raw();
    let user = if me == 0 { 1000 } else { me };
    assert_eq!((owner("home/user"), owner("home/user/.bashrc"), owner("workspace")), (user, user, user));
    assert_eq!((owner("etc/passwd"), owner("")), (me, me));
}

#[test]
fn what_programs_need_is_there() {
    let (_data, store) = store();
    let image = store.resolve("host").unwrap();
    let layer = &image.layers[0];
    for name in ["ld.so.cache", "ld.so.conf", "os-release", "services", "ssl/certs/ca-certificates.crt", "alternatives"]
    {
        if Path::new("/etc").join(name).exists() {
            assert!(std::fs::symlink_metadata(layer.join("etc").join(name)).is_ok(), "{name} is missing");
        }
    }
    for point in ["proc", "sys", "dev", "tmp", "run", "workspace", "etc/resolv.conf", "etc/hosts", "etc/hostname"] {
        assert!(layer.join(point).exists(), "{point} is missing");
    }
}

#[test]
fn it_is_built_once_and_survives_gc() {
    let (data, store) = store();
    let first = store.resolve("host").unwrap();
    let inode = |image: &sloplet_image::Image| std::fs::metadata(&image.layers[0]).unwrap().ino();
    let before = inode(&first);
    store.gc().unwrap();
    let second = Store::open(data.path()).unwrap().resolve("host").unwrap();
    assert_eq!(first, second);
    assert_eq!(before, inode(&second), "gc must keep the layer");
    assert_eq!(std::fs::metadata(data.path().join("images")).unwrap().mode() & 0o777, 0o700);
    assert_eq!(std::fs::read_dir(data.path().join("images/tmp")).unwrap().count(), 0);
}
