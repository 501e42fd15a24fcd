//! Words of SSH clients: hosts, sockets, variables, and text for their terminals.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["127.0.0.1", "::", "[", "]"], longest: 300 };

fn run(bytes: &[u8]) {
    sloplet_ssh::fuzzing::words(&String::from_utf8_lossy(bytes))
}

fn seeds() -> Vec<Vec<u8>> {
    support::texts(&["localhost", "[::1]", "::ffff:127.0.0.1", "example.com", "/run/x.sock", "LC_ALL", "a\x1b[31mb"])
}
