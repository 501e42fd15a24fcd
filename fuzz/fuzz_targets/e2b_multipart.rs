//! Forms of several parts from clients.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["--X-BOUNDARY", "--X-BOUNDARY--", "Content-Disposition: form-data; name=\"", "filename*=utf-8", "\r\n\r\n"], longest: 1024 };

fn run(bytes: &[u8]) {
    if let Some((size, rest)) = support::pieces(bytes) {
        sloplet_server::fuzzing::multipart(rest, size);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    support::in_pieces(support::texts(&["--X-BOUNDARY\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\nContent-Type: text/plain\r\n\r\nhello\r\n--X-BOUNDARY--\r\n"]))
}
