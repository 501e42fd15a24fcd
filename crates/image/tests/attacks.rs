//! Hostile archives. Each attack first works against a naive unpacker, then must be refused with nothing written
//! outside and nothing left in the store.
#![allow(clippy::unwrap_used, clippy::panic, reason = "clippy sees only #[test] functions as tests")]

mod common;

use std::path::Path;

use common::{Tar, gzip, is_root, layout, naive_unpack, save, snapshot, store};
use sloplet_image::{ImageError, LimitExceeded, Limits, silent};
use tar::EntryType;

/// A place that no archive may touch, holding a secret.
struct Outside {
    dir: tempfile::TempDir,
}

impl Outside {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b/root")).unwrap();
        std::fs::create_dir(dir.path().join("victim")).unwrap();
        std::fs::write(dir.path().join("victim/secret"), "the secret").unwrap();
        Outside { dir }
    }

    fn victim(&self) -> std::path::PathBuf {
        self.dir.path().join("victim")
    }

    fn naive_root(&self) -> std::path::PathBuf {
        self.dir.path().join("a/b/root")
    }

    /// Everything but what is inside the naive unpacker's root.
    fn state(&self) -> Vec<String> {
        let root = self.naive_root();
        let inside = format!("{}/", root.display());
        let mut state: Vec<_> = snapshot(self.dir.path()).into_iter().filter(|l| !l.starts_with(&inside)).collect();
        // A hard link to the secret inside the root is an escape as well.
        let links = std::os::unix::fs::MetadataExt::nlink(&std::fs::metadata(self.victim().join("secret")).unwrap());
        state.push(format!("links {links}"));
        state
    }
}

/// The store holds no image and no unpacked layer, and no temporary directory.
fn assert_nothing_kept(data: &Path) {
    for dir in ["names", "paths", "tmp", "info"] {
        assert_eq!(std::fs::read_dir(data.join("images").join(dir)).unwrap().count(), 0, "{dir} is not empty");
    }
    for layer in std::fs::read_dir(data.join("images/layers")).unwrap() {
        let name = layer.unwrap().file_name();
        assert!(name.to_str().unwrap().starts_with("skeleton-"), "{name:?} was left");
    }
}

fn assert_escapes_naively_and_is_refused(attack: impl Fn(&Path) -> Tar) {
    let outside = Outside::new();
    let archive = attack(&outside.victim()).done();
    let before = outside.state();
    naive_unpack(&archive, &outside.naive_root());
    assert_ne!(before, outside.state(), "the attack must work against a naive unpacker, else it tests nothing");

    let outside = Outside::new();
    let (data, store) = store();
    let archive = attack(&outside.victim()).done();
    let path = save(data.path(), &archive);
    let before = (outside.state(), snapshot(&data.path().join("images")));
    let error = store.import(&path, Some("evil"), &silent).unwrap_err();
    assert!(matches!(error, ImageError::Refused { .. }), "{error}");
    assert_eq!(before.0, outside.state(), "written outside, though refused: {error}");
    assert_nothing_kept(data.path());
}

#[test]
fn dot_dot_in_a_path() {
    assert_escapes_naively_and_is_refused(|_| Tar::new().file("../escape", "x"));
    assert_escapes_naively_and_is_refused(|_| Tar::new().dir("x").file("x/../../escape", "x"));
}

#[test]
fn a_file_through_an_absolute_symlink() {
    assert_escapes_naively_and_is_refused(|victim| Tar::new().symlink("x", victim).file("x/escape", "x"));
    assert_escapes_naively_and_is_refused(|victim| Tar::new().symlink("x", victim).file("x/secret", "overwritten"));
}

#[test]
fn a_file_through_a_relative_symlink() {
    assert_escapes_naively_and_is_refused(|_| Tar::new().symlink("x", "..").file("x/escape", "x"));
}

#[test]
fn a_directory_through_a_symlink() {
    assert_escapes_naively_and_is_refused(|victim| Tar::new().symlink("x", victim).dir("x/new/deep"));
}

