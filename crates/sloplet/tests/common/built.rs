//! Images that are built for real, and kept between runs: they take minutes.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use sloplet_image::Recipe;

use super::Sloplet;

/// A data folder with the image in it, built now or by an earlier run with the same recipe and the same distribution.
pub fn built_image(sloplet: &Sloplet, name: &str) -> PathBuf {
    let lists = ["/etc/os-release", "/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources"];
    let key: String = lists.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
    let recipe = Recipe::named(name).expect("a recipe");
    let mut hash = std::hash::DefaultHasher::new();
    std::hash::Hash::hash(&(key, recipe.fingerprint()), &mut hash);
    let data = PathBuf::from(format!("/var/cache/sloplet/{name}-{:016x}", std::hash::Hasher::finish(&hash)));
    fs::create_dir_all(&data).unwrap();
    let path = data.to_str().expect("a path in UTF-8");
    let listed = sloplet.invoke(&["image", "ls", "--data", path]).finish().expect_code(0);
    if !listed.out().contains(&format!("{name}:latest")) {
        let build = sloplet.invoke(&["image", "build", name, "--data", path]).within(Duration::from_secs(1800));
        build.finish().expect_code(0);
    }
    data
}
