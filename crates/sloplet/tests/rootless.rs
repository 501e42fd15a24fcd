//! Sandboxes of an ordinary user, next to those of root: who commands are inside, whose their files are outside, and
//! what cannot be had without root or delegation is said.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use common::{Account, Host, Sloplet};

#[test]
fn the_host_image_runs_commands_as_user() {
    let host = Host::shared();
    let leaks = host.leaks();
    for sloplet in [host.root(), host.user(), host.stranger()] {
        let ended = sloplet.run(&[], &["id"]).expect_code(0);
        assert!(ended.out().starts_with("uid=1000(user) gid=1000(user)"), "{}: {ended}", sloplet.name);
        assert_eq!(ended.stderr, "", "{ended}");
        let root = sloplet.run(&["--user", "root"], &["id", "-u"]);
        match &sloplet.account {
            None => assert_eq!(root.expect_code(0).word(), "0"),
            // One id is mapped for this image.
            Some(_) => drop(root.expect_code(125).expect_said("no user \"root\"")),
        }
    }
    leaks.assert_none_new();
}

#[test]
fn an_imported_image_has_its_own_users() {
    let host = Host::shared();
    let tar = common::small_image(&host, &["sh", "id", "cat", "touch", "ls", "stat", "chown", "mkdir"]);
    let leaks = host.leaks();
    for sloplet in [host.root(), host.user(), host.stranger()] {
        let tar = tar.to_str().unwrap();
        let image = sloplet.invoke(&["image", "import", tar, "--name", "small"]).finish();
        image.expect_code(0);
        let seen =
            sloplet.sh(&["--image", "small"], "cat /etc/image; id -un; id -u; touch /home/user/x /tmp/y && echo fine");
        assert_eq!(seen.expect_code(0).out(), "small\nuser\n1000\nfine\n", "{}", sloplet.name);
        let root =
            sloplet.sh(&["--image", "small", "--user", "root"], "id; touch /bin/x /root/y && stat -c %u:%g /bin/x");
        if sloplet.name == "stranger" {
            root.expect_code(125).expect_said("no user \"root\"");
            continue;
        }
        let root = root.expect_code(0);
        assert!(root.out().starts_with("uid=0(root) gid=0(root)"), "{}: {root}", sloplet.name);
        assert!(root.out().ends_with("\n0:0\n"), "{}: {root}", sloplet.name);
        // Root inside may give files to others inside.
        let script = "touch /tmp/x && chown 1000:1000 /tmp/x && chown 33:33 /tmp/x && stat -c %u:%g /tmp/x";
        let given = sloplet.sh(&["--image", "small", "--user", "root"], script).expect_code(0);
        assert_eq!(given.word(), "33:33", "{given}");
        // A path needs no import.
        let path = sloplet.run(&["--image", tar], &["cat", "/etc/image"]).expect_code(0);
        assert_eq!(path.word(), "small");
    }
    leaks.assert_none_new();
}

fn owner(path: &Path) -> (u32, u32) {
    let meta = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (meta.uid(), meta.gid())
}

/// Runs a script with that folder at /mnt; the folder is `mode`.
fn with_mount(sloplet: &Sloplet, folder: &Path, mode: &str, options: &[&str], script: &str) -> common::Ended {
    let mount = format!("{}:/mnt:{mode}", folder.display());
    sloplet.sh(&[&["--mount", mount.as_str()], options].concat(), script)
}

