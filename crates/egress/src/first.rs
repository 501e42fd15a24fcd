//! What a connection speaks, by its first bytes.

use crate::hello;

/// The longest first line that is waited for.
const MAX_LINE: usize = 16 << 10;

/// What the first bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Could still be HTTP.
    More,
    /// A TLS handshake.
    Tls,
    /// An HTTP request, well-formed or not.
    Http,
    /// Anything else.
    Raw,
}

/// Looks at the first bytes.
///
/// HTTP is a token, a space, and `HTTP/` later in the same line, whatever the method: servers accept methods that nobody
/// has heard of. Blank lines before it are skipped, as servers do. Binary protocols, and lines of other protocols, differ
/// within the first bytes or at the end of the first line, so that none of them waits here.
pub(crate) fn classify(bytes: &[u8]) -> Kind {
    if hello::begins(bytes) {
        return Kind::Tls;
    }
    let blank = bytes.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
    let bytes = &bytes[blank..];
    let line = bytes.iter().position(|b| *b == b'\n').map_or(bytes, |end| &bytes[..end]);
    let whole = line.len() < bytes.len();
    let method = line.iter().position(|b| !is_token(*b)).unwrap_or(line.len());
    if method > 64 || line.get(method).is_some_and(|b| *b != b' ') || (method == 0 && !line.is_empty()) {
        return Kind::Raw;
    }
    if line.iter().any(|b| *b < b' ' && !matches!(b, b'\r' | b'\t')) {
        return Kind::Raw;
    }
    if line.windows(5).any(|part| part.eq_ignore_ascii_case(b"HTTP/")) && whole {
        return Kind::Http;
    }
    match whole {
        true => Kind::Raw,
        false if bytes.len() > MAX_LINE => Kind::Http,
        false => Kind::More,
    }
}

/// Whether this is a part of a line that no server acts upon before more of it comes, and that may become a request but need
/// not.
pub(crate) fn incomplete(bytes: &[u8]) -> bool {
    // Some servers take a lone CR for the end of a line.
    let lines = bytes.iter().any(|b| matches!(b, b'\r' | b'\n'));
    !bytes.is_empty() && !lines && classify(bytes) == Kind::More && !common_http(bytes)
}

/// Whether this begins as HTTP requests do that people make, whole or not.
pub(crate) fn common_http(bytes: &[u8]) -> bool {
    ["GET ", "HEAD ", "POST ", "PUT ", "PATCH ", "DELETE ", "OPTIONS ", "CONNECT "]
        .iter()
        .any(|method| bytes.starts_with(method.as_bytes()))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_told_apart() {
        for (bytes, kind) in [
            (&b"\x16\x03\x01\x02"[..], Kind::Tls),
            (b"GET / HTTP/1.1\r\nHost: a\r\n", Kind::Http),
            (b"\r\n\r\nGET / HTTP/1.1\r\n", Kind::Http),
            (b"FROBNICATE /x http/1.1 \r\n", Kind::Http),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Kind::Http),
            (b"GET / HTTP/1.1", Kind::More),
            (b"GE", Kind::More),
            (b"SSH-2.0-OpenSSH_9.2", Kind::More),
            (b"SSH-2.0-OpenSSH_9.2\r\n", Kind::Raw),
            (b"EHLO me\r\n", Kind::Raw),
            (b"*1\r\n$4\r\nPING\r\n", Kind::Raw),
            (b"PING\r\n", Kind::Raw),
            (b"\0\0\0\x08\x04\xd2\x16\x2f", Kind::Raw),
            (b"AMQP\0\0\x09\x01", Kind::Raw),
            (b"0032git-upload-pack /r\0host=a\0", Kind::Raw),
            (b"\x16\x02", Kind::Raw),
            (b"\x80\x2e\x01\x03\x01", Kind::Raw),
            (b" GET / HTTP/1.1\r\n", Kind::Raw),
        ] {
            assert_eq!(classify(bytes), kind, "{:?}", String::from_utf8_lossy(bytes));
        }
        assert!(incomplete(b"PING") && incomplete(b"GET"));
        for bytes in
            [&b""[..], b"GET / HTTP/1.1", b"\r", b"\nGET", b"GET / HTTP/1.1\rHost: a\r\r", b"PING\r\n", b"\x16\x03\x01"]
        {
            assert!(!incomplete(bytes), "{:?}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(classify(&[b'a'; 65]), Kind::Raw, "no method is so long");
        assert_eq!(classify(&[b"GET /".as_slice(), &[b'a'; MAX_LINE]].concat()), Kind::Http, "refused as too long");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            classify(&bytes);
        }

        #[test]
        fn every_request_is_seen_as_one(method in "[A-Za-z!#$%&'*+.^_`|~-]{1,20}", target in "[!-~]{1,30}") {
            proptest::prop_assert_eq!(classify(format!("{method} {target} HTTP/1.1\r\n").as_bytes()), Kind::Http);
        }
    }
}
