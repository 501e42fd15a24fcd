//! Names of images, references, patterns, challenges of registries.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["docker.io/", "library/", "host:latest", "realm=", "index.docker.io/"], longest: 300 };

fn run(bytes: &[u8]) {
    sloplet_image::fuzzing::names(&String::from_utf8_lossy(bytes))
}

fn seeds() -> Vec<Vec<u8>> {
    support::texts(&["docker.io/library/alpine:3.20", "localhost:5000/a/b@sha256:00", "My Rootfs.tar.gz", r#"Bearer realm="https://a/token",service="b""#, "*.log", "/var/**/x/"])
}
