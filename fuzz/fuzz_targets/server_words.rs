//! The first words of a server outside: the same language however they arrive.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["HTTP/1.1 101", "HTTP/"], longest: 64 };

fn run(bytes: &[u8]) {
    if let Some((size, words)) = support::pieces(bytes) {
        sloplet_egress::fuzzing::server_words(words, size);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    support::in_pieces(support::texts(&["HTTP/1.1 101 Switching\r\n", "HTTP/1.0 200 OK\r\n", "SSH-2.0-x\r\n"]))
}
