//! A server parses strangers' bytes: whoever takes it over must not have taken the host over.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use common::server::Server;
use common::{Ended, Host, wait};

/// What the attempts are, by name, and what came of them.
fn results(ended: &Ended) -> BTreeMap<String, String> {
    let line = |line: &str| line.split_once(' ').map(|(name, result)| (name.to_owned(), result.to_owned()));
    ended.out().lines().filter_map(line).collect()
}

fn attempt(host: &Host, words: &[&str]) -> BTreeMap<String, String> {
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(outside.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(outside.path().join("secret"), "s").unwrap();
    fs::set_permissions(outside.path().join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let _service = UnixListener::bind(outside.path().join("service")).unwrap();
    let sloplet = host.root();
    let outside = outside.path().to_str().unwrap();
    results(&sloplet.invoke(&[&["__taken-over", outside], words].concat()).finish().expect_code(0))
}

#[test]
fn a_server_that_was_taken_over_reaches_nothing_of_the_host() {
    let host = Host::shared();
    // Each attempt takes effect where nothing is confined, else its failure would prove nothing. There is no monitor there.
    let free = attempt(&host, &["--unconfined"]);
    let needs_monitor = ["ask-for-passwords", "ask-for-a-signal"];
    for (name, result) in &free {
        assert!(result == "done" || needs_monitor.contains(&name.as_str()), "{name}: {result}");
    }
    let confined = attempt(&host, &[]);
    assert_eq!(confined.keys().collect::<Vec<_>>(), free.keys().collect::<Vec<_>>());
    for (name, result) in &confined {
        assert_ne!(result, "done", "{name}");
    }
    assert!(confined["ask-for-passwords"].contains("protected"), "{confined:?}");
    assert!(confined["ask-for-a-signal"].contains("no spawner"), "{confined:?}");
    assert!(confined["ask-a-spawner-for-the-host"].contains("protected"), "{confined:?}");
}

#[test]
fn a_server_has_no_power_over_the_host_and_its_monitor_goes_with_it() {
    let host = Host::shared();
    let sloplet = host.root();
    let server = Server::start(&sloplet);
    let pid = server.pid();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim_start_matches(':').trim().to_owned()
    };
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("Seccomp"), "2");
    let user = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/user")).unwrap();
    assert_ne!(user(&pid.to_string()), user("self"), "its capabilities count in its own user namespace alone");
    let children = || -> Vec<String> {
        let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        listed.split_whitespace().map(str::to_owned).collect()
    };
    let monitor = children().first().expect("it has a monitor").clone();
    assert_eq!(user(&monitor), user("self"));
    server.kill();
    wait::until("the monitor is gone", || !fs::exists(format!("/proc/{monitor}/cmdline")).unwrap());
}
