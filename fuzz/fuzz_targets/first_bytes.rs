//! The first bytes of a connection from inside: what is passed on unchecked stays binary.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["GET ", "POST ", "HTTP/1.1", "HTTP/1.0", "Host: ", "Content-Length: ", "Transfer-Encoding: chunked", "Upgrade: h2c", "Connection: ", "http://", "\r\n", "\r\n\r\n", "PRI * HTTP/2.0"], longest: 256 };

fn run(bytes: &[u8]) {
    sloplet_egress::fuzzing::first(bytes)
}

fn seeds() -> Vec<Vec<u8>> {
    support::texts(&[
        "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "POST http://a.test:80/x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello",
        "POST /x HTTP/1.1\r\nHost: [::1]:8080\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n",
        "CONNECT a.test:443 HTTP/1.1\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2\r\n",
    ])
}
