//! Sandboxes of an ordinary user: the same walls without root.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::Host;

#[test]
fn the_host_image_runs_commands_as_user() {
    let host = Host::alone();
    let leaks = host.leaks();
    for sloplet in [host.root(), host.user()] {
        let ended = sloplet.run(&[], &["id"]).expect_code(0);
        assert!(ended.out().starts_with("uid=1000(user) gid=1000(user)"), "{ended}");
        assert_eq!(ended.stderr, "", "{ended}");
    }
    leaks.assert_none_new();
}
