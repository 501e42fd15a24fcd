//! Images that take minutes to build, kept between runs of the tests.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use sloplet_image::Recipe;

use super::Sloplet;

/// Where everything is kept that takes long to get.
const CACHE: &str = "/var/cache/sloplet";

/// A data folder with the image in it, built by root if it is not there yet. Not to be changed: see [`copy_to`].
pub fn image(sloplet: &Sloplet, name: &str) -> PathBuf {
    let data = Path::new(CACHE).join(format!("{name}-{:016x}", recipe(name)));
    fs::create_dir_all(&data).unwrap();
    let lock = fs::File::create(data.join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let path = data.to_str().unwrap();
    let listed = sloplet.invoke(&["image", "ls", "--data", path]).finish().expect_code(0);
    if !listed.out().contains(&format!("{name}:latest")) {
        let build = sloplet.invoke(&["image", "build", name, "--data", path]).within(Duration::from_secs(1800));
        build.finish().expect_code(0);
    }
    data
}

/// Gives somebody's data folder the image, too. Layers never change, so links will do.
pub fn copy_to(sloplet: &Sloplet, name: &str) {
    let from = image(sloplet, name).join("images");
    fs::create_dir_all(&sloplet.data).unwrap();
    let copied = Command::new("cp").arg("-al").arg(from).arg(&sloplet.data).status().unwrap();
    assert!(copied.success());
}

/// Changes with the distribution and with what is done to it.
fn recipe(name: &str) -> u64 {
    let mut hash = DefaultHasher::new();
    for list in ["/etc/os-release", "/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources"] {
        fs::read_to_string(list).unwrap_or_default().hash(&mut hash);
    }
    Recipe::named(name).expect("a recipe").fingerprint().hash(&mut hash);
    hash.finish()
}
