//! HTTP/1 requests, read as strictly as RFC 9112 allows: what two servers could read differently is refused.

use std::net::IpAddr;

/// The longest request head.
pub(crate) const MAX_HEAD: usize = 64 << 10;

/// The most header fields.
const MAX_FIELDS: usize = 128;

/// The longest extension or trailer of a chunked body.
const MAX_CHUNK_TEXT: usize = 8 << 10;

/// A request's head, as far as it decides anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    /// `GET`, …
    pub(crate) method: String,
    /// The request's target, as written.
    pub(crate) target: String,
    /// The Host field.
    pub(crate) host: Option<Authority>,
    /// How its body is framed.
    pub(crate) body: Body,
    /// Whether it asks for another protocol.
    pub(crate) upgrade: bool,
    /// Whether it offered HTTP/2 without TLS, which could not be checked. The offer is not among its fields any more.
    pub(crate) downgraded: bool,
    /// HTTP/1.x.
    pub(crate) minor: u8,
    /// All fields, for those who write the request anew.
    pub(crate) fields: Vec<(String, Vec<u8>)>,
}

/// How a body is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// So many bytes.
    Length(u64),
    /// In chunks.
    Chunked,
}

/// A host, and a port if it is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Authority {
    /// Lower case, without a trailing dot and without brackets.
    pub(crate) host: String,
    /// The port.
    pub(crate) port: Option<u16>,
}

impl Authority {
    /// Reads `host`, `host:port`, `[v6]:port`. No user, nothing empty.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']')?;
                host.parse::<std::net::Ipv6Addr>().ok()?;
                (host, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = match port {
            Some(port) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => Some(port.parse().ok()?),
            Some(_) => return None,
            None => None,
        };
        let host = host.to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(&host);
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':');
        (!host.is_empty() && host.len() <= 253 && host.bytes().all(plain)).then(|| Self { host: host.to_owned(), port })
    }

    /// The address, if it is one in the plain spelling.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

impl Head {
    /// The authority of an absolute target, `http://authority/path`, and what follows it.
    ///
    /// `None`: the target is not absolute. `Some(None)`: it is, and makes no sense.
    pub(crate) fn absolute(&self) -> Option<Option<(&str, Authority, &str)>> {
        let (scheme, rest) = self.target.split_once("://")?;
        if self.target.starts_with('/') {
            return None;
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        Some(Authority::parse(&rest[..end]).map(|authority| (scheme, authority, &rest[end..])))
    }
}

impl Head {
    /// As it goes over the wire.
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = format!("{} {} HTTP/1.{}\r\n", self.method, self.target, self.minor).into_bytes();
        for (name, value) in &self.fields {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        out
    }
}

/// Where a head ends in `bytes`; looked for from `from` on, where earlier looks found nothing. Lines end in CR LF, always.
pub(crate) fn head_end(bytes: &[u8], from: usize) -> Result<Option<usize>, &'static str> {
    for at in from..bytes.len() {
        if bytes[at] == b'\n' {
            if at == 0 || bytes[at - 1] != b'\r' {
                return Err("a line of the request does not end in CR LF");
            }
            if bytes[..at].ends_with(b"\r\n\r") {
                return Ok(Some(at + 1));
            }
        }
    }
    if bytes.len() > MAX_HEAD { Err("the request's head is too long") } else { Ok(None) }
}

/// Reads a whole head.
pub(crate) fn parse(bytes: &[u8]) -> Result<Head, &'static str> {
    let mut space = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut space);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err("the request has too many header fields"),
        _ => return Err("the request's head is malformed"),
    }
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
        return Err("the request's head is malformed");
    };
    let (mut host, mut length, mut chunked, mut upgrade, mut downgraded) = (None, None, false, false, false);
    for field in request.headers.iter() {
        let name = field.name;
        if field.value.iter().any(|b| matches!(b, 0..=8 | 10..=31 | 127)) {
            return Err("a header field has control characters");
        }
        if holds_field(field.value) {
            return Err("a header field holds another one behind a line's end of Latin-1");
        }
        if name.eq_ignore_ascii_case("host") {
            let value = std::str::from_utf8(field.value).ok().and_then(|value| Authority::parse(value.trim()));
            if host.replace(value.ok_or("the Host field is malformed")?).is_some() {
                return Err("the request has two Host fields");
            }
        } else if name.eq_ignore_ascii_case("content-length") {
            let value = std::str::from_utf8(field.value).map_or("", str::trim);
            let digits = (1..=18).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_digit());
            let value = value.parse::<u64>().ok().filter(|_| digits).ok_or("the Content-Length is malformed")?;
            if length.replace(value).is_some() {
                return Err("the request has two Content-Length fields");
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if chunked || !field.value.trim_ascii().eq_ignore_ascii_case(b"chunked") || minor == 0 {
                return Err("the only transfer coding of a request is chunked, once");
            }
            chunked = true;
        } else if name.eq_ignore_ascii_case("upgrade") {
            // An offer that any server may decline, and Java makes with every request.
            downgraded |= field.value.to_ascii_lowercase().windows(3).any(|part| part == b"h2c");
            upgrade = true;
        }
    }
    let body = match (length, chunked) {
        (Some(_), true) => return Err("the request has a Content-Length and a Transfer-Encoding"),
        (_, true) => Body::Chunked,
        (length, false) => Body::Length(length.unwrap_or(0)),
    };
    let mut fields: Vec<(String, Vec<u8>)> =
        request.headers.iter().map(|field| (field.name.to_owned(), field.value.to_vec())).collect();
    if downgraded {
        decline(&mut fields);
    }
    let upgrade = upgrade && !downgraded;
    Ok(Head { method: method.to_owned(), target: target.to_owned(), host, body, upgrade, downgraded, minor, fields })
}

