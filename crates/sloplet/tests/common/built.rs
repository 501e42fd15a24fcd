//! Images that take minutes to build, kept between runs of the tests: `./test prepare` builds them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Sloplet, tools};

/// A data folder with the image in it. Not to be changed: see [`copy_to`].
pub fn image(name: &str) -> PathBuf {
    let folder = tools::cache().join("images").join(format!("{name}-{}", tools::digest(&recipe())));
    tools::complete(folder, &format!("the image '{name}'"))
}

/// Gives somebody's data folder the image, too. Layers never change, so links will do where the cache is on the same disk.
pub fn copy_to(sloplet: &Sloplet, name: &str) {
    let from = image(name).join("images");
    fs::create_dir_all(&sloplet.data).unwrap();
    let trial = sloplet.data.join("trial");
    let link = fs::hard_link(from.join("lock"), &trial).is_ok() && fs::remove_file(&trial).is_ok();
    let how = if link { "-al" } else { "-a" };
    let copied = Command::new("cp").args([how, "--reflink=auto"]).arg(from).arg(&sloplet.data).status().unwrap();
    assert!(copied.success());
}

/// Changes with the distribution and with what is done to it. The same as in `tests/prepare`.
fn recipe() -> Vec<u8> {
    let system = ["/etc/os-release", "/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources"];
    let mut bytes: Vec<u8> = system.iter().flat_map(|path| fs::read(path).unwrap_or_default()).collect();
    let image = tools::root().join("crates/image");
    for source in ["src/recipe.rs", "src/interpreter.rs", "src/machine.rs"] {
        bytes.extend(fs::read(image.join(source)).unwrap());
    }
    let mut programs = Vec::new();
    find(&image.join("assets/interpreter"), &mut programs);
    programs.sort_by(|one, other| one.as_os_str().cmp(other.as_os_str()));
    programs.iter().for_each(|path| bytes.extend(fs::read(path).unwrap()));
    bytes
}

/// Programs below a folder, but those that only test.
fn find(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() && !path.ends_with("tests") {
            find(&path, found);
        } else if path.extension().is_some_and(|end| end == "py" || end == "js") {
            found.push(path);
        }
    }
}