#[test]
fn through_two_symlinks_each_harmless_alone() {
    assert_escapes_naively_and_is_refused(|_| {
        Tar::new().dir("d").symlink("d/up", "..").symlink("out", "d/up/..").file("out/escape", "x")
    });
}

#[test]
fn a_symlink_planted_by_a_long_name() {
    assert_escapes_naively_and_is_refused(|victim| {
        let name = format!("{}link", "./".repeat(60));
        let mut long = name.clone().into_bytes();
        long.push(0);
        Tar::new()
            .raw(EntryType::GNULongName, b"././@LongLink", b"", 0o644, &long)
            .symlink("ignored", victim)
            .file("link/escape", "x")
    });
}

#[test]
fn a_path_from_a_pax_record() {
    assert_escapes_naively_and_is_refused(|_| Tar::new().pax(&[("path", b"../escape")]).file("harmless", "x"));
}

#[test]
fn a_hard_link_to_a_file_outside() {
    assert_escapes_naively_and_is_refused(|_| Tar::new().hardlink("x", "../../../victim/secret"));
    assert_escapes_naively_and_is_refused(|victim| Tar::new().hardlink("x", victim.join("secret")));
    assert_escapes_naively_and_is_refused(|victim| Tar::new().symlink("d", victim).hardlink("x", "d/secret"));
}

#[test]
fn a_write_through_a_hard_link_to_a_symlink() {
    assert_escapes_naively_and_is_refused(|victim| {
        Tar::new().symlink("d", victim).hardlink("e", "d").file("e/escape", "x")
    });
}

#[test]
fn an_absolute_path_lands_inside() {
    let outside = Outside::new();
    let target = outside.victim().join("escape");
    let archive = Tar::new().file(target.to_str().unwrap(), "x").done();
    naive_unpack(&archive, &outside.naive_root());
    assert!(target.exists(), "a naive unpacker follows absolute paths");
    std::fs::remove_file(&target).unwrap();

    let (data, store) = store();
    let image = store.import(&save(data.path(), &archive), None, &silent).unwrap();
    assert!(!target.exists());
    assert!(image.layers[0].join(target.strip_prefix("/").unwrap()).exists());
}

#[test]
fn a_file_over_a_symlink_replaces_the_link() {
    let outside = Outside::new();
    let secret = outside.victim().join("secret");
    let archive = Tar::new().symlink("x", &secret).file("x", "new").done();
    naive_unpack(&archive, &outside.naive_root());
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "new", "a naive unpacker writes through the link");
    std::fs::write(&secret, "the secret").unwrap();

    let (data, store) = store();
    let image = store.import(&save(data.path(), &archive), None, &silent).unwrap();
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "the secret");
    assert!(std::fs::symlink_metadata(image.layers[0].join("x")).unwrap().is_file());
}

fn refusal(archive: Vec<u8>) -> ImageError {
    let (data, store) = store();
    let error = store.import(&save(data.path(), &archive), Some("evil"), &silent).unwrap_err();
    assert_nothing_kept(data.path());
    error
}

