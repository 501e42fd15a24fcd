//! What a connection speaks, by its first bytes.
//!
//! The question is not what HTTP is, but what some server could take for it: one that skips blanks, takes a lone CR for the
//! end of a line, or any white space for a space, that knows HTTP/0.9, or answers a method of 65 letters and reads on. Such a
//! connection is never passed on unchecked. What remains is binary: its first word holds bytes that no method is made of. An
//! HTTP server answers that with 400 and closes; if it answers with HTTP at all, the connection is cut (see `connection`).

use crate::hello;

/// The longest first line that is waited for.
const MAX_LINE: usize = 16 << 10;

/// What the first bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Not clear yet.
    More,
    /// A TLS handshake.
    Tls,
    /// An HTTP request, well-formed or not: it is read strictly, or refused.
    Http,
    /// A line of text that a lenient server could take for a request: it passes only if the server has spoken first.
    Text,
    /// Binary.
    Raw,
}

/// Looks at the first bytes.
pub(crate) fn classify(bytes: &[u8]) -> Kind {
    if hello::begins(bytes) {
        return Kind::Tls;
    }
    if hello::may_begin(bytes) {
        return Kind::More;
    }
    if binary_prelude(bytes) {
        return Kind::Raw;
    }
    let unclear = if bytes.len() > MAX_LINE { Kind::Http } else { Kind::More };
    let blanks = bytes.iter().take_while(|byte| **byte == 0 || ends_word(**byte)).count();
    let line = &bytes[blanks..];
    let word = match text_word(line) {
        Word::Whole(length) => &line[..length],
        Word::Cut => return unclear,
        Word::Binary => return Kind::Raw,
    };
    let Some(end) = line.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else { return unclear };
    if has_version(&line[..end]) || is_method(word) { Kind::Http } else { Kind::Text }
}

/// Whether this is a part of a line, on which no server acts before more of it comes, and that may become a request but need
/// not. What some server could take for the end of a line is not in it, nor anything that requests alone begin with.
pub(crate) fn incomplete(bytes: &[u8]) -> bool {
    let ends = |byte: &u8| ends_word(*byte) && *byte != b' ';
    let word = bytes.split(|byte| *byte == b' ').next().unwrap_or_default();
    let request = word.len() < bytes.len() && (word.is_empty() || is_method(word));
    !bytes.is_empty() && !bytes.iter().any(ends) && !request && !has_version(bytes) && classify(bytes) == Kind::More
}

/// Methods that people use.
const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT"];

/// Whether this begins as HTTP requests do that people make, whole or not.
pub(crate) fn common_http(bytes: &[u8]) -> bool {
    METHODS.iter().any(|method| bytes.strip_prefix(method.as_bytes()).is_some_and(|rest| rest.starts_with(b" ")))
}

fn is_method(word: &[u8]) -> bool {
    METHODS.iter().any(|method| word.eq_ignore_ascii_case(method.as_bytes()))
}

fn has_version(line: &[u8]) -> bool {
    line.windows(5).any(|part| part.eq_ignore_ascii_case(b"HTTP/"))
}

/// What stands at the beginning of a line.
enum Word {
    /// Text of this length, and behind it something that could end a word.
    Whole(usize),
    /// Text up to the end of what is there.
    Cut,
    /// Bytes that no method is made of.
    Binary,
}

/// Reads a line's first word. NULs count as text: some servers drop them.
fn text_word(line: &[u8]) -> Word {
    let mut at = 0;
    while let Some(&byte) = line.get(at) {
        match byte {
            _ if ends_word(byte) => return Word::Whole(at),
            0 | b'!'..=b'~' => at += 1,
            0x80.. => match character(&line[at..]) {
                Some(Ok(character)) if character.is_whitespace() => return Word::Whole(at),
                // What is one character in UTF-8 may hold a space of Latin-1.
                Some(Ok(character)) => match line[at..at + character.len_utf8()].iter().position(|b| ends_word(*b)) {
                    Some(space) => return Word::Whole(at + space),
                    None => at += character.len_utf8(),
                },
                Some(Err(())) => return Word::Binary,
                None => return Word::Cut,
            },
            _ => return Word::Binary,
        }
    }
    Word::Cut
}

