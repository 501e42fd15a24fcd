//! Release builds have no failpoints: nothing in the environment can make a server kill itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::Command;

use sloplet_engine::failpoint::{ANY, ENABLED, VARIABLE};

/// Reaches every point; says so at the end.
const PROGRAM: &str = "fn main() {
    for point in failpoint::Point::ALL { failpoint::reach(*point); }
    println!(\"alive, {}\", failpoint::ENABLED);
}";

#[test]
fn a_release_build_dies_at_no_point() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let (source, program, file) =
        (folder.path().join("main.rs"), folder.path().join("main"), folder.path().join("reached"));
    let module = root.join("src/failpoint.rs");
    fs::write(&source, format!("#[path = {module:?}]\n#[allow(dead_code)]\nmod failpoint;\n{PROGRAM}")).unwrap();
    // As cargo's release profile does.
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let built = Command::new(rustc).args(["--edition", "2024", "-O", "-o"]).args([&program, &source]).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    fs::write(file.with_extension("armed"), format!("{ANY}:1")).unwrap();
    let ran = Command::new(&program).env(VARIABLE, &file).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "alive, false\n", "{ran:?}");
    assert!(!file.exists(), "what is reached is written down nowhere");
}

#[test]
fn only_builds_with_debug_assertions_have_points_and_the_release_profile_has_none() {
    assert_eq!(ENABLED, cfg!(debug_assertions));
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml")).unwrap();
    let release = manifest.split("\n[").find(|section| section.starts_with("profile.release]")).unwrap_or_default();
    assert!(!release.contains("debug-assertions"), "{release}");
}
