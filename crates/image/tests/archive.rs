//! Snapshots out of one store and into another: whole, or not at all.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy sees only #[test] functions as tests"
)]

mod common;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use common::{Tar, is_root, store};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use sloplet_image::{Image, ImageConfig, ImageError, LimitExceeded, Limits, Manifest, Store, silent};

fn anything(_: &Manifest) -> Result<(), String> {
    Ok(())
}

/// Everything about a tree that can be seen, by path.
fn seen(root: &Path) -> BTreeMap<PathBuf, String> {
    fn walk(root: &Path, at: &Path, into: &mut BTreeMap<PathBuf, String>) {
        for entry in fs::read_dir(root.join(at)).unwrap() {
            let path = at.join(entry.unwrap().file_name());
            let full = root.join(&path);
            let known = fs::symlink_metadata(&full).unwrap();
            let kind = known.file_type();
            let mut text = format!(
                "{:o} {}:{} {}.{:09} links {} ",
                known.mode(),
                known.uid(),
                known.gid(),
                known.mtime(),
                known.mtime_nsec(),
                if kind.is_dir() { 0 } else { known.nlink() }
            );
            if kind.is_char_device() {
                text = format!("device {}", known.rdev());
            } else if kind.is_symlink() {
                text += &format!("-> {:?}", fs::read_link(&full).unwrap());
            } else if kind.is_file() {
                text += &format!("{} {}", known.len(), common::sha256(&fs::read(&full).unwrap()));
                text += if known.blocks() * 512 < known.len() { " holes" } else { "" };
            }
            if !kind.is_symlink() && !kind.is_fifo() && !kind.is_char_device() {
                let mut names = vec![0; 4096];
                let length = rustix::fs::llistxattr(&full, &mut names[..]).unwrap();
                let mut names: Vec<&[u8]> =
                    names[..length].split(|byte| *byte == 0).filter(|n| !n.is_empty()).collect();
                names.sort();
                for name in names {
                    let mut value = vec![0; 4096];
                    let length = rustix::fs::lgetxattr(&full, name, &mut value[..]).unwrap();
                    text += &format!(" {}={:?}", String::from_utf8_lossy(name), &value[..length]);
                }
            }
            into.insert(path.clone(), text);
            if kind.is_dir() {
                walk(root, &path, into);
            }
        }
    }
    let mut all = BTreeMap::new();
    walk(root, Path::new(""), &mut all);
    all
}

/// What there is in a store, by name.
fn inventory(data: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["layers", "info", "names", "paths", "tmp"] {
        let entries = fs::read_dir(data.join("images").join(folder)).into_iter().flatten();
        found.extend(entries.map(|entry| entry.unwrap().path()));
    }
    found.sort();
    found
}

