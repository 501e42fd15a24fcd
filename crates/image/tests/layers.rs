//! What a well-meant archive becomes on disk.
#![allow(clippy::unwrap_used, clippy::panic, reason = "clippy sees only #[test] functions as tests")]

mod common;

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use common::{Tar, gzip, is_root, layout, store};
use sloplet_image::silent;
use tar::EntryType;

fn import(archive: Tar) -> (tempfile::TempDir, sloplet_image::Image) {
    let (data, store) = store();
    let image = store.import(&archive.save(data.path()), Some("it"), &silent).unwrap();
    (data, image)
}

fn stat(layer: &Path, path: &str) -> std::fs::Metadata {
    std::fs::symlink_metadata(layer.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn xattrs(path: &Path) -> Vec<String> {
    let mut buffer = vec![0u8; 4096];
    let n = rustix::fs::llistxattr(path, &mut buffer[..]).unwrap();
    buffer[..n].split(|b| *b == 0).filter(|n| !n.is_empty()).map(|n| String::from_utf8_lossy(n).into_owned()).collect()
}

#[test]
fn modes_owners_and_times_are_kept() {
    let (data, image) = import(
        Tar::new()
            .owned_by(0, 0)
            .raw(EntryType::Directory, b"./", b"", 0o750, b"")
            .raw(EntryType::Directory, b"closed", b"", 0o555, b"")
            .owned_by(12, 34)
            .raw(EntryType::Regular, b"closed/su", b"", 0o4755, b"x")
            .raw(EntryType::Regular, b"closed/none", b"", 0o000, b"x")
            .symlink("link", "/anywhere")
            .file("implied/deep/file", ""),
    );
    let layer = &image.layers[0];
    assert_eq!(stat(layer, "").mode() & 0o7777, 0o750);
    assert_eq!(stat(layer, "closed").mode() & 0o7777, 0o555);
    assert_eq!(stat(layer, "closed/su").mode() & 0o7777, 0o4755, "setuid is kept: harmless in a user namespace");
    assert_eq!(stat(layer, "closed/none").mode() & 0o7777, 0);
    assert_eq!(stat(layer, "implied/deep").mode() & 0o7777, 0o755);
    for path in ["closed", "closed/su", "link"] {
        assert_eq!(stat(layer, path).mtime(), 1_700_000_000, "{path}");
    }
    let me = rustix::process::geteuid().as_raw();
    let expected = if is_root() { (12, 34) } else { (me, rustix::process::getegid().as_raw()) };
    for path in ["closed/su", "link", "implied/deep/file"] {
        assert_eq!((stat(layer, path).uid(), stat(layer, path).gid()), expected, "{path}");
    }
    assert_eq!(stat(layer, "implied").uid(), me);
    assert_eq!(std::fs::read_link(layer.join("link")).unwrap(), Path::new("/anywhere"));

    sloplet_image::Store::open(data.path()).unwrap().remove("it").unwrap();
    assert!(!layer.exists(), "closed directories are removable, for an ordinary user too");
}

#[test]
fn extended_attributes_are_dropped() {
    let records: &[(&str, &[u8])] = &[
        ("SCHILY.xattr.user.overlay.opaque", b"y"),
        ("SCHILY.xattr.user.overlay.redirect", b"/etc"),
        ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
        ("SCHILY.xattr.security.capability", b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        ("LIBARCHIVE.xattr.user.overlay.whiteout", b"eQ=="),
    ];
    let (_data, image) = import(Tar::new().pax(records).dir("d").pax(records).file("d/f", "x"));
    for path in ["", "d", "d/f"] {
        assert_eq!(xattrs(&image.layers[0].join(path)), Vec::<String>::new(), "{path}");
    }
}

#[test]
fn whiteouts_become_what_overlayfs_understands() {
    let (_data, image) = import(
        Tar::new()
            .file("d/.wh.gone", "")
            .file("o/.wh..wh..opq", "")
            .file("o/new", "")
            .file("d/.wh..wh.plnk", "")
            // Both orders of "removed below, made anew here".
            .file(".wh.first", "")
            .dir("first")
            .dir("second")
            .file(".wh.second", "")
            .file(".wh.file", "")
            .file("file", "new")
            .file("kept", "new")
            .file(".wh.kept", ""),
    );
    let layer = &image.layers[0];
    let gone = stat(layer, "d/gone");
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    for (path, opaque) in [("o", true), ("first", true), ("second", true), ("d", false)] {
        let expected: Vec<String> = if opaque { vec!["user.overlay.opaque".into()] } else { Vec::new() };
        assert_eq!(xattrs(&layer.join(path)), expected, "{path}");
    }
    for path in ["file", "kept"] {
        assert_eq!(std::fs::read_to_string(layer.join(path)).unwrap(), "new");
    }
    let names = common::snapshot(layer);
    assert!(!names.iter().any(|n| n.contains(".wh.")), "{names:?}");
    assert_eq!(image.skipped_entries, 1, "AUFS bookkeeping");
}

#[test]
fn later_entries_win() {
    let (_data, image) = import(
        Tar::new()
            .file("file", "old")
            .hardlink("other-name", "file")
            .file("file", "new")
            .dir("dir-then-file")
            .file("dir-then-file/child", "")
            .file("dir-then-file", "now a file")
            .file("file-then-dir", "")
            .dir("file-then-dir")
            .file("file-then-dir/child", "")
            .symlink("link-then-dir", "/etc")
            .dir("link-then-dir")
            .file("link-then-dir/child", "")
            .raw(EntryType::Directory, b"twice", b"", 0o700, b"")
            .raw(EntryType::Directory, b"twice", b"", 0o711, b""),
    );
    let layer = &image.layers[0];
    assert_eq!(std::fs::read_to_string(layer.join("file")).unwrap(), "new");
    assert_eq!(std::fs::read_to_string(layer.join("other-name")).unwrap(), "old", "a new file, not a write into it");
    assert_eq!(std::fs::read_to_string(layer.join("dir-then-file")).unwrap(), "now a file");
    for path in ["file-then-dir/child", "link-then-dir/child"] {
        assert!(stat(layer, path).is_file());
    }
    assert_eq!(stat(layer, "twice").mode() & 0o777, 0o711);
}

#[test]
fn hard_links_share_their_file() {
    let (_data, image) =
        import(Tar::new().file("a/x", "content").hardlink("b/y", "a/x").hardlink("z", "/a/x").hardlink("a/x", "./a/x"));
    let inode = |path| stat(&image.layers[0], path).ino();
    assert_eq!((inode("a/x"), inode("a/x")), (inode("b/y"), inode("z")));
    assert_eq!(stat(&image.layers[0], "a/x").nlink(), 3);
}

#[test]
fn devices_and_fifos_are_left_out_and_counted() {
    let (_data, image) = import(
        Tar::new()
            .raw(EntryType::Char, b"dev/null", b"", 0o666, b"")
            .raw(EntryType::Block, b"dev/sda", b"", 0o660, b"")
            .raw(EntryType::Fifo, b"pipe", b"", 0o644, b"")
            .hardlink("dev/same", "dev/sda")
            .file("kept", ""),
    );
    assert_eq!(image.skipped_entries, 4);
    let files: Vec<_> =
        common::snapshot(&image.layers[0]).into_iter().filter(|l| !l.contains("dev FileType")).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(files[0].contains("/kept "));
}

#[test]
fn long_names_and_pax_values() {
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
    let mut gnu = long.clone().into_bytes();
    gnu.push(0);
    let target = "t".repeat(300);
    let (_data, image) = import(
        Tar::new()
            .raw(EntryType::XGlobalHeader, b"pax_global_header", b"", 0o644, b"19 comment=0123456\n")
            .raw(EntryType::GNULongName, b"././@LongLink", b"", 0o644, &gnu)
            .file("truncated", "by gnu")
            .pax(&[("path", b"p/q"), ("mtime", b"1600000000.5"), ("uid", b"7"), ("linkpath", b"unused")])
            .file("other", "by pax")
            .pax(&[("linkpath", target.as_bytes())])
            .symlink("s", "short"),
    );
    let layer = &image.layers[0];
    assert_eq!(std::fs::read_to_string(layer.join(&long)).unwrap(), "by gnu");
    assert_eq!(std::fs::read_to_string(layer.join("p/q")).unwrap(), "by pax");
    assert_eq!((stat(layer, "p/q").mtime(), stat(layer, "p/q").mtime_nsec()), (1_600_000_000, 500_000_000));
    if is_root() {
        assert_eq!(stat(layer, "p/q").uid(), 7);
    }
    assert_eq!(std::fs::read_link(layer.join("s")).unwrap(), Path::new(&target));
}

#[test]
fn every_compression_is_the_same_layer() {
    let (data, store) = store();
    let plain = Tar::new().file("etc/x", &"some text, ".repeat(20_000)).done();
    let (half, rest) = plain.split_at(100_000);
    let mut two_gzip = gzip(half);
    two_gzip.extend(gzip(rest));
    let mut two_zstd = vec![0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]; // a skippable frame first
    two_zstd.extend(zstd::bulk::compress(half, 1).unwrap());
    two_zstd.extend(zstd::bulk::compress(rest, 1).unwrap());
    let plain_path = common::save(data.path(), &plain);
    let xz = data.path().join("it.tar.xz");
    std::fs::copy(&plain_path, data.path().join("it.tar")).unwrap();
    common::run("xz", &["--keep", data.path().join("it.tar").to_str().unwrap()]);
    let sources = [plain_path, common::save(data.path(), &two_gzip), common::save(data.path(), &two_zstd), xz];
    let images = sources.map(|path| store.import(&path, Some("it"), &silent).unwrap());
    assert_eq!(images[0].digest, format!("sha256:{}", common::sha256(&plain)));
    for image in &images {
        assert_eq!((&image.digest, &image.layers), (&images[0].digest, &images[0].layers));
        assert_eq!(std::fs::metadata(image.layers[0].join("etc/x")).unwrap().len(), 220_000);
    }
}

#[test]
fn overlayfs_agrees_about_the_merged_tree() {
    if !is_root() {
        return; // mounting needs a namespace; sandboxes' own tests cover the unprivileged case
    }
    let lower = Tar::new().file("keep", "1").file("gone", "1").file("dir/old", "1").file("anew/old", "1").done();
    let upper = Tar::new().file(".wh.gone", "").file("dir/.wh..wh..opq", "").file("dir/new", "2");
    let upper = upper.file(".wh.anew", "").dir("anew").file("anew/new", "2").done();
    let (data, store) = store();
    let image = store.import(&layout(data.path(), &[lower, upper]), None, &silent).unwrap();
    let lowers: Vec<_> = image.layers.iter().map(|l| l.to_str().unwrap()).collect();
    let (point, options) = (data.path().join("merged"), format!("userxattr,lowerdir={}", lowers.join(":")));
    std::fs::create_dir(&point).unwrap();
    let script = "mount -t overlay none -o \"$1\" \"$2\" && cd \"$2\" && find . -type f | sort";
    let output = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh", &options])
        .arg(&point)
        .output()
        .unwrap();
    let listed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let expected = "./anew/new\n./dir/new\n./etc/hostname\n./etc/hosts\n./etc/resolv.conf\n./keep\n";
    assert_eq!(listed, expected, "{errors}");
}