/// The first character of UTF-8; `None` if it is cut off.
fn character(bytes: &[u8]) -> Option<Result<char, ()>> {
    for length in 1..=bytes.len().min(4) {
        match std::str::from_utf8(&bytes[..length]) {
            Ok(text) => return text.chars().next().map(Ok),
            Err(error) if error.error_len().is_some() => return Some(Err(())),
            Err(_) => {}
        }
    }
    if bytes.len() < 4 { None } else { Some(Err(())) }
}

/// Whether some server could take this byte for a space or the end of a line, in ASCII or Latin-1.
fn ends_word(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | 0x1c..=0x1f | b' ' | 0x85 | 0xa0)
}

/// Binary protocols whose first bytes can look like a word and a space: AMQP, a bind of LDAP, a message of MongoDB.
fn binary_prelude(bytes: &[u8]) -> bool {
    const AMQP: &[u8] = b"AMQP\0\0\x09\x01";
    match bytes {
        _ if bytes.starts_with(AMQP) => true,
        // A sequence, the message's number, and what it asks for: bind, search, or an extension.
        [0x30, _, 2, 1, _, 0x60 | 0x63 | 0x77, ..] => true,
        // Its length, its number, no message that it answers, and what it is.
        [_, _, 0, 0, _, _, _, _, 0, 0, 0, 0, 0xd4 | 0xdc | 0xdd, 7, 0, 0, ..] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_told_apart() {
        for (bytes, kind) in [
            (&b"\x16\x03\x01\x02"[..], Kind::Tls),
            (b"\x80\x2e\x01\x03\x01", Kind::Tls),
            (b"GET / HTTP/1.1\r\nHost: a\r\n", Kind::Http),
            (b"\r\n\r\nGET / HTTP/1.1\r\n", Kind::Http),
            (b"FROBNICATE /x http/1.1 \r\n", Kind::Http),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Kind::Http),
            (b"GET / HTTP/1.1", Kind::More),
            (b"GE", Kind::More),
            (b"", Kind::More),
            (b"\r\n\0 \t", Kind::More),
            (b"SSH-2.0-OpenSSH_9.2", Kind::More),
            (b"SSH-2.0-OpenSSH_9.2 Debian", Kind::More),
            (b"SSH-2.0-OpenSSH_9.2\r\n", Kind::Text),
            (b"EHLO me\r\n", Kind::Text),
            (b"*1\r\n$4\r\nPING\r\n", Kind::Text),
            (b"PING\r\n", Kind::Text),
            (b"0032git-upload-pack /r\0host=a\0", Kind::More),
        ] {
            assert_eq!(classify(bytes), kind, "{:?}", String::from_utf8_lossy(bytes));
        }
        assert!(incomplete(b"PING") && incomplete(b"GET") && incomplete(b"\0hi") && incomplete(b"still here"));
        for bytes in [
            &b""[..],
            b"GET / HTTP/1.1",
            b"GET ",
            b"get /x",
            b" GET",
            b"FROB / http/1.1",
            b"FROB /\x0bHost:",
            b"\r",
            b"\nGET",
            b"GET / HTTP/1.1\rHost: a\r\r",
            b"PING\r\n",
            b"\x16\x03\x01",
        ] {
            assert!(!incomplete(bytes), "{:?}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(classify(&[b"GET /".as_slice(), &[b'a'; MAX_LINE]].concat()), Kind::Http, "refused as too long");
        assert_eq!(classify(&[b'a'; MAX_LINE + 1]), Kind::Http, "refused as too long");
    }

    #[test]
    fn what_a_lenient_server_could_take_for_a_request_is_never_raw() {
        let long = [&[b'A'; 65][..], b" / HTTP/1.1\r\nHost: ok.test\r\n\r\n"].concat();
        for bytes in [
            &long[..],
            b"GET\t/x\tHTTP/1.1\r\n",
            b" GET /x HTTP/1.1\r\n",
            b"\0GET /x HTTP/1.1\r\n",
            b"G\0ET /x HTTP/1.1\r\n",
            b"GET\0/x HTTP/1.1\r\n",
            b"GET /\0 HTTP/1.1\r\n",
            b"GET /\x01 HTTP/1.1\r\n",
            b"GET \x01 HTTP/1.1\r\n",
            b"GET /x\r\n\r\n",
            b"get /x\n",
            b"GET\r\n",
            b"GET\rGET /x\r\nHost: evil.test\r\n\r\n",
            b"\x0bGET\x0c/x\x1cHTTP/1.1\r\n",
            b"\x85GET\x85/x\xa0HTTP/1.1\r\n",
            "GET\u{2003}/x\u{3000}HTTP/1.1\r\n".as_bytes(),
            "G\u{c0}\u{c5}T /\x01 HTTP/1.1\r\n".as_bytes(),
            b"FOO /x\r\n",
            b"FOO /x\rHost: evil.test\r\r",
        ] {
            for length in 0..=bytes.len() {
                let kind = classify(&bytes[..length]);
                assert!(
                    !matches!(kind, Kind::Raw | Kind::Tls),
                    "{kind:?}: {:?}",
                    String::from_utf8_lossy(&bytes[..length])
                );
            }
            assert!(matches!(classify(bytes), Kind::Http | Kind::Text), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn binary_protocols_pass() {
        for (protocol, bytes) in [
            ("PostgreSQL asks for TLS", &b"\0\0\0\x08\x04\xd2\x16\x2f"[..]),
            ("PostgreSQL", b"\0\0\0\x4e\0\x03\0\0user\0alice\0"),
            ("PostgreSQL, a length like a space", b"\0\0\0 \0\x03\0\0user\0alice\0"),
            ("PostgreSQL, a length like a line's end", b"\0\0\0\r\0\x03\0\0user\0"),
            ("MongoDB", b"\x41\0\0\0\x01\0\0\0\0\0\0\0\xdd\x07\0\0"),
            ("MongoDB, a number like a space", b"\x41\x01\0\0 \n\r \0\0\0\0\xdd\x07\0\0"),
            ("AMQP", b"AMQP\0\0\x09\x01"),
            ("LDAP", b"0\x0c\x02\x01\x01\x60\x07\x02\x01\x03\x04\0\x80\0"),
            ("Kafka", b"\0\0\0\x1d\0\x12\0\x03\0\0\0\x01\0\x06client"),
            ("SQL Server", b"\x12\x01\0\x2f\0\0\x01\0"),
            ("Oracle", b"\0\x5a\0\0\x01\0\0\0"),
            ("MQTT", b"\x10\x1a\0\x04MQTT\x04\x02"),
            ("Cassandra", b"\x04\0\0\x01\x05\0\0\0\0"),
            ("SMB", b"\0\0\0\x85\xffSMBr"),
            ("Bolt", b"\x60\x60\xb0\x17\0\0\x04\x04"),
            ("Thrift", b"\x80\x01\0\x01\0\0\0\x04ping"),
            ("memcached, binary", b"\x80\0\0\x03\0\0\0\0"),
            ("RDP", b"\x03\0\0\x13\x0e\xe0"),
            ("ClickHouse", b"\0\x11ClickHouse client"),
            ("Java's RMI", b"JRMI\0\x02K"),
            ("BitTorrent", b"\x13BitTorrent protocol"),
            ("no TLS", b"\x16\x02"),
        ] {
            assert_eq!(classify(bytes), Kind::Raw, "{protocol}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            classify(&bytes);
        }

        #[test]
        fn every_request_is_seen_as_one(method in "[A-Za-z!#$%&'*+.^_`|~-]{1,99}", target in "[!-~]{1,30}") {
            proptest::prop_assert_eq!(classify(format!("{method} {target} HTTP/1.1\r\n").as_bytes()), Kind::Http);
        }
    }
}
