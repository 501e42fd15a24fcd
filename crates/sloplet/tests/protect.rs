//! The blast radius: what `[protect]` lists is never shown, passed or allowed, whoever asks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use common::{Host, Sloplet, rounds};

/// A file that protects a folder, a variable and a host.
fn protecting(sloplet: &Sloplet) -> (PathBuf, PathBuf) {
    let folder = sloplet.folder("vault/orders");
    fs::write(folder.join("table"), "secret").unwrap();
    let file = sloplet.folder("config").join("sloplet.toml");
    let text = format!(
        "[protect]\nhosts = [\"db.internal\"]\npaths = [{:?}]\nenv = [\"STRIPE_KEY\", \"AWS_*\"]\n",
        folder.display().to_string()
    );
    fs::write(&file, text).unwrap();
    (file, folder)
}

#[test]
fn runs_are_refused_by_name_of_the_rule() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let (file, folder) = protecting(&sloplet);
        let config = ["--config", file.to_str().unwrap()];
        let inside = folder.join("table");
        for (options, rule) in [
            (vec!["--mount".to_owned(), format!("{}:/x", folder.display())], folder.to_str().unwrap()),
            (vec!["--mount".to_owned(), format!("{}:/x", inside.display())], folder.to_str().unwrap()),
            (
                vec!["--mount".to_owned(), format!("{}:/x", folder.parent().unwrap().display())],
                folder.to_str().unwrap(),
            ),
            (vec!["--env".to_owned(), "STRIPE_KEY=x".to_owned()], "STRIPE_KEY"),
            (vec!["--env".to_owned(), "AWS_SECRET=x".to_owned()], "AWS_*"),
        ] {
            let options: Vec<&str> = config.into_iter().chain(options.iter().map(String::as_str)).collect();
            let ended = sloplet.run(&options, &["true"]).expect_code(125);
            assert!(ended.stderr.contains(rule) && ended.stderr.contains("protected"), "{ended}");
            assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
        }
        let options = [&config[..], &["--env", "OTHER=1"]].concat();
        sloplet.run(&options, &["true"]).expect_code(0);
    }
}

#[test]
fn a_file_in_the_working_directory_is_found_and_flags_win() {
    let host = Host::shared();
    let root = host.root();
    let folder = root.folder("project");
    fs::write(folder.join("sloplet.toml"), "[sandbox]\nhostname = \"filed\"\nenv = [\"FROM=file\"]\n").unwrap();
    let script = format!("cd {} && exec \"$@\"", folder.display());
    let binary = host.binary().to_str().unwrap();
    let run = |options: &[&str]| {
        let words = [&["sh", "-c", &script, "sh", binary, "run"], options, &["--", "sh", "-c", "hostname; echo $FROM"]]
            .concat();
        root.other_program(&words).finish().expect_code(0).out()
    };
    // What does more than tighten is its owner's word only once they have said so.
    root.invoke(&["trust", folder.to_str().unwrap()]).finish().expect_code(0);
    assert_eq!(run(&[]), "filed\nfile\n");
    assert_eq!(run(&["--hostname", "flagged", "--env", "FROM=flag"]), "flagged\nflag\n");
    fs::write(folder.join("sloplet.toml"), "[sandbox]\nmemroy = \"1GiB\"\n").unwrap();
    let ended = root.other_program(&["sh", "-c", &script, "sh", binary, "run", "--", "true"]).finish().expect_code(125);
    assert!(ended.stderr.contains("line 2") && ended.stderr.contains("memroy"), "{ended}");
}

#[test]
fn what_is_protected_is_probed() {
    let host = Host::shared();
    let root = host.root();
    let (file, folder) = protecting(&root);
    let words = [
        "verify",
        "--config",
        file.to_str().unwrap(),
        "--probe",
        "blast-radius",
        "--probe",
        "protected-things",
        "--json",
    ];
    let verify = |weakness: &str, words: &[&str]| {
        root.invoke(words)
            .env("STRIPE_KEY", "sk_live_canary")
            .env("SLOPLET_TEST_WEAKEN", weakness)
            .within(Duration::from_secs(90))
            .finish()
    };
    let ended = verify("", &words).expect_code(0);
    assert!(
        ended.out().contains(&format!("path {}", folder.display())) && ended.out().contains("variable STRIPE_KEY"),
        "{ended}"
    );
    assert!(!ended.out().contains("inconclusive"), "{ended}");
    assert!(!ended.out().contains("sk_live_canary"), "a value is told: {ended}");
    for weakness in ["environment", "protected-env", "host-root", "protected-paths"] {
        // The folder is shown at its own path inside only by a mount that should have been refused.
        let more = [&words[..], &["--weaken", weakness]].concat();
        let ended = verify(weakness, &more);
        let expected = if weakness == "host-root" { 0 } else { 1 };
        assert_eq!(ended.code, expected, "{weakness}: {ended}");
    }
}

#[test]
fn a_server_keeps_its_protections_whoever_asks() {
    let host = Host::shared();
    let root = host.root();
    let (file, folder) = protecting(&root);
    let server = common::Server::start_with(&root, &["--config", file.to_str().unwrap()]);
    let mount = format!("{}:/x", folder.display());
    for (words, rule) in [
        (vec!["create", "--mount", mount.as_str()], folder.to_str().unwrap()),
        (vec!["create", "--env", "STRIPE_KEY=x"], "STRIPE_KEY"),
    ] {
        let ended = root.invoke(&words).finish().expect_code(125);
        assert!(ended.stderr.contains(rule) && ended.stderr.contains("protected"), "{ended}");
    }
    root.invoke(&["create", "--name", "fine"]).finish().expect_code(0);
    let ended = root.invoke(&["exec", "-e", "AWS_KEY=x", "fine", "--", "true"]).finish();
    assert!(ended.code != 0 && ended.stderr.contains("AWS_*"), "{ended}");
    root.invoke(&["exec", "fine", "--", "true"]).finish().expect_code(0);
    server.end_with_its_sandboxes();
}