/// Whether a value holds a line's end of Latin-1, and behind it another field: some servers split there.
fn holds_field(value: &[u8]) -> bool {
    let mut lines = value.split(|byte| *byte == 0x85);
    lines.next();
    lines.any(|line| {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        name.len() < line.len() && name.trim_ascii().iter().all(|byte| byte.is_ascii_graphic())
    })
}

/// Takes the offer of another protocol out.
fn decline(fields: &mut Vec<(String, Vec<u8>)>) {
    let offer = |word: &[u8]| word.eq_ignore_ascii_case(b"upgrade") || word.eq_ignore_ascii_case(b"http2-settings");
    fields.retain(|(name, _)| !offer(name.as_bytes()));
    for (_, value) in fields.iter_mut().filter(|(name, _)| name.eq_ignore_ascii_case("connection")) {
        let kept = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        let kept = kept.filter(|word| !word.is_empty() && !offer(word));
        *value = kept.collect::<Vec<_>>().join(&b", "[..]);
    }
    fields.retain(|(name, value)| !(name.eq_ignore_ascii_case("connection") && value.is_empty()));
}

/// Finds the end of a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chunks {
    /// In a chunk's size: digits so far, their value.
    Size(u8, u64),
    /// Behind it: bytes so far, the chunk's size.
    Extension(usize, u64),
    /// Behind the CR of that line.
    SizeEnd(u64),
    /// In its data.
    Data(u64),
    /// Behind its data.
    DataCr,
    /// Behind the CR after its data.
    DataLf,
    /// In the trailer: bytes so far, bytes in this line, whether the last was a CR.
    Trailer(usize, usize, bool),
    /// Behind its end.
    Done,
}

impl Chunks {
    /// Before the first chunk.
    pub(crate) const START: Self = Self::Size(0, 0);

