//! What `./test prepare` has got from elsewhere. A test gets nothing itself: it may be in a network without a way out, and
//! nobody would see what it waits for.

use std::fs;
use std::path::{Path, PathBuf};

/// What to get, one line for each tool.
const LIST: &str = include_str!("../../../../tests/tools");

/// Where everything is kept that takes long to get.
pub fn cache() -> PathBuf {
    std::env::var_os("SLOPLET_TEST_CACHE").map_or_else(|| "/var/cache/sloplet".into(), PathBuf::from)
}

fn tools() -> PathBuf {
    std::env::var_os("SLOPLET_TEST_TOOLS").map_or_else(|| cache().join("tools"), PathBuf::from)
}

/// The kernel that virtual machines boot.
pub fn kernel() -> PathBuf {
    std::env::var_os("SLOPLET_VM_KERNEL").map_or_else(|| tools().join("kernel"), PathBuf::from)
}

/// A folder that is complete, or the end of the test.
pub fn complete(folder: PathBuf, what: &str) -> PathBuf {
    let there = folder.join("complete").exists();
    assert!(there, "{what} is missing or not the newest ({}): run ./test prepare", folder.display());
    folder
}

/// The folder of a tool.
pub fn folder(name: &str) -> PathBuf {
    let mut lines = LIST.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|line| line.first() == Some(&name)).unwrap_or_else(|| panic!("tests/tools has no '{name}'"));
    let list = root().join(line[2]);
    complete(tools().join(format!("{name}-{}", digest(&fs::read(list).unwrap()))), name)
}

/// The Python that has the packages of a list.
pub fn python(name: &str) -> PathBuf {
    folder(name).join("bin/python")
}

/// The project's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// As `sha256sum | cut -c 1-16` has it.
pub fn digest(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
