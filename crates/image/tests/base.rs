//! The `base` image, built for real: minutes, and the distribution's package archive.
#![allow(clippy::unwrap_used, clippy::panic, reason = "clippy sees only #[test] functions as tests")]

mod common;

use sloplet_image::{Recipe, build_image, silent};

#[test]
#[ignore = "downloads a distribution; run with --ignored"]
fn base_has_what_agents_expect() {
    let (_data, store) = common::store();
    let image = build_image(&store, Recipe::named("base").unwrap(), &silent).unwrap();
    assert_eq!(image.name, "base:latest");
    assert_eq!(store.resolve("base").unwrap(), image);
    let root = &image.layers[0];
    for program in ["bash", "python3", "python", "git", "curl", "sudo", "ps", "less"] {
        assert!(std::fs::symlink_metadata(root.join("usr/bin").join(program)).is_ok(), "{program} is missing");
    }
    let passwd = std::fs::read_to_string(root.join("etc/passwd")).unwrap();
    assert!(passwd.contains("user:x:1000:1000:"), "{passwd}");
    assert!(root.join("home/user").is_dir() && root.join("etc/sudoers.d/user").exists());
    assert_eq!(image.config.user.as_deref(), Some("user"));
    println!("{} MiB, {} entries left out", image.size_bytes >> 20, image.skipped_entries);
}
