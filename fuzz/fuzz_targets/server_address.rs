//! Text in addresses from clients: times, queries, pages, paths, modes, signatures, keys.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["signature=", "&metadata=", "%25", "%3D", "T00:00:00Z", "9999-12-31", "../", "nextToken="], longest: 512 };

fn run(bytes: &[u8]) {
    sloplet_server::fuzzing::address_text(&String::from_utf8_lossy(bytes))
}

fn seeds() -> Vec<Vec<u8>> {
    support::texts(&[
        "2026-01-31T12:00:00.123456+02:00",
        "/files?path=%2Ftmp%2Fx&username=user&signature=v1_0123456789012345678901234567890123456789012&signature_expiration=9",
        "limit=10&nextToken=MS5h&order=asc&metadata=a%3Db%26c%3Dd&state=running,paused",
        "~/a/../b//c",
        "0644",
        "24h",
        "exec-started,note",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@example.com",
        "  sl\n   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000",
    ])
}
