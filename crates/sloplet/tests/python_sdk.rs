//! The Python SDK: its own tests, which are in `sdk/python/tests`, against a server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{Host, Server, built, fast, tools};

fn sdk() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/python").canonicalize().unwrap()
}

/// A Python with what the tests need, the SDK itself not included.
fn python() -> PathBuf {
    tools::python("python-sdk")
}

/// The SDK as it is installed by those who use it, in a folder of the test's own: built from a copy, so that nothing is left in
/// the source.
fn install(host: &Host, python: &Path) -> PathBuf {
    let (source, target) = (host.dir().join("sdk-source"), host.dir().join("sdk"));
    let copied = Command::new("cp").arg("-r").arg(sdk()).arg(&source).status().unwrap();
    assert!(copied.success());
    let pip = ["-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--target"];
    let output = Command::new(python).args(pip).arg(&target).arg(&source).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    target
}

/// Runs its tests; everything they say is shown if one fails.
fn pytest(image: Option<&str>, words: &[&str]) {
    let (host, python) = (Host::shared(), python());
    let target = install(&host, &python);
    let sloplet = host.root();
    if let Some(image) = image {
        built::copy_to(&sloplet, image);
    }
    let served = Server::start_with(&sloplet, &[]);
    let (tests, scratch) = (sdk().join("tests"), host.dir().join("scratch"));
    fs::create_dir(&scratch).unwrap();
    let always = [
        python.to_str().unwrap(),
        "-m",
        "pytest",
        "-q",
        "-c",
        "../pyproject.toml",
        "--rootdir",
        "..",
        "--durations",
        "5",
    ];
    let words: Vec<&str> = always.iter().chain(words).copied().collect();
    let ended = sloplet
        .other_program(&[&["env", "-C", tests.to_str().unwrap()], words.as_slice()].concat())
        .within(Duration::from_secs(400))
        .env("PYTHONPATH", target.to_str().unwrap())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SLOPLET_BINARY", host.binary().to_str().unwrap())
        .env("TMPDIR", scratch.to_str().unwrap())
        .finish();
    println!("{}", ended.out());
    served.end_with_its_sandboxes();
    ended.expect_code(0);
}

#[test]
fn the_python_sdk_works() {
    if fast() {
        return; // needs an image that takes minutes to build
    }
    pytest(Some("base"), &["."]);
}

#[test]
fn every_image_of_the_reference_works_where_only_the_interpreter_is_stored() {
    if fast() {
        return; // needs an image that takes minutes to build
    }
    pytest(Some("code-interpreter"), &["test_images.py"]);
}