#[test]
fn init_finds_what_is_worth_protecting_and_writes_no_secret() {
    let host = Host::shared();
    let root = host.root();
    let folder = root.folder("fresh");
    fs::write(folder.join(".env"), "KEY=value").unwrap();
    fs::create_dir_all(folder.join("home/.ssh")).unwrap();
    let script = format!("cd {} && exec \"$@\"", folder.display());
    let binary = host.binary().to_str().unwrap();
    let init = |more: &[&str]| {
        let words = [&["sh", "-c", &script, "sh", binary, "init"], more].concat();
        root.other_program(&words)
            .env("HOME", folder.join("home").to_str().unwrap())
            .env("PAY_TOKEN", "very-secret-value")
            .env("DATABASE_URL", "postgres://me:hunter2@orders.internal:5432/x")
            .finish()
    };
    init(&["--yes"]).expect_code(0);
    let text = fs::read_to_string(folder.join("sloplet.toml")).unwrap();
    for found in ["~/.ssh", ".env", "PAY_TOKEN", "DATABASE_URL", "orders.internal"] {
        assert!(text.contains(found), "{found}: {text}");
    }
    assert!(!text.contains("very-secret-value") && !text.contains("hunter2"), "{text}");
    // It does not overwrite, and what it wrote works.
    let ended = init(&["--yes"]).expect_code(125);
    assert!(ended.stderr.contains("--force"), "{ended}");
    let words = ["sh", "-c", &script, "sh", binary, "run", "--env", "PAY_TOKEN=x", "--", "true"];
    let ended = root.other_program(&words).finish().expect_code(125);
    assert!(ended.stderr.contains("PAY_TOKEN"), "{ended}");
}

/// Swaps a folder of a writable mount for a symlink, and back, as fast as it can.
const SWAPPER: &str = "
import ctypes
libc = ctypes.CDLL(None)
here, sub, evil = -100, b'/p/sub', b'/p/evil'
open('/p/swapping', 'w').close()
while True:
    libc.renameat2(here, sub, here, evil, 2)
";

#[test]
fn a_folder_that_is_swapped_for_a_link_is_never_mounted() {
    let host = Host::shared();
    let root = host.root();
    let (file, vault) = protecting(&root);
    let folder = root.folder("swapped");
    fs::create_dir(folder.join("sub")).unwrap();
    fs::write(folder.join("sub/table"), "open").unwrap();
    std::os::unix::fs::symlink(&vault, folder.join("evil")).unwrap();
    let all = format!("{}:/p:rw", folder.display());
    let swapper = root.invoke_run(&["--mount", &all, "--timeout", "10m"], &["python3", "-c", SWAPPER]);
    let swapper = swapper.within(Duration::from_secs(600)).start();
    let started = std::time::Instant::now();
    while !folder.join("swapping").exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "the swapper does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mount = format!("{}:/x:rw", folder.join("sub").display());
    let options = ["--config", file.to_str().unwrap(), "--mount", &mount];
    for _ in 0..rounds(100, 40) {
        let ended = root.sh(&options, "cat /x/table; echo x > /x/written");
        assert!(ended.code == 125 || ended.out() == "open", "the vault was shown: {ended}");
        assert!(!vault.join("written").exists(), "the vault was written to: {ended}");
    }
    drop(swapper);
    assert_eq!(fs::read_to_string(vault.join("table")).unwrap(), "secret");
}

#[test]
fn sockets_and_fifos_in_a_read_only_mount_are_refused_unless_allowed() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let folder = sloplet.folder("talking");
        fs::create_dir(folder.join("deep")).unwrap();
        let socket = folder.join("deep/socket");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let mount = format!("{}:/x", folder.display());
        let ended = sloplet.run(&["--mount", &mount], &["true"]).expect_code(125);
        assert!(ended.stderr.contains(socket.to_str().unwrap()) && ended.stderr.contains("ro,sockets"), "{ended}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
        let file = format!("{}:/x/socket", socket.display());
        sloplet.run(&["--mount", &file], &["true"]).expect_code(125);
        sloplet.run(&["--mount", &format!("{mount}:ro,sockets")], &["true"]).expect_code(0);
        drop(listener);
        fs::remove_file(&socket).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, folder.join("pipe"), rustix::fs::Mode::RWXU).unwrap();
        sloplet.run(&["--mount", &mount], &["true"]).expect_code(125).expect_said("pipe");
        sloplet.run(&["--mount", &format!("{mount}:rw")], &["true"]).expect_code(0);
    }
}

#[test]
fn keys_in_another_s_home_are_not_shown_even_without_a_home_of_one_s_own() {
    let host = Host::shared();
    let root = host.root();
    // The test user's home is in the table of accounts; root could read all of it.
    let home = common::Account::of_tests().home;
    let keys = home.join(".vault-token");
    let made = fs::OpenOptions::new().create(true).append(true).open(&keys).is_ok();
    assert!(made, "{}", keys.display());
    let mount = format!("{}:/keys", keys.display());
    for home in ["/root", "/nonexistent", ""] {
        let ended = root.invoke_run(&["--mount", &mount], &["true"]).env("HOME", home).finish().expect_code(125);
        assert!(ended.stderr.contains("protected"), "{ended}");
    }
    fs::remove_file(keys).unwrap();
}
