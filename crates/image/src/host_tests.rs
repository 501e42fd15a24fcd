//! The `host` image of a made-up host full of secrets: only what the allowlist names, and only what is harmless.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::store::Store;

fn put(root: &Path, name: &str, content: &str, mode: u32) {
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A host whose every secret contains CANARY.
fn host() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for (name, mode) in [
        ("etc/shadow", 0o640),
        ("etc/ssh/ssh_host_rsa_key", 0o600),
        ("etc/ssl/private/server.key", 0o644),
        ("root/.ssh/id_rsa", 0o644),
        ("home/alice/.aws/credentials", 0o644),
        ("var/lib/db", 0o644),
        ("run/secrets/token", 0o644),
        ("etc/environment", 0o644),
        ("etc/profile", 0o644),
        ("etc/gitconfig", 0o644),
        ("etc/profile.d/proxy.sh", 0o644),
        ("etc/ld.so.preload", 0o644),
        ("opt/tool/config", 0o644),
        // Allowlisted places, but not for everybody's eyes, or key material by name.
        ("etc/services", 0o640),
        ("etc/ssl/certs/own.key", 0o644),
        ("etc/ssl/certs/hidden.pem", 0o600),
        ("etc/java-17-openjdk/keys.jks", 0o644),
        ("etc/java-17-openjdk/management/jmxremote.password", 0o644),
        ("etc/alternatives/closed/file", 0o644),
        ("etc/ld.so.conf.d/odd.conf", 0o600),
        ("etc/passwd", 0o644),
        ("etc/group", 0o644),
        ("etc/hostname", 0o644),
        ("etc/hosts", 0o644),
        ("etc/resolv.conf", 0o644),
        ("etc/machine-id", 0o444),
        ("etc/default/grub", 0o644),
        ("etc/pki/tls/private/x.pem", 0o644),
    ] {
        put(root, name, "CANARY", mode);
    }
    put(root, "etc/ssl/certs/leaked.pem", "-----BEGIN RSA PRIVATE KEY-----\nCANARY", 0o644);
    put(root, "etc/ssl/certs/good.pem", "certificate", 0o644);
    put(root, "etc/java-17-openjdk/security/java.security", "setting", 0o644);
    put(root, "etc/ld.so.conf", "include", 0o644);
    put(root, "usr/bin/bash", "", 0o755);
    put(root, "lib/real", "", 0o644);
    put(root, "closed-ca/file", "CANARY", 0o644);
    let closed = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(root.join("etc/alternatives/closed"), closed).unwrap();
    symlink("usr/bin", root.join("bin")).unwrap();
    symlink("/home/alice/CANARY", root.join("etc/alternatives/editor")).unwrap();
    symlink("../shadow", root.join("etc/alternatives/inside")).unwrap();
    symlink(root.join("root"), root.join("etc/fonts")).unwrap();
    symlink("/usr/share/zoneinfo/UTC", root.join("etc/localtime")).unwrap();
    dir
}

#[test]
fn no_canary_gets_in() {
    let host = host();
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).unwrap().with_host(host.path());
    let image = store.resolve("host").unwrap();
    let layer = &image.layers[0];
    let mut left = vec![layer.clone()];
    let mut files = 0;
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            if metadata.is_dir() {
                left.push(path);
            } else if metadata.is_symlink() {
                assert!(!std::fs::read_link(&path).unwrap().to_string_lossy().contains("CANARY"), "{path:?}");
            } else {
                files += 1;
                assert!(!std::fs::read_to_string(&path).unwrap().contains("CANARY"), "{path:?}");
            }
        }
    }
    assert!(files > 5, "the walk saw nothing");
    for (path, content) in [("etc/ssl/certs/good.pem", "certificate"), ("etc/ld.so.conf", "include")] {
        assert_eq!(std::fs::read_to_string(layer.join(path)).unwrap(), content);
    }
    assert!(layer.join("etc/java-17-openjdk/security/java.security").is_file());
    assert_eq!(std::fs::read_link(layer.join("etc/localtime")).unwrap(), Path::new("/usr/share/zoneinfo/UTC"));
    assert!(std::fs::symlink_metadata(layer.join("etc/fonts")).is_err(), "a link to an unshown place");
    assert_eq!(std::fs::read_link(layer.join("bin")).unwrap(), Path::new("usr/bin"));
}

#[test]
fn real_system_directories_are_bound() {
    let host = host();
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).unwrap().with_host(host.path());
    let image = store.resolve("host").unwrap();
    let targets: Vec<_> = image.binds.iter().map(|b| b.target.to_str().unwrap()).collect();
    assert_eq!(targets, ["/usr", "/lib"], "usr, and lib, which is no link here");
    assert_eq!(image.binds[1].source, host.path().join("lib"));
    assert!(image.layers[0].join("lib").is_dir());
}

#[test]
fn a_change_on_the_host_makes_a_new_layer_and_gc_drops_the_old() {
    let host = host();
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).unwrap().with_host(host.path());
    let first = store.resolve("host").unwrap();
    assert_eq!(store.resolve("host").unwrap(), first);
    put(host.path(), "etc/ld.so.conf", "changed", 0o644);
    let second = store.resolve("host").unwrap();
    assert_ne!(first.layers, second.layers);
    assert_eq!(std::fs::read_to_string(second.layers[0].join("etc/ld.so.conf")).unwrap(), "changed");
    assert_eq!(store.gc().unwrap().layers, 1);
    assert!(!first.layers[0].exists());
    assert_eq!(std::fs::metadata(&second.layers[0]).unwrap().mode() & 0o777, 0o755);
}
