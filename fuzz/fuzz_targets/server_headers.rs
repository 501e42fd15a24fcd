//! Headers of strangers, to previews and to the doors of E2B: no key and no foreign cookie passes.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["set-cookie:", "cookie:", "Domain=", "Path=", "sloplet_link", "sloplet_abc_8000_", "x-target:", "authorization:Basic "], longest: 1024 };

fn run(bytes: &[u8]) {
    sloplet_server::fuzzing::request_headers(bytes)
}

fn seeds() -> Vec<Vec<u8>> {
    support::texts(&[
        "host:8000-abc.example.com\nx-api-key:k\ncookie:sloplet_abc_8000_a=b; sloplet_link=x\nx-target:/preview/abc/8000/x?y",
        "set-cookie:a=b; Domain=x; Path=/\nset-cookie:c; HttpOnly\nauthorization:Basic dXNlcjo=\nconnect-timeout-ms:10",
        "upgrade:websocket\nconnection:upgrade\nauthorization:Bearer e2b_x\nx-metadata-a:b\ncontent-type:application/json",
    ])
}