#[test]
fn malformed_entries() {
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("root as a symlink", Tar::new().symlink("./", "/etc").done()),
        ("root as a file", Tar::new().file(".", "x").done()),
        ("whiteout of ..", Tar::new().file(".wh...", "").done()),
        ("whiteout of .", Tar::new().file("d/.wh..", "").done()),
        ("whiteout of nothing", Tar::new().file(".wh.", "").done()),
        ("inside a whiteout", Tar::new().file(".wh.x/y", "").done()),
        ("whiteout through a symlink", Tar::new().symlink("x", "/etc").file("x/.wh.passwd", "").done()),
        ("opaque through a symlink", Tar::new().symlink("x", "/etc").file("x/.wh..wh..opq", "").done()),
        ("parent is a file", Tar::new().file("x", "").file("x/y", "").done()),
        ("NUL in a path", Tar::new().pax(&[("path", b"a\0b")]).file("x", "").done()),
        ("long component", Tar::new().pax(&[("path", &[b'a'; 300])]).file("x", "").done()),
        ("bad pax", Tar::new().raw(EntryType::XHeader, b"x", b"", 0o644, b"999 path=x\n").file("x", "").done()),
        ("pax without end", Tar::new().raw(EntryType::XHeader, b"x", b"", 0o644, b"99999999999999999999").done()),
        ("sparse", Tar::new().file("a", "").raw(EntryType::GNUSparse, b"x", b"", 0o644, b"").done()),
        ("pax sparse", Tar::new().file("a", "").pax(&[("GNU.sparse.major", b"1")]).file("x", "").done()),
        ("hard link to a directory", Tar::new().dir("d").hardlink("x", "d").done()),
        ("hard link to nothing", Tar::new().hardlink("x", "y").done()),
        ("hard link to a later file", Tar::new().hardlink("x", "y").file("y", "").done()),
        ("hard link to a whiteout", Tar::new().file(".wh.y", "").hardlink("x", "y").done()),
        ("symlink without target", Tar::new().symlink("x", "").done()),
        ("truncated", {
            let mut bytes = Tar::new().file("a", "").file("x", &"y".repeat(5000)).unfinished();
            bytes.truncate(bytes.len() - 1024);
            bytes
        }),
        ("bad checksum", {
            let mut bytes = Tar::new().file("a", "").file("x", "y").done();
            bytes[512 + 3] ^= 1;
            bytes
        }),
        ("damaged gzip", {
            let mut bytes = gzip(&Tar::new().file("a", "").file("x", &"abc".repeat(9999)).done());
            let length = bytes.len();
            bytes[length / 2] ^= 0xff;
            bytes
        }),
    ];
    for (what, archive) in cases {
        let error = refusal(archive);
        assert!(matches!(error, ImageError::Refused { .. } | ImageError::NotAnImage { .. }), "{what}: {error}");
    }
}

#[test]
fn no_images_at_all() {
    for content in [&b""[..], b"#!/bin/sh\necho this is no tar at all, but long enough to be one\n", &[7; 4096]] {
        let error = refusal(content.to_vec());
        assert!(matches!(error, ImageError::NotAnImage { .. }), "{error}");
    }
}

#[test]
fn traps_at_mount_points() {
    for path in ["proc", "sys", "dev", "dev/null", "dev/pts", "dev/shm", "dev/console", "etc", "tmp", "run"] {
        let mut archive = Tar::new();
        if path.contains('/') {
            archive = archive.dir("dev");
        }
        let error = refusal(archive.symlink(path, "/usr").done());
        assert!(error.to_string().contains(path), "{error}");
    }
    let error = refusal(Tar::new().file("proc", "not a directory").done());
    assert!(error.to_string().contains("proc"), "{error}");
}

#[test]
fn traps_spread_over_layers() {
    let innocent = Tar::new().dir("dev").dir("proc").file("bin/sh", "").done();
    let check = |top: Tar| {
        let (data, store) = store();
        let source = layout(data.path(), &[innocent.clone(), top.done()]);
        store.import(&source, Some("evil"), &silent)
    };
    assert!(check(Tar::new().file("etc/x", "")).is_ok());
    assert!(check(Tar::new().symlink("dev/null", "/etc/passwd")).is_err(), "a link added by a layer on top");
    assert!(check(Tar::new().symlink("proc", "/tmp")).is_err(), "a directory replaced by a link");
    assert!(check(Tar::new().file("dev/.wh..wh..opq", "").symlink("dev/pts", "/tmp")).is_err());
    assert!(check(Tar::new().file(".wh.dev", "")).is_ok(), "removed is fine: the skeleton has one");

    let (data, store) = store();
    let lower = Tar::new().symlink("proc", "/tmp").done();
    let source = layout(data.path(), &[lower, Tar::new().file(".wh.proc", "").done()]);
    assert!(store.import(&source, None, &silent).is_ok(), "hidden by the layer above");
}

