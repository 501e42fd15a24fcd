//! Sources, names, the store's life: import, look-up, replacement, removal, collection.
#![allow(clippy::unwrap_used, clippy::panic, reason = "clippy sees only #[test] functions as tests")]

mod common;

use std::collections::HashSet;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Tar, gzip, is_root, layout, run, snapshot, store};
use sloplet_image::{Image, ImageError, Leases, Store, silent};

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Names of unpacked layers in the store, without those that it makes itself.
fn unpacked_layers(data: &Path) -> Vec<String> {
    let names = std::fs::read_dir(data.join("images/layers")).unwrap();
    let names = names.map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| !n.starts_with("skeleton-") && !n.starts_with("host-")).collect()
}

fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
fn opening_makes_a_private_directory_and_keeps_it_private() {
    let (data, _store) = store();
    let images = data.path().join("images");
    assert_eq!(std::fs::metadata(&images).unwrap().mode() & 0o777, 0o700);
    std::fs::set_permissions(&images, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    Store::open(data.path()).unwrap();
    assert_eq!(std::fs::metadata(&images).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn a_foreign_or_linked_store_is_refused() {
    let (data, _store) = store();
    let other = tempfile::tempdir().unwrap();
    symlink(data.path().join("images"), other.path().join("images")).unwrap();
    assert!(Store::open(other.path()).is_err(), "a link could lead into somebody else's directory");
    if is_root() {
        std::os::unix::fs::chown(data.path().join("images"), Some(1234), None).unwrap();
        assert!(matches!(Store::open(data.path()), Err(ImageError::ForeignStore { owner: 1234, .. })));
    }
}

#[test]
fn a_directory_is_copied_without_following_anything() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    let source = tempfile::tempdir().unwrap();
    let root = source.path();
    std::fs::create_dir_all(root.join("usr/bin")).unwrap();
    std::fs::write(root.join("usr/bin/tool"), "tool").unwrap();
    std::fs::hard_link(root.join("usr/bin/tool"), root.join("usr/bin/alias")).unwrap();
    std::fs::write(root.join(".wh.trick"), "").unwrap();
    symlink(outside.path().join("secret"), root.join("file-link")).unwrap();
    symlink(outside.path(), root.join("dir-link")).unwrap();
    symlink("./usr/../usr//bin", root.join("odd-link")).unwrap();
    let long = "x/".repeat(150);
    symlink(&long, root.join("long-link")).unwrap();
    std::fs::create_dir_all(root.join("d".repeat(120)).join("e".repeat(120))).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();

    let (data, store) = store();
    let image = store.import(root, Some("it"), &silent).unwrap();
    let layer = &image.layers[0];
    assert_eq!(text(&layer.join("usr/bin/tool")), "tool");
    let inode = |name: &str| std::fs::metadata(layer.join("usr/bin").join(name)).unwrap().ino();
    assert_eq!(inode("tool"), inode("alias"));
    for (link, target) in [("file-link", outside.path().join("secret")), ("dir-link", outside.path().to_path_buf())] {
        assert_eq!(std::fs::read_link(layer.join(link)).unwrap(), target, "still a link");
    }
    assert_eq!(std::fs::read_link(layer.join("odd-link")).unwrap().to_str().unwrap(), "./usr/../usr//bin");
    assert_eq!(std::fs::read_link(layer.join("long-link")).unwrap().to_str().unwrap(), long);
    assert!(layer.join("d".repeat(120)).join("e".repeat(120)).is_dir());
    assert!(!layer.join("socket").exists() && !layer.join(".wh.trick").exists() && !layer.join("trick").exists());
    assert_eq!(image.skipped_entries, 1);
    assert_eq!(
        store.import(root, Some("again"), &silent).unwrap().digest,
        image.digest,
        "the same tree, the same layer"
    );
    assert_eq!(unpacked_layers(data.path()).len(), 1);
}

#[test]
fn a_directory_that_holds_the_store_does_not_swallow_it() {
    let (data, store) = store();
    std::fs::write(data.path().join("file"), "x").unwrap();
    let image = store.import(data.path(), Some("it"), &silent).unwrap();
    assert_eq!(entries(&image.layers[0]), 1, "{:?}", snapshot(&image.layers[0]));
}

#[test]
fn paths_are_imported_once_until_they_change() {
    let (data, store) = store();
    let tar = data.path().join("rootfs.tar");
    std::fs::write(&tar, Tar::new().file("version", "1").done()).unwrap();
    let path = tar.to_str().unwrap();
    let first = store.resolve(path).unwrap();
    let inode = |image: &Image| std::fs::metadata(&image.layers[0]).unwrap().ino();
    assert_eq!(store.resolve(path).unwrap(), first);
    assert_eq!(store.list().unwrap(), [], "an image by path has no name");
    assert_eq!(store.gc().unwrap().layers, 0, "and is kept");
    assert_eq!(inode(&store.resolve(path).unwrap()), inode(&first));

    std::fs::write(&tar, Tar::new().file("version", "2").done()).unwrap();
    let second = store.resolve(path).unwrap();
    assert_eq!(text(&second.layers[0].join("version")), "2");
    assert_eq!(store.gc().unwrap().layers, 1, "the old content is no longer wanted");

    std::fs::remove_file(&tar).unwrap();
    assert!(store.resolve(path).is_err());
    let collected = store.gc().unwrap();
    assert_eq!((collected.layers, collected.paths), (1, 1));
}

#[test]
fn a_change_deep_in_a_directory_is_noticed() {
    let (data, store) = store();
    let root = data.path().join("rootfs");
    std::fs::create_dir_all(root.join("a/b")).unwrap();
    std::fs::write(root.join("a/b/file"), "1").unwrap();
    let path = root.to_str().unwrap();
    let first = store.resolve(path).unwrap();
    assert_eq!(store.resolve(path).unwrap(), first);
    std::fs::write(root.join("a/b/file"), "2").unwrap();
    assert_eq!(text(&store.resolve(path).unwrap().layers[0].join("a/b/file")), "2");
}

#[test]
fn names_with_and_without_a_tag() {
    let (data, store) = store();
    let source = Tar::new().file("x", "1").save(data.path());
    assert_eq!(store.import(&source, Some("tool"), &silent).unwrap().name, "tool:latest");
    store.import(&Tar::new().file("x", "2").save(data.path()), Some("tool:2"), &silent).unwrap();
    for (name, content) in [("tool", "1"), ("tool:latest", "1"), ("docker.io/library/tool", "1"), ("tool:2", "2")] {
        assert_eq!(text(&store.resolve(name).unwrap().layers[0].join("x")), content, "{name}");
    }
    let names: Vec<_> = store.list().unwrap().into_iter().map(|i| i.name).collect();
    assert_eq!(names, ["tool:2", "tool:latest"]);
    for bad in ["host", "host:latest", "../x", "a b", "/abs", ""] {
        assert!(matches!(store.import(&source, Some(bad), &silent), Err(ImageError::BadName { .. })), "{bad}");
    }
}

#[test]
fn an_unknown_image_says_what_there_is() {
    let (data, store) = store();
    store.import(&Tar::new().file("x", "").save(data.path()), Some("tool"), &silent).unwrap();
    let message = store.resolve("nosuch").unwrap_err().to_string();
    for part in ["'nosuch'", "host, tool:latest", "sloplet image import", "sloplet image pull"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(store.remove("nosuch").unwrap_err().to_string().contains("tool:latest"));
    assert!(store.resolve("tool:3").is_err());
    assert!(store.resolve("./nosuch.tar").unwrap_err().to_string().contains("nosuch.tar"));
}

#[test]
fn importing_again_replaces_and_removing_frees() {
    let (data, store) = store();
    let first = store.import(&Tar::new().file("x", "1").save(data.path()), Some("it"), &silent).unwrap();
    let second = store.import(&Tar::new().file("x", "2").save(data.path()), Some("it"), &silent).unwrap();
    assert_eq!(store.resolve("it").unwrap(), second);
    assert_ne!(first.digest, second.digest);
    assert_eq!(store.gc().unwrap().layers, 1);
    assert!(!first.layers[0].exists() && second.layers[0].exists());
    store.remove("it").unwrap();
    assert_eq!(unpacked_layers(data.path()), Vec::<String>::new());
    assert_eq!(entries(&data.path().join("images/info")), 0);
    assert_eq!(entries(&data.path().join("images/tmp")), 0);
}

#[test]
fn a_failed_import_leaves_the_old_image() {
    let (data, store) = store();
    let good = store.import(&Tar::new().file("x", "1").save(data.path()), Some("it"), &silent).unwrap();
    store.import(&Tar::new().file("../x", "2").save(data.path()), Some("it"), &silent).unwrap_err();
    assert_eq!(store.resolve("it").unwrap(), good);
}

#[test]
fn layers_in_use_are_kept() {
    let (data, store) = store();
    let image = store.import(&Tar::new().file("x", "1").save(data.path()), Some("it"), &silent).unwrap();
    let leases = Leases::default();
    let (first, second) = (leases.take(&image).unwrap(), leases.take(&image).unwrap());
    store.remove("it").unwrap();
    assert!(image.layers[0].exists(), "leased");
    drop(first);
    store.gc().unwrap();
    assert!(image.layers[0].exists(), "leased by another");
    drop(second);
    let in_use: HashSet<_> = image.layers.iter().cloned().collect();
    assert_eq!(store.gc_keeping(&in_use).unwrap().layers, 0);
    assert!(image.layers[0].exists(), "said to be in use");
    assert_eq!(store.gc().unwrap().layers, 1);
    assert!(leases.take(&image).is_err(), "gone");
}

#[test]
fn layers_are_shared_between_images() {
    let (data, store) = store();
    let shared = Tar::new().file("shared", "1").done();
    let other = tempfile::tempdir().unwrap();
    let one = layout(data.path(), &[shared.clone(), Tar::new().file("x", "1").done()]);
    let two = layout(other.path(), &[shared.clone(), shared, Tar::new().file("x", "2").done()]);
    let one = store.import(&one, Some("one"), &silent).unwrap();
    let two = store.import(&two, Some("two"), &silent).unwrap();
    assert_eq!(one.layers[1], two.layers[1]);
    assert_eq!(unpacked_layers(data.path()).len(), 3);
    assert_eq!((one.size_bytes, two.size_bytes), (2, 3), "a layer already there counts as well");
    store.remove("one").unwrap();
    assert!(two.layers.iter().all(|l| l.exists()));
}

#[test]
fn concurrent_imports_of_the_same_layer() {
    let (data, store) = store();
    let source = (0..200).fold(Tar::new(), |tar, i| tar.file(&format!("d{i}/f"), "x")).save(data.path());
    std::thread::scope(|scope| {
        let imports: Vec<_> = (0..6)
            .map(|i| {
                scope.spawn({
                    let (store, source) = (store.clone(), source.clone());
                    move || {
                        let image = store.import(&source, Some(&format!("n{}", i % 2)), &silent);
                        store.gc().map(|_| image)
                    }
                })
            })
            .collect();
        for import in imports {
            let image = import.join().unwrap().unwrap().unwrap();
            assert_eq!(entries(&image.layers[0]), 200);
        }
    });
    assert_eq!(store.list().unwrap().len(), 2);
    assert_eq!(unpacked_layers(data.path()).len(), 1);
    store.gc().unwrap();
    assert_eq!(entries(&data.path().join("images/tmp")), 0);
}

fn check_two_layers(image: &Image) {
    assert_eq!(image.layers.len(), 3, "two and the skeleton");
    assert_eq!(text(&image.layers[0].join("etc/who")), "top");
    assert_eq!(text(&image.layers[1].join("etc/who")), "bottom");
    assert!(image.layers[2].join("proc").is_dir() && image.layers[2].join("etc/resolv.conf").is_file());
    assert_eq!(image.config.env, [("A".into(), "1".into()), ("PATH".into(), "/bin".into())]);
    assert_eq!(image.config.workdir.as_deref(), Some("/srv"));
    assert_eq!(image.config.user.as_deref(), Some("1000:1000"));
    assert_eq!((&image.config.entrypoint[0][..], &image.config.cmd[0][..]), ("/bin/entry", "serve"));
}

fn two_layers() -> [Vec<u8>; 2] {
    [Tar::new().file("etc/who", "bottom").done(), Tar::new().file("etc/who", "top").done()]
}

#[test]
fn oci_layout_as_directory_and_as_tar() {
    let (data, store) = store();
    let source = layout(data.path(), &two_layers());
    let image = store.import(&source, Some("dir"), &silent).unwrap();
    check_two_layers(&image);
    assert!(image.digest.starts_with("sha256:"));
    check_two_layers(&store.resolve(source.to_str().unwrap()).unwrap());
    let tar = data.path().join("layout.tar");
    run("tar", &["-C", source.to_str().unwrap(), "-cf", tar.to_str().unwrap(), "."]);
    let from_tar = store.import(&tar, Some("tar"), &silent).unwrap();
    check_two_layers(&from_tar);
    assert_eq!(from_tar.digest, image.digest);
}

#[test]
fn archives_made_by_skopeo() {
    let (data, store) = store();
    let source = format!("oci:{}", layout(data.path(), &two_layers()).display());
    let made = |kind: &str, name: &str| {
        let path = data.path().join(name);
        run("skopeo", &["--insecure-policy", "copy", "--quiet", &source, &format!("{kind}:{}", path.display())]);
        path
    };
    let docker = made("docker-archive", "docker.tar");
    check_two_layers(&store.import(&docker, Some("docker"), &silent).unwrap());
    check_two_layers(&store.import(&made("oci-archive", "oci.tar"), Some("oci"), &silent).unwrap());
    check_two_layers(&store.import(&made("oci", "oci-dir"), Some("oci-dir"), &silent).unwrap());
    let unpacked = data.path().join("unpacked");
    std::fs::create_dir(&unpacked).unwrap();
    run("tar", &["-C", unpacked.to_str().unwrap(), "-xf", docker.to_str().unwrap()]);
    check_two_layers(&store.import(&unpacked, Some("docker-dir"), &silent).unwrap());
    let zipped = data.path().join("docker.tar.gz");
    std::fs::write(&zipped, gzip(&std::fs::read(&docker).unwrap())).unwrap();
    check_two_layers(&store.resolve(zipped.to_str().unwrap()).unwrap());
    assert_eq!(unpacked_layers(data.path()).len(), 2, "all of them have the same layers");
}

#[test]
fn a_rootfs_with_a_manifest_in_it_is_a_rootfs() {
    let (data, store) = store();
    let tar = Tar::new().file("manifest.json", "[]").file("bin/sh", "").save(data.path());
    assert!(store.import(&tar, None, &silent).unwrap().layers[0].join("manifest.json").is_file());
    let dir = data.path().join("rootfs");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("manifest.json"), "{}").unwrap();
    assert!(store.import(&dir, None, &silent).unwrap().layers[0].join("manifest.json").is_file());
}

/// Changes one file of a layout by `edit` and tries to import it.
fn tampered(edit: impl Fn(&Path)) -> ImageError {
    let (data, store) = store();
    let source = layout(data.path(), &two_layers());
    edit(&source);
    let error = store.import(&source, Some("evil"), &silent).unwrap_err();
    assert_eq!(unpacked_layers(data.path()), Vec::<String>::new());
    assert_eq!(entries(&data.path().join("images/names")) + entries(&data.path().join("images/tmp")), 0);
    error
}

fn blob_with(layout: &Path, marker: &str) -> std::path::PathBuf {
    let blobs = std::fs::read_dir(layout.join("blobs/sha256")).unwrap().map(|e| e.unwrap().path());
    let is_it = |p: &std::path::PathBuf| String::from_utf8_lossy(&std::fs::read(p).unwrap()).contains(marker);
    blobs.into_iter().find(is_it).unwrap()
}

#[test]
fn every_digest_is_checked() {
    let replace = |path: &Path, from: &str, to: &str| {
        let changed = text(path).replacen(from, to, 1);
        std::fs::write(path, changed).unwrap();
    };
    let mismatch = |error: ImageError| assert!(matches!(error, ImageError::DigestMismatch { .. }), "{error}");
    mismatch(tampered(|l| replace(&blob_with(l, "\"layers\":["), "\"schemaVersion\":2", "\"schemaVersion\":3")));
    mismatch(tampered(|l| replace(&blob_with(l, "diff_ids"), "A=1", "A=2")));
    // A layer replaced by another, well-formed one.
    mismatch(tampered(|l| {
        let manifest = text(&blob_with(l, "\"layers\":["));
        let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
        let digest = manifest["layers"][1]["digest"].as_str().unwrap().replace("sha256:", "");
        std::fs::write(l.join("blobs/sha256").join(digest), gzip(&Tar::new().file("evil", "").done())).unwrap();
    }));
}

#[test]
fn manifests_that_lie() {
    let index = |l: &Path, digest: &str| {
        let manifests = serde_json::json!({"schemaVersion": 2, "manifests": [{"digest": digest, "size": 2}]});
        std::fs::write(l.join("index.json"), manifests.to_string()).unwrap();
    };
    for digest in ["sha256:../../../etc/passwd", "sha256:", "md5:00", "../../x", &format!("sha256:{}", "A".repeat(64))]
    {
        let error = tampered(|l| index(l, digest));
        assert!(matches!(error, ImageError::BadManifest { .. }), "{error}");
    }
    let errors = [
        tampered(|l| std::fs::write(l.join("index.json"), "{").unwrap()),
        tampered(|l| std::fs::write(l.join("index.json"), r#"{"manifests":[]}"#).unwrap()),
        tampered(|l| std::fs::write(l.join("index.json"), r#"{"manifests":[{"digest":1}]}"#).unwrap()),
        // A blob that is a link to a file of the host.
        tampered(|l| {
            let blob = blob_with(l, "diff_ids");
            std::fs::remove_file(&blob).unwrap();
            symlink("/etc/passwd", &blob).unwrap();
        }),
    ];
    for error in errors {
        assert!(matches!(error, ImageError::BadManifest { .. }), "{error}");
    }
}

#[test]
fn a_docker_save_archive_cannot_read_the_host() {
    let (data, store) = store();
    let secret = data.path().join("secret.json");
    std::fs::write(&secret, "{}").unwrap();
    for config in [secret.to_str().unwrap(), "../../../secret.json", "link.json"] {
        let manifest = serde_json::json!([{"Config": config, "RepoTags": [], "Layers": []}]);
        let dir = data.path().join("save");
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
        symlink(&secret, dir.join("link.json")).unwrap();
        let error = store.import(&dir, None, &silent).unwrap_err();
        assert!(matches!(error, ImageError::BadManifest { .. }), "{config}: {error}");
    }
}

const KILLED_IMPORT: &str = "SLOPLET_TEST_KILLED_IMPORT";

/// Not a test of its own: the process that the next one kills.
#[test]
fn import_to_be_killed() {
    let Ok(data) = std::env::var(KILLED_IMPORT) else { return };
    let data = Path::new(&data);
    let store = Store::open(data).unwrap();
    store.import(&data.join("big.tar"), Some("big"), &silent).unwrap();
}

#[test]
fn what_a_killed_import_leaves_is_collected() {
    let (data, store) = store();
    let big = (0..20_000).fold(Tar::new(), |tar, i| tar.file(&format!("d{}/f{i}", i % 100), "x")).done();
    std::fs::write(data.path().join("big.tar"), big).unwrap();
    let tmp = data.path().join("images/tmp");
    let mut killed_midway = 0;
    for round in 0..4 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "import_to_be_killed"])
            .env(KILLED_IMPORT, data.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while entries(&tmp) < 2 && Instant::now() < deadline && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(30 * round));
        if child.try_wait().unwrap().is_none() && entries(&tmp) > 0 {
            assert_eq!(store.gc().unwrap().dead_imports, 0, "a living import is left alone");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        killed_midway += usize::from(entries(&tmp) > 0);
        store.gc().unwrap();
        assert_eq!(entries(&tmp), 0, "{:?}", snapshot(&tmp));
        if store.list().unwrap().is_empty() {
            assert_eq!(unpacked_layers(data.path()), Vec::<String>::new());
        }
    }
    assert!(killed_midway > 0, "no import was hit in the middle: the test shows nothing");
    store.import(&data.path().join("big.tar"), Some("big"), &silent).unwrap();
    assert_eq!(entries(&store.resolve("big").unwrap().layers[0]), 100);
}
