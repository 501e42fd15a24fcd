//! Layers of snapshots, unpacked: nothing outside the folder.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["\0.wh.", "../", "/", "SCHILY.xattr.user.overlay.opaque=y"], longest: 8192 };

fn run(bytes: &[u8]) {
    support::within_folder(|folder| sloplet_image::fuzzing::unpack_beneath(&support::summed(bytes), folder, true))
}

fn seeds() -> Vec<Vec<u8>> {
    support::archives()
}
