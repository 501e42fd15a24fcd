//! What the fuzz targets in `fuzz/` may call of this crate, with what must hold for any bytes of a client or the inside.

use crate::forward::{Wanted, is_socket_path};
use crate::session::{harmless, takes_variable};
use crate::uploads::Messages;

/// A stream of SFTP in pieces of `size` bytes: the same messages as in one piece.
pub fn sftp_stream(bytes: &[u8], size: usize) {
    let cut = |size: usize| {
        let (mut messages, mut found) = (Messages::default(), Vec::new());
        for piece in bytes.chunks(size.max(1)) {
            messages.add(piece);
            found.extend(std::iter::from_fn(|| messages.next()));
        }
        found
    };
    assert_eq!(cut(size), cut(bytes.len()));
}

/// Where a client wants to be connected to, variables, and text for its terminal.
pub fn words(text: &str) {
    for port in [0, 22, 65_536] {
        match Wanted::port(text, port) {
            Ok(Wanted::Outside(host, _)) => {
                assert!(host.len() <= 253 && !host.contains(['\r', '\n', ' ', '/', '@']), "{host:?}");
            }
            Ok(_) | Err(_) => {}
        }
    }
    let _ = (Wanted::socket(text), is_socket_path(text), takes_variable(text));
    assert!(!harmless(text).chars().any(char::is_control));
}