    /// How many of `bytes` belong to the body.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        const BAD: &str = "the chunked body is malformed";
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            *self = match (*self, byte) {
                (Self::Done, _) => break,
                (Self::Data(left), _) => {
                    let taken = left.min((bytes.len() - at) as u64);
                    at += taken as usize;
                    *self = if taken == left { Self::DataCr } else { Self::Data(left - taken) };
                    continue;
                }
                (Self::Size(digits, value), b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') if digits < 15 => {
                    let digit = (byte as char).to_digit(16).unwrap_or_default();
                    Self::Size(digits + 1, value << 4 | u64::from(digit))
                }
                (Self::Size(1.., value), b'\r') => Self::SizeEnd(value),
                (Self::Size(1.., value), b';') => Self::Extension(0, value),
                (Self::Extension(_, value), b'\r') => Self::SizeEnd(value),
                (Self::Extension(count, value), b'\t' | b' '..=b'~') if count < MAX_CHUNK_TEXT => {
                    Self::Extension(count + 1, value)
                }
                (Self::SizeEnd(0), b'\n') => Self::Trailer(0, 0, false),
                (Self::SizeEnd(size), b'\n') => Self::Data(size),
                (Self::DataCr, b'\r') => Self::DataLf,
                (Self::DataLf, b'\n') => Self::START,
                (Self::Trailer(_, 0, true), b'\n') => Self::Done,
                (Self::Trailer(count, _, true), b'\n') => Self::Trailer(count + 1, 0, false),
                (Self::Trailer(count, line, false), b'\r') => Self::Trailer(count + 1, line, true),
                (Self::Trailer(count, line, false), b'\t' | b' '..=b'~' | 128..) if count < MAX_CHUNK_TEXT => {
                    Self::Trailer(count + 1, line + 1, false)
                }
                _ => return Err(BAD),
            };
            at += 1;
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Result<Head, &'static str> {
        let end = head_end(text.as_bytes(), 0)?.ok_or("not whole")?;
        parse(&text.as_bytes()[..end])
    }

    #[test]
    fn plain_requests_are_read() {
        let get = head("GET /x?y HTTP/1.1\r\nHost: Ok.com:8080\r\nX: y\r\n\r\n").unwrap();
        assert_eq!((get.method.as_str(), get.target.as_str(), get.body), ("GET", "/x?y", Body::Length(0)));
        assert_eq!(get.host, Some(Authority { host: "ok.com".into(), port: Some(8080) }));
        assert!(get.absolute().is_none());
        let post = head("POST http://ok.com/a HTTP/1.1\r\nHost: ok.com\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        assert_eq!(post.body, Body::Chunked);
        let (scheme, authority, path) = post.absolute().unwrap().unwrap();
        assert_eq!((scheme, authority.host.as_str(), path), ("http", "ok.com", "/a"));
        assert_eq!(head("PUT / HTTP/1.1\r\nContent-Length: 12\r\n\r\n").unwrap().body, Body::Length(12));
        assert!(head("GET /http://x HTTP/1.1\r\n\r\n").unwrap().absolute().is_none());
        assert_eq!(head("GET http://u@ok.com/ HTTP/1.1\r\n\r\n").unwrap().absolute(), Some(None), "a user");
    }

    #[test]
    fn what_two_servers_could_read_differently_is_refused() {
        for fields in [
            "Content-Length: 3\r\nTransfer-Encoding: chunked",
            "Content-Length: 3\r\nContent-Length: 3",
            "Content-Length: 3\r\nContent-Length: 4",
            "Content-Length: 3, 3",
            "Content-Length: +3",
            "Content-Length: 0x3",
            "Content-Length:",
            "Content-Length: 99999999999999999999",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: xchunked",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding : chunked",
            "X: a\r\n b: folded",
            "X: a\r\n\tfolded",
            "Host: b.com",
            "X: a\nY: b",
            "X: a\rY: b",
            "X: a\0b",
            "X: a\u{85}Host: b.com",
            "X: a\u{c5} Host : b.com",
            "X y",
        ] {
            let text = format!("GET / HTTP/1.1\r\nHost: ok.com\r\n{fields}\r\n\r\n");
            assert!(head(&text).is_err(), "{fields:?}");
        }
        let offer = "GET /a HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHost: a\r\nHTTP2-Settings: AA\r\nUpgrade: h2c\r\n\r\n";
        let declined = head(offer).unwrap();
        assert!(declined.downgraded && !declined.upgrade);
        assert_eq!(declined.write(), b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
        let kept = head("GET / HTTP/1.1\r\nConnection: close,  upgrade\r\nUpgrade: H2C, x\r\n\r\n").unwrap();
        assert_eq!(kept.write(), b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
        let empty = head("GET / HTTP/1.1\r\nConnection: x, upgrade,\r\nUpgrade: h2c\r\n\r\n").unwrap();
        assert_eq!(empty.write(), b"GET / HTTP/1.1\r\nConnection: x\r\n\r\n", "words without letters go, too");
        for host in ["", "a b", "a@b", "a,b", "a/b", "a:b", "a:99999", "[::1", "[x]", "ö", "a:+80", "a:"] {
            assert!(head(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).is_err(), "{host:?}");
        }
        for line in
            ["GET / HTTP/2.0", "GET  / HTTP/1.1", "GET / HTTP/1.1 ", "GET /", "PRI * HTTP/2.0", "GET /\0 HTTP/1.1"]
        {
            assert!(head(&format!("{line}\r\nHost: a\r\n\r\n")).is_err(), "{line:?}");
        }
        assert!(head("GET / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(MAX_FIELDS + 1));
        assert_eq!(head(&many), Err("the request has too many header fields"));
        assert!(head_end(&vec![b'a'; MAX_HEAD + 1], 0).is_err());
    }

    #[test]
    fn chunked_bodies_end_where_they_end() {
        let body = b"5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";
        let all = [&body[..], b"GET / HTTP/1.1"].concat();
        for step in 1..all.len() {
            let (mut chunks, mut used) = (Chunks::START, 0);
            for part in all.chunks(step) {
                used += chunks.feed(part).unwrap();
            }
            assert_eq!((chunks, used), (Chunks::Done, body.len()), "step {step}");
        }
        for bad in [
            "\r\n",
            "g\r\n",
            "5\nhello",
            "5\r\nhelloX",
            "5 \r\n",
            "-1\r\n",
            "5;\n",
            "1234567890123456\r\n",
            "0\r\nA: b\n\r\n",
        ] {
            assert!(Chunks::START.clone().feed(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!({ Chunks::START }.feed(format!("5;{}", "a".repeat(MAX_CHUNK_TEXT + 1)).as_bytes()).is_err());
        assert!({ Chunks::START }.feed(format!("0\r\n{}", "a: b\r\n".repeat(MAX_CHUNK_TEXT)).as_bytes()).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_parsers_panic(bytes: Vec<u8>, text in "(GET|POST) [ -~]{0,20} HTTP/1.1\r\n([A-Za-z-]{1,9}: ?[ -~]{0,9}\r\n){0,5}\r\n", cut: usize) {
            for bytes in [bytes.as_slice(), text.as_bytes()] {
                let _ = head_end(bytes, 0);
                let _ = parse(bytes);
                let mut chunks = Chunks::START;
                let (a, b) = bytes.split_at(cut % (bytes.len() + 1));
                if chunks.feed(a).is_ok() {
                    proptest::prop_assert!(chunks.feed(b).map_or(true, |used| used <= b.len()));
                }
            }
        }
    }
}
