//! Chunked bodies from inside: the same end however they arrive.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["\r\n", "0\r\n\r\n", "ffffffffffffffff"], longest: 1024 };

fn run(bytes: &[u8]) {
    if let Some((size, body)) = support::pieces(bytes) {
        sloplet_egress::fuzzing::chunked_body(body, size);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    support::in_pieces(support::texts(&["5\r\nhello\r\n0\r\n\r\n", "A;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nGET"]))
}
