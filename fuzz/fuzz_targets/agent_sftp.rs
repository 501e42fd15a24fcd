//! Messages of SFTP clients: read or refused, never acted on without a handle.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["posix-rename@openssh.com"], longest: 512 };

fn run(bytes: &[u8]) {
    sloplet_agent::fuzzing::sftp_fields(bytes)
}

fn seeds() -> Vec<Vec<u8>> {
    let path = [&[0, 0, 0, 2][..], b"/x"].concat();
    let attributes = [0, 0, 0, 15, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1];
    let message = |kind: u8, parts: &[&[u8]]| [&[kind, 0, 0, 0, 7][..], &parts.concat()].concat();
    let extended = [0x80, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, b'a', 0, 0, 0, 1, b'b'];
    let mut seeds = support::texts(&["\x05\0\0\0\x01\0\0\0\x04\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\x10\0"]);
    seeds.extend([message(3, &[&path, &attributes]), message(9, &[&path, &extended]), message(18, &[&path, &path])]);
    seeds
}