#[test]
fn ids_that_no_sandbox_maps() {
    let result = |uid, gid| {
        let (data, store) = store();
        store.import(&Tar::new().owned_by(uid, gid).file("x", "").save(data.path()), None, &silent).map(|_| ())
    };
    assert!(result(65_535, 65_535).is_ok());
    for (uid, gid) in [(65_536, 0), (0, 65_536), (u64::from(u32::MAX) - 1, 0), (1 << 40, 0)] {
        assert_eq!(result(uid, gid).is_err(), is_root(), "{uid}:{gid}");
    }
}

#[test]
fn bombs() {
    let small = Limits {
        total_bytes: 1 << 20,
        entries: 50,
        path_bytes: 200,
        path_depth: 20,
        compression_ratio: 20,
        ratio_grace_bytes: 64 << 10,
        ..Limits::default()
    };
    let check = |archive: &[u8]| {
        let (data, store) = store();
        let store = store.with_limits(small);
        let path = save(data.path(), archive);
        let result = store.import(&path, None, &silent).map(|_| ());
        if result.is_err() {
            assert_nothing_kept(data.path());
        }
        match result {
            Err(ImageError::TooBig(limit)) => Some(limit),
            Err(other) => panic!("{other}"),
            Ok(()) => None,
        }
    };
    let files = |count: usize| (0..count).fold(Tar::new(), |tar, i| tar.file(&format!("f{i}"), "x")).done();
    assert_eq!(check(&files(50)), None);
    assert_eq!(check(&files(51)), Some(LimitExceeded::Entries(50)));
    assert_eq!(check(&Tar::new().file("a/b/c/d", "").done()), None);
    let implied = (0..20).fold(Tar::new(), |tar, i| tar.file(&format!("{i}/x/y"), "")).done();
    assert_eq!(check(&implied), Some(LimitExceeded::Entries(50)), "implied directories count");

    let big = |bytes: usize| Tar::new().file("x", &"y".repeat(bytes)).done();
    assert_eq!(check(&big(1_000_000)), None);
    assert_eq!(check(&big(1_100_000)), Some(LimitExceeded::Bytes(1 << 20)));

    assert_eq!(check(&gzip(&big(60_000))), None, "small and very compressible is harmless");
    assert_eq!(check(&gzip(&big(900_000))), Some(LimitExceeded::Ratio(20)));
    let zstd = zstd::bulk::compress(&big(900_000), 1).unwrap();
    assert_eq!(check(&zstd), Some(LimitExceeded::Ratio(20)));

    assert_eq!(check(&Tar::new().file(&"d/".repeat(19), "").done()), None);
    assert_eq!(check(&Tar::new().file(&"d/".repeat(21), "").done()), Some(LimitExceeded::PathDepth(20)));
    let long = "abcdefghij/".repeat(19);
    let long = |n: usize| Tar::new().pax(&[("path", &long.as_bytes()[..n])]).file("x", "").done();
    assert_eq!(check(&long(199)), None);
    assert_eq!(check(&long(205)), Some(LimitExceeded::PathBytes(200)));

    // A name of 2 MiB would be read into memory by a plain tar reader.
    let name = Tar::new().file("a", "").raw(EntryType::GNULongName, b"x", b"", 0o644, &vec![b'a'; 2 << 20]).done();
    let (data, store) = store();
    let error = store.import(&save(data.path(), &name), None, &silent).unwrap_err();
    assert!(matches!(error, ImageError::TooBig(LimitExceeded::Metadata(_))), "{error}");
}

#[test]
fn a_bomb_spread_over_layers() {
    let limits = Limits { total_bytes: 100_000, ..Limits::default() };
    let layer = |name: &str| Tar::new().file(name, &"y".repeat(60_000)).done();
    let (data, store) = store();
    let source = layout(data.path(), &[layer("a"), layer("b")]);
    let error = store.with_limits(limits).import(&source, None, &silent).unwrap_err();
    assert!(matches!(error, ImageError::TooBig(LimitExceeded::Bytes(100_000))), "{error}");
}
