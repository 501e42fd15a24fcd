//! SFTP as the host reads along: the same messages however they arrive.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &[], longest: 1024 };

fn run(bytes: &[u8]) {
    if let Some((size, rest)) = support::pieces(bytes) {
        sloplet_ssh::fuzzing::sftp_stream(rest, size);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    support::in_pieces(vec![[&[0, 0, 0, 5, 1, 0, 0, 0, 3][..], &[0, 0, 0, 9, 4, 0, 0, 0, 1, 0, 0, 0, 0]].concat()])
}