fn attribute(path: &Path, name: &[u8], value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

fn date(path: &Path, seconds: i64, nanos: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanos };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// A snapshot with one of each thing that a layer can hold, on an image of one file.
fn snapshot(data: &Path, store: &Store) -> Image {
    let tar = Tar::new().dir("etc").file("etc/base", "from below").file("etc/gone", "x").dir("old").done();
    let base = store.import(&common::save(data, &tar), Some("base"), &silent).unwrap();
    let staging = store.snapshot_staging().unwrap();
    let dir = staging.dir().unwrap();
    let root = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    let at = |path: &str| root.join(path);
    for folder in ["etc", "old", "empty", "deep/er/still", "deny"] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    fs::write(at("etc/motd"), "hello").unwrap();
    fs::write(at("etc/.wh.not-a-mark"), "a plain file of that name").unwrap();
    fs::write(at("deep/er/still/x"), vec![7; 70_000]).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"n\xffot utf-8\n")), "").unwrap();
    fs::write(at(&"l".repeat(200)), "long").unwrap();
    fs::hard_link(at("etc/motd"), at("deep/linked")).unwrap();
    fs::hard_link(at("etc/motd"), at("deep/linked again")).unwrap();
    symlink("/etc/../nowhere", at("etc/link")).unwrap();
    symlink("t".repeat(300), at("etc/long-link")).unwrap();
    rustix::fs::mknodat(CWD, at("etc/gone"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    attribute(&at("old"), b"user.overlay.opaque", b"y");
    attribute(&at("etc/motd"), b"user.a=b%c", b"v\0\n=");
    attribute(&at("empty"), b"user.overlay.overlay.opaque", b"of a program inside");
    let list: Vec<u8> = [
        &[2u8, 0, 0, 0][..],
        &[1, 0, 7, 0, 255, 255, 255, 255], // the owner
        &[2, 0, 6, 0, 0xe8, 3, 0, 0],      // user 1000
        &[4, 0, 5, 0, 255, 255, 255, 255],
        &[0x10, 0, 7, 0, 255, 255, 255, 255],
        &[0x20, 0, 5, 0, 255, 255, 255, 255],
    ]
    .concat();
    attribute(&at("etc/motd"), b"system.posix_acl_access", &list);
    attribute(&at("deep"), b"system.posix_acl_default", &list);
    if is_root() {
        let capability = [&[1u8, 0, 0, 2, 0, 0x20][..], &[0; 14]].concat();
        fs::write(at("ping"), "#!").unwrap();
        attribute(&at("ping"), b"security.capability", &capability);
        std::os::unix::fs::lchown(at("etc/link"), Some(1000), Some(33)).unwrap();
        std::os::unix::fs::chown(at("pipe"), Some(1), Some(2)).unwrap();
        std::os::unix::fs::chown(at("deep/er"), Some(1000), Some(1000)).unwrap();
    }
    let holes = File::create(at("holes")).unwrap();
    holes.set_len(8 << 20).unwrap();
    holes.write_all_at(b"in the middle", 4 << 20).unwrap();
    holes.write_all_at(b"end", (8 << 20) - 3).unwrap();
    File::create(at("only a hole")).unwrap().set_len(3 << 20).unwrap();
    fs::set_permissions(at("etc/.wh.not-a-mark"), Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(at("deny"), Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(at("empty"), Permissions::from_mode(0o1777)).unwrap();
    for (path, seconds, nanos) in [
        ("etc/motd", 1_600_000_000, 123_456_789),
        ("etc/link", 1, 1),
        ("pipe", 5, 5),
        ("holes", -2, 250_000_000), // before 1970
        ("deep/er/still", 1_500_000_000, 999_999_999),
        ("empty", 12, 34),
    ] {
        date(&at(path), seconds, nanos);
    }
    let config = ImageConfig {
        env: vec![("A".into(), "b=c".into())],
        workdir: Some("/deep".into()),
        user: Some("1000".into()),
        ..ImageConfig::default()
    };
    store.commit_snapshot(staging, Some("snap"), &base, config, 5).unwrap()
}

fn export(store: &Store, image: &Image, thin: bool) -> Vec<u8> {
    let manifest = store.plan_export(image, thin, serde_json::json!({"name": "n"})).unwrap();
    let mut archive = Vec::new();
    let made = store.export(image, manifest, &mut archive).unwrap();
    assert_eq!((made.whole.bytes, &made.whole.sha256), (archive.len() as u64, &common::sha256(&archive)));
    archive
}

#[test]
fn everything_in_a_snapshot_arrives() {
    let (data, store) = store();
    let image = snapshot(data.path(), &store);
    let archive = export(&store, &image, false);
    assert!(archive.len() < 100_000, "holes take no room: {}", archive.len());
    let (other_data, other) = common::store();
    let came = other.import_archive(&archive[..], "came", anything).unwrap();
    assert_eq!(
        (came.image.config.clone(), came.manifest.snapshot.clone()),
        (image.config.clone(), serde_json::json!({"name": "n"}))
    );
    assert_eq!((came.left_out, came.image.layers.len()), (0, image.layers.len()));
    // The lowest is every store's own.
    let own = image.layers.len() - 1;
    for (here, there) in image.layers[..own].iter().zip(&came.image.layers) {
        let (here, there) = (seen(here), seen(there));
        assert_eq!(here.keys().collect::<Vec<_>>(), there.keys().collect::<Vec<_>>());
        for (path, about) in &here {
            assert_eq!(about, &there[path], "{}", path.display());
        }
    }
    let top = seen(&came.image.layers[0]);
    assert!(top[Path::new("holes")].ends_with("holes") && top[Path::new("only a hole")].ends_with("holes"));
    assert_eq!(other.resolve("came").unwrap(), came.image);
    // The same once more: the layers are shared.
    let before = inventory(other_data.path()).len();
    other.import_archive(&archive[..], "again", anything).unwrap();
    assert_eq!(inventory(other_data.path()).len(), before + 1, "one more name");
    // And out of there again, into a third.
    let (_third_data, third) = common::store();
    let again = third.import_archive(&export(&other, &came.image, false)[..], "third", anything).unwrap();
    assert!(seen(&again.image.layers[0]) == seen(&image.layers[0]));
    // Whoever has neither sloplet nor this code can read it.
    let plain = data.path().join("it.tar");
    fs::write(&plain, zstd::decode_all(&archive[..]).unwrap()).unwrap();
    let listed = std::process::Command::new("tar").arg("-tf").arg(&plain).output().unwrap();
    let names = String::from_utf8_lossy(&listed.stdout);
    assert!(
        listed.status.success() && names.starts_with("sloplet-snapshot.json\n") && names.contains("/etc/motd\n"),
        "{names}"
    );
}

#[test]
fn what_is_damaged_is_refused_and_leaves_nothing() {
    let (data, store) = store();
    let tar = Tar::new().file("x", "below").done();
    let base = store.import(&common::save(data.path(), &tar), Some("base"), &silent).unwrap();
    let archive = export(&store, &base, false);
    let (other_data, other) = common::store();
    other.import_archive(&archive[..], "first", anything).unwrap();
    let before = inventory(other_data.path());
    let refused = |bytes: &[u8], what: String| {
        let error = other.import_archive(bytes, "it", anything).expect_err(&what);
        assert!(matches!(error, ImageError::BadArchive { .. }), "{what}: {error}");
        assert_eq!(inventory(other_data.path()), before, "{what}");
    };
    for at in 0..archive.len() {
        let mut changed = archive.clone();
        changed[at] ^= 0x10;
        refused(&changed, format!("byte {at} of {}", archive.len()));
    }
    for length in (0..archive.len()).step_by(3) {
        refused(&archive[..length], format!("cut at {length}"));
    }
    refused(b"not an archive at all, but long enough to be one that was damaged", "text".into());
    other.import_archive(&archive[..], "it", anything).unwrap();
}

#[test]
fn a_thin_one_needs_its_base() {
    let (data, store) = store();
    let image = snapshot(data.path(), &store);
    let thin = export(&store, &image, true);
    let (other_data, other) = common::store();
    let error = other.import_archive(&thin[..], "it", anything).unwrap_err().to_string();
    assert!(error.contains("thin") && error.contains("export it whole"), "{error}");
    assert!(other.list().unwrap().is_empty());
    let tar = Tar::new().dir("etc").file("etc/base", "from below").file("etc/gone", "x").dir("old").done();
    let base = other.import(&common::save(other_data.path(), &tar), Some("base"), &silent).unwrap();
    let came = other.import_archive(&thin[..], "it", anything).unwrap();
    assert_eq!(came.image.layers[1..], base.layers[..], "the layers that were there already");
    // A whole one uses them, too.
    let whole = other.import_archive(&export(&store, &image, false)[..], "whole", anything).unwrap();
    assert_eq!(whole.image.layers, came.image.layers);
}

#[test]
fn one_of_the_hosts_programs_says_so() {
    let (_data, store) = store();
    let host = store.resolve("host").unwrap();
    let error = store.plan_export(&host, false, serde_json::Value::Null).unwrap_err().to_string();
    assert!(error.contains("this host's own programs") && error.contains("thin"), "{error}");
    let archive = export(&store, &host, true);
    let (_other_data, other) = common::store();
    let came = other.import_archive(&archive[..], "it", anything).unwrap();
    assert_eq!((&came.image.binds, came.image.layers.len()), (&host.binds, 1));
    assert!(seen(&came.image.layers[0]) == seen(&host.layers[0]));
}

/// An archive of our own making, sealed as it must be.
fn crafted(manifest: &serde_json::Value, entries: Tar) -> Vec<u8> {
    let mut tar = Tar::new().file("sloplet-snapshot.json", &manifest.to_string()).done();
    tar.truncate(tar.len() - 1024);
    tar.extend(entries.done());
    let mut bytes = zstd::bulk::compress(&tar, 3).unwrap();
    let digest = common::sha256(&bytes);
    let digest = (0..32).map(|at| u8::from_str_radix(&digest[2 * at..2 * at + 2], 16).unwrap());
    let digest: Vec<u8> = digest.collect();
    bytes.extend_from_slice(b"\x53\x2a\x4d\x18\x28\x00\x00\x00sloplet1");
    bytes.extend_from_slice(&digest);
    bytes
}

fn manifest(entries: u64, bytes: u64) -> serde_json::Value {
    let layer = serde_json::json!({"name": "evil", "packed": true, "bytes": bytes, "entries": entries});
    serde_json::json!({"format": "sloplet-snapshot", "version": 1, "architecture": std::env::consts::ARCH,
        "config": {}, "layers": [layer], "snapshot": null})
}

#[test]
fn a_hostile_one_is_refused() {
    let (data, store) = store();
    let outside = data.path().join("outside");
    fs::create_dir(&outside).unwrap();
    store.resolve("host").unwrap();
    let before = inventory(data.path());
    let with = |change: &dyn Fn(&mut serde_json::Value), entries: Tar| {
        let mut it = manifest(2, 1 << 20);
        change(&mut it);
        let error = store.import_archive(&crafted(&it, entries)[..], "it", anything).unwrap_err();
        assert_eq!(inventory(data.path()), before, "{error}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        error.to_string()
    };
    let same = |_: &mut serde_json::Value| ();
    let top = || Tar::new().dir("layers/evil/");
    let cases: Vec<(String, &str)> = vec![
        (with(&same, top().file("layers/evil/../../x", "")), "'..'"),
        (with(&same, top().file("layers/other/x", "")), "entries, and 2 were announced"),
        (with(&same, top().file("x", "")), "entries, and 2 were announced"),
        (with(&same, top().hardlink("layers/evil/x", "/etc/passwd")), "hard link"),
        (with(&same, top().hardlink("layers/evil/x", "layers/evil/y")), "hard link"),
        (with(&same, top().raw(tar::EntryType::Block, b"layers/evil/sda", b"", 0o666, b"")), "a device"),
        (with(&same, top().pax(&[("SCHILY.xattr.user.overlay.redirect", b"/etc")]).dir("layers/evil/d")), "attribute"),
        (with(&same, top().pax(&[("SCHILY.xattr.trusted.x", b"")]).file("layers/evil/d", "")), "attribute"),
        (with(&same, top().pax(&[("SCHILY.xattr.user.overlay.opaque", b"x")]).dir("layers/evil/d")), "overlay"),
        (
            with(&same, top().pax(&[("SCHILY.xattr.system.posix_acl_access", b"\x02\0\0\0x")]).dir("layers/evil/d")),
            "list",
        ),
        (with(&same, top().owned_by(70_000, 0).file("layers/evil/x", "")), if is_root() { "below 65536" } else { "" }),
        (
            with(
                &|it| it["layers"][0]["entries"] = 3.into(),
                top().symlink("layers/evil/l", &outside).file("layers/evil/l/x", ""),
            ),
            "not a directory",
        ),
        (
            with(&|it| it["layers"][0]["bytes"] = 2048.into(), top().file("layers/evil/x", &"y".repeat(9000))),
            "2048 bytes",
        ),
        (with(&|it| it["layers"][0]["bytes"] = (1u64 << 50).into(), top()), "bytes"),
        (with(&|it| it["layers"][0]["entries"] = (1u64 << 50).into(), top()), "entries"),
        (with(&|it| it["layers"][0]["name"] = "../x".into(), top()), "a name that none has"),
        (with(&|it| it["version"] = 2.into(), top()), "use the version that exported it"),
        (with(&|it| it["more"] = 2.into(), top()), "more"),
        (with(&|it| it["architecture"] = "pdp11".into(), top()), "pdp11"),
        (with(&|it| it["config"]["env"] = serde_json::json!([["a=b", ""]]), top()), "configuration"),
        (with(&same, Tar::new().symlink("layers/evil/proc", "/").dir("layers/evil/")), "symbolic link"),
        (
            with(
                &same,
                top()
                    .pax(&[
                        ("GNU.sparse.major", b"1"),
                        ("GNU.sparse.minor", b"0"),
                        ("GNU.sparse.name", b"layers/evil/s"),
                        ("GNU.sparse.realsize", b"10"),
                    ])
                    .file("s", &format!("{:\0<512}", "1\n5\n6\n")),
            ),
            "makes no sense",
        ),
    ];
    for (error, expected) in cases.iter().filter(|(_, expected)| !expected.is_empty()) {
        assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
    }
    // What is small on its way and large on the disk says so beforehand, and is measured by that.
    let strict = store.clone().with_limits(Limits { total_bytes: 1 << 20, ..Limits::default() });
    let bomb = crafted(&manifest(2, 64 << 20), top().file("layers/evil/x", &"\0".repeat(32 << 20)));
    assert!(bomb.len() < 20_000);
    let error = strict.import_archive(&bomb[..], "it", anything).unwrap_err();
    assert!(matches!(error, ImageError::TooBig(LimitExceeded::Bytes(_))), "{error}");
    assert_eq!(inventory(data.path()), before);
    assert!(fs::symlink_metadata("/proc/self").unwrap().file_type().is_symlink());
}