#[test]
fn files_in_mounts_belong_to_the_folders_owner() {
    let host = Host::shared();
    let tar =
        common::small_image(&host, &["sh", "id", "cat", "touch", "ls", "stat", "chown", "mkdir"]).display().to_string();
    let user = Account::of_tests();
    for sloplet in [host.root(), host.user(), host.stranger()] {
        let own = sloplet.account.as_ref().map_or((0, 0), |account| (account.uid, account.gid));
        let mut owners = vec![own];
        if sloplet.account.is_none() {
            owners.push((user.uid, user.gid));
        }
        for (number, owner_outside) in owners.into_iter().enumerate() {
            for image in ["host", tar.as_str()] {
                let folder = sloplet.folder(&format!("mount-{number}-{}", image == "host"));
                fs::write(folder.join("given"), "from outside\n").unwrap();
                for path in [folder.clone(), folder.join("given")] {
                    chown(path, Some(owner_outside.0), Some(owner_outside.1)).unwrap();
                }
                let options = ["--image", image];
                let script = "cat /mnt/given; echo more >>/mnt/given; mkdir /mnt/made && echo x >/mnt/made/file; \
                              stat -c %u:%g /mnt /mnt/given /mnt/made/file";
                let written = with_mount(&sloplet, &folder, "rw", &options, script).expect_code(0);
                assert_eq!(
                    written.out(),
                    "from outside\n1000:1000\n1000:1000\n1000:1000\n",
                    "{}, {image}: {written}",
                    sloplet.name
                );
                for path in ["given", "made", "made/file"] {
                    assert_eq!(owner(&folder.join(path)), owner_outside, "{}, {image}: {path}", sloplet.name);
                }
                assert_eq!(fs::read_to_string(folder.join("given")).unwrap(), "from outside\nmore\n");

                let script =
                    "cat /mnt/made/file; echo bad >/mnt/bad || echo bad >/mnt/given || mkdir /mnt/bad || exit 77";
                let refused = with_mount(&sloplet, &folder, "ro", &options, script).expect_code(77);
                assert_eq!(refused.out(), "x\n", "{}, {image}: {refused}", sloplet.name);
                assert!(!folder.join("bad").exists());
                let usual = format!("{}:/mnt", folder.display());
                let unsaid = sloplet.sh(&["--mount", &usual, "--image", image], "echo bad >/mnt/bad");
                assert_ne!(unsaid.code, 0, "a mount is read-only unless said otherwise: {unsaid}");
            }
        }
    }
}

#[test]
fn what_a_user_may_not_read_he_cannot_mount() {
    let host = Host::shared();
    let secret = host.root().folder("secret");
    fs::write(secret.join("key"), "secret").unwrap();
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let ended = with_mount(&host.user(), &secret, "ro", &[], "cat /mnt/key");
    assert!(!ended.out().contains("secret"), "{ended}");
    assert_ne!(ended.code, 0, "{ended}");
    let root = with_mount(&host.root(), &secret, "ro", &[], "cat /mnt/key").expect_code(0);
    assert_eq!(root.word(), "secret");
}

#[test]
fn limits_that_cannot_be_enforced_are_refused_or_said() {
    let host = Host::shared();
    let leaks = host.leaks();
    let user = host.user_without_cgroups();
    let refused = user.run(&[], &["true"]).expect_code(125);
    assert_eq!(refused.stderr.lines().count(), 1, "{refused}");
    let accepted = user.run(&["--best-effort"], &["echo", "fine"]).expect_code(0);
    assert_eq!(accepted.word(), "fine", "{accepted}");
    for feature in ["memory", "cpu", "pids"] {
        assert!(refused.stderr.contains(feature), "{feature}: {refused}");
        let warned =
            accepted.stderr.lines().any(|line| line.starts_with("sloplet: warning: ") && line.contains(feature));
        assert!(warned, "{feature}: {accepted}");
    }
    assert!(refused.stderr.contains("--best-effort"), "{refused}");
    // What needs no control group holds all the same.
    let options = ["--best-effort", "--disk", "8MiB", "--timeout", "1s"];
    let held = user.sh(&options, "head -c 20M /dev/zero >/tmp/x || echo full; sleep 100").expect_code(124);
    assert_eq!(held.word(), "full", "{held}");
    leaks.assert_none_new();
}

#[test]
fn the_level_process_needs_no_namespaces() {
    let host = Host::alone();
    let leaks = host.leaks();
    for sloplet in [host.root(), host.user()] {
        let options = ["--isolation", "process"];
        let ended = sloplet.run(&options, &["python3", "-c", "print(6 * 7)"]);
        let ended = if sloplet.account.is_some() && ended.code == 125 {
            let options = ["--isolation", "process", "--best-effort"];
            sloplet.run(&options, &["python3", "-c", "print(6 * 7)"])
        } else {
            ended
        };
        assert_eq!(ended.expect_code(0).word(), "42", "{}", sloplet.name);
        let options = ["--isolation", "process", "--best-effort", "--timeout", "1s"];
        sloplet.sh(&options, "setsid sleep 1000 & sleep 1000").expect_code(124);
        let uid = sloplet.sh(&["--isolation", "process", "--best-effort"], "id -u").expect_code(0).word();
        assert_ne!(uid, "0", "{}: never root", sloplet.name);
    }
    leaks.assert_none_new();
}
