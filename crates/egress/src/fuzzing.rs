//! What the fuzz targets in `fuzz/` may call of this crate, with what must hold for any bytes from inside.

use std::net::Ipv4Addr;

use crate::dns::{Code, Query, Record, reverse};
use crate::first::{self, Kind};
use crate::hello::{self, Hello};
use crate::http::{self, Authority, Chunks, Head};
use crate::requests::Response;

/// A DNS message: its answer repeats the question, and fits a datagram.
pub fn dns(message: &[u8]) {
    match Query::parse(message) {
        Ok(query) => {
            let address = Record::A(Ipv4Addr::LOCALHOST);
            let _ = query.kind_name();
            for record in [None, Some(&address)] {
                let answer = query.answer(Code::NoError, record, Some("a reason"));
                assert!(answer.len() <= 1232, "an answer of {} bytes", answer.len());
                assert_eq!(answer[..2], message[..2], "another id");
                assert!(matches!(Query::parse(&answer), Err(None)), "an answer that would be answered");
            }
            assert!(query.shown.bytes().all(|byte| byte.is_ascii_graphic()), "{:?}", query.shown);
            if let Some(name) = query.name {
                assert!(name.len() <= 253 && name == name.to_ascii_lowercase(), "{name:?}");
                let _ = reverse(&name);
            }
        }
        Err(Some(answer)) => assert_eq!((answer.len(), &answer[..2]), (12, &message[..2])),
        Err(None) => {}
    }
}

/// A connection's first bytes: what was passed on unchecked would never have been taken for something to check.
pub fn first(bytes: &[u8]) {
    let whole = first::classify(bytes);
    let _ = first::incomplete(bytes);
    for length in 0..bytes.len().min(96) {
        if first::classify(&bytes[..length]) == Kind::Raw {
            assert_eq!(whole, Kind::Raw, "it was binary after {length} bytes");
        }
    }
    if first::common_http(bytes) {
        assert!(matches!(whole, Kind::Http | Kind::More), "{whole:?}");
    }
}

/// A ClientHello: one name, which more bytes do not change.
pub fn client_hello(bytes: &[u8]) {
    let whole = hello::parse(bytes);
    if let Hello::Name(Some(name)) = &whole {
        assert!(name.len() <= 254 && name.bytes().all(|byte| byte.is_ascii_graphic()), "{name:?}");
        assert_eq!(name, &name.to_ascii_lowercase());
    }
    let step = (bytes.len() / 16).max(1);
    for length in (0..bytes.len()).step_by(step) {
        let part = hello::parse(&bytes[..length]);
        assert!(part == Hello::More || part == whole, "{part:?} at {length}, then {whole:?}");
    }
}

/// A request's head, cut anywhere: the same end; what is written anew is read as the same.
pub fn request_head(bytes: &[u8]) {
    let whole = http::head_end(bytes, 0);
    for cut in [1, bytes.len() / 3, bytes.len() / 2] {
        if let Ok(None) = http::head_end(&bytes[..cut.min(bytes.len())], 0) {
            assert_eq!(http::head_end(bytes, cut.min(bytes.len())), whole, "looked for from {cut} on");
        }
    }
    let Ok(Some(length)) = whole else { return };
    let Ok(head) = http::parse(&bytes[..length]) else { return };
    let _ = head.absolute();
    let written = head.write();
    assert_eq!(http::head_end(&written, 0), Ok(Some(written.len())));
    let again = http::parse(&written);
    let expected = Head { downgraded: false, ..head };
    assert_eq!(again.as_ref(), Ok(&expected), "written as {:?}", String::from_utf8_lossy(&written));
}

/// A host and a port: what is read is plain.
pub fn authority(text: &str) {
    if let Some(authority) = Authority::parse(text) {
        let _ = authority.address();
        assert!(!authority.host.is_empty() && authority.host.len() <= 253);
        assert!(authority.host.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@[]".contains(&byte)));
    }
}

/// A chunked body in pieces of `size` bytes: the same end as in one piece.
pub fn chunked_body(bytes: &[u8], size: usize) {
    let mut whole = Chunks::START;
    let end = whole.feed(bytes);
    let mut pieces = Chunks::START;
    let mut count = 0;
    for piece in bytes.chunks(size.max(1)) {
        match pieces.feed(piece) {
            Ok(taken) => count += taken,
            Err(problem) => return assert_eq!(end, Err(problem)),
        }
    }
    assert_eq!((end, whole), (Ok(count), pieces));
}

/// A server's first words in pieces of `size` bytes: taken for the same language as in one piece.
pub fn server_words(bytes: &[u8], size: usize) {
    let whole = Response::default();
    whole.watch(bytes);
    whole.over();
    let pieces = Response::default();
    for piece in bytes.chunks(size.max(1)) {
        pieces.watch(piece);
    }
    pieces.over();
    assert_eq!(whole.is_http(), pieces.is_http());
    assert!(!bytes.starts_with(b"HTTP/") || whole.is_http());
}
