//! A server that takes whatever it can for HTTP, as a model: whatever passes the checks must not show it a foreign host.

use proptest::prelude::*;
use proptest::sample::select;

use crate::check::Check;
use crate::first::{self, Kind};
use crate::http::{self, Body, Chunks};

/// What this server takes for a blank: also NULs, and the spaces of Latin-1.
fn is_blank(byte: u8) -> bool {
    matches!(byte, 0 | 9 | 11 | 12 | 28..=32 | 0x85 | 0xa0)
}

/// Whether this server begins to read a request: any word of text, then a blank or the end of a line.
fn begins_request(bytes: &[u8]) -> bool {
    let start = bytes.iter().position(|byte| !is_blank(*byte) && !matches!(byte, b'\r' | b'\n'));
    let Some(line) = start.map(|start| &bytes[start..]) else { return false };
    let end = line.iter().position(|byte| matches!(byte, 9..=13 | 28..=32 | 0x85 | 0xa0));
    let word = &line[..end.unwrap_or(line.len())];
    let text = std::str::from_utf8(word).is_ok_and(|word| word.chars().all(|c| c == '\0' || !c.is_control()));
    end.is_some() && text && line.iter().any(|byte| matches!(byte, b'\r' | b'\n'))
}

/// The hosts that this server finds in what it is sent. CR, LF and both end a line, as does the line's end of Latin-1;
/// fields may begin with blanks.
fn hosts(mut bytes: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let (mut lines, mut length, mut chunked) = (0, 0, false);
        loop {
            let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n' | 0x85)) else { return found };
            let line: Vec<u8> = bytes[..end].iter().copied().skip_while(|byte| is_blank(*byte)).collect();
            bytes = &bytes[end + if bytes[end..].starts_with(b"\r\n") { 2 } else { 1 }..];
            if line.is_empty() {
                if lines > 0 {
                    break;
                }
                continue;
            }
            let line = String::from_utf8_lossy(&line).to_ascii_lowercase();
            if lines == 0 {
                let target = line.split("://").nth(1).map(|rest| rest.split(['/', ' ', '\t']).next().unwrap_or(rest));
                found.extend(target.map(str::to_owned));
            } else if let Some((name, value)) = line.split_once(':') {
                let (name, value) = (name.trim(), value.trim());
                match name {
                    "host" => found.push(value.to_owned()),
                    "content-length" => length = value.parse().unwrap_or(0),
                    "transfer-encoding" => chunked = value.contains("chunked"),
                    _ => {}
                }
            }
            lines += 1;
        }
        if chunked {
            length = { Chunks::START }.feed(bytes).unwrap_or(bytes.len());
        }
        bytes = bytes.get(length..).unwrap_or_default();
    }
    found
}

/// What of these bytes reaches the server of `ok.test` as HTTP.
fn passed(bytes: &[u8]) -> &[u8] {
    if first::classify(bytes) != Kind::Http {
        return &[];
    }
    let check = Check::Name("ok.test".into(), 80);
    let mut at = 0;
    loop {
        let blank = bytes[at..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let rest = &bytes[at + blank..];
        let Ok(Some(length)) = http::head_end(rest, 0) else { return &bytes[..at] };
        let Ok(head) = http::parse(&rest[..length]) else { return &bytes[..at] };
        if check.request(&head).is_err() {
            return &bytes[..at];
        }
        let body = match head.body {
            Body::Length(length) => usize::try_from(length).unwrap_or(usize::MAX),
            Body::Chunked => { Chunks::START }.feed(&rest[length..]).unwrap_or(0),
        };
        at = (at + blank + length).saturating_add(body).min(bytes.len());
    }
}

const LONG: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

fn piece<const N: usize>(of: [&'static [u8]; N]) -> impl Strategy<Value = Vec<u8>> {
    select(of.to_vec()).prop_map(<[u8]>::to_vec)
}

fn blank() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![6 => Just(b" ".to_vec()), 1 => piece([b"\t", b"  ", b"\x0b", b"\xa0", b"\0", b"", b"\r", "\u{2003}".as_bytes()])]
}

fn line_end() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![9 => Just(b"\r\n".to_vec()), 1 => piece([b"\r", b"\n", b"\r\r\n", b"\n\r", b"\0\r\n", b" \r\n", b"\x85"])]
}

fn method() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => Just(b"GET".to_vec()),
        3 => piece([b"POST", b"get", b"G\0ET", b" GET", b"\0GET", b"\r\n\r\nGET", b"FROB", LONG.as_bytes(), "G\u{c0}T".as_bytes(), b"GET\r", b"\x85GET"]),
    ]
}

fn target() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => Just(b"/x".to_vec()),
        1 => piece([b"*", b"http://evil.test/", b"http://ok.test/", b"/\x01", b"/\0", b"/\xa0", b"evil.test:80", b""]),
    ]
}

fn version() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![6 => Just(b"HTTP/1.1".to_vec()), 1 => piece([b"HTTP/1.0", b"http/1.1", b"HTTP/2.0", b"HTTP/0.9", b"", b"HTTP/1.1 x"])]
}

fn field() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => Just(b"Host: ok.test".to_vec()),
        3 => piece([
            b"Host: evil.test", b"host:evil.test", b"Host : evil.test", b" Host: evil.test", b"\tHost: evil.test", b"X: y",
            b"X: a\rHost: evil.test", b"X: a\nHost: evil.test", b"X: a\x85Host: evil.test", b"X: a\x85 Host : evil.test",
            b"X: Host: evil.test", b"\0Host: evil.test", b"Content-Length: 5", b"Content-Length: 41", b"Transfer-Encoding: chunked",
            "X: \u{c5}ngstr\u{f6}m".as_bytes(), b"HOST:OK.test.",
        ]),
    ]
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let line = (method(), blank(), target(), blank(), version(), line_end());
    let line = line.prop_map(|(a, b, c, d, e, f)| [a, b, c, d, e, f].concat());
    let fields = prop::collection::vec((field(), line_end()).prop_map(|(field, end)| [field, end].concat()), 0..4);
    let body = prop_oneof![3 => Just(Vec::new()), 1 => piece([b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"0\r\n\r\n"])];
    (line, fields, line_end(), body).prop_map(|(line, fields, end, body)| [line, fields.concat(), end, body].concat())
}

/// Requests, more or less; or the pieces of requests in no order.
fn conversation() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![method(), blank(), target(), version(), field(), line_end()];
    prop_oneof![
        3 => prop::collection::vec(request(), 1..4).prop_map(|requests| requests.concat()),
        1 => prop::collection::vec(piece, 1..16).prop_map(|pieces| pieces.concat()),
    ]
}

proptest! {
    #[test]
    fn a_lenient_server_is_shown_no_foreign_host(bytes in conversation()) {
        let passed = passed(&bytes);
        for host in hosts(passed) {
            let shown = String::from_utf8_lossy(passed);
            prop_assert_eq!(host.trim_end_matches('.'), "ok.test", "in {:?}", shown);
        }
    }

    #[test]
    fn what_a_lenient_server_could_read_is_never_raw(bytes in conversation()) {
        if begins_request(&bytes) {
            for length in 0..=bytes.len() {
                prop_assert_ne!(first::classify(&bytes[..length]), Kind::Raw, "{:?}", &bytes[..length]);
            }
            prop_assert!(matches!(first::classify(&bytes), Kind::Http | Kind::Text), "{:?}", first::classify(&bytes));
        }
    }
}
