//! Archives that the agent unpacks: nothing outside the folder.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["path=", "size=", "../", "ustar"], longest: 8192 };

fn run(bytes: &[u8]) {
    let Some((size, archive)) = support::pieces(bytes) else { return };
    support::within_folder(|folder| sloplet_agent::fuzzing::unpack_beneath(&support::summed(archive), folder, size))
}

fn seeds() -> Vec<Vec<u8>> {
    support::in_pieces(support::archives())
}
