//! Streams of Connect messages from clients: the same however they arrive.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &[], longest: 1024 };

fn run(bytes: &[u8]) {
    if let Some((size, rest)) = support::pieces(bytes) {
        sloplet_server::fuzzing::connect_stream(rest, size);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    support::in_pieces(vec![b"\0\0\0\0\x02{}\0\0\0\0\x07{\"a\":1}".to_vec(), b"\x02\0\0\0\x02{}".to_vec()])
}
