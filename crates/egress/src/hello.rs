//! The server name in a TLS ClientHello. RFC 8446, RFC 6066.

/// What the bytes so far say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hello {
    /// Not enough yet.
    More,
    /// The server name, lower case, without a trailing dot; `None` if it does not say one.
    Name(Option<String>),
    /// Not a ClientHello that can be trusted to mean one thing.
    Bad(&'static str),
}

/// The longest ClientHello. With post-quantum key shares they are about 2 KiB, with a ticket in addition 4.
pub(crate) const MAX: usize = 32 << 10;

/// Whether these bytes begin a TLS handshake: a record, or a hello in the form of SSL 2, which OpenSSL's servers still take.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    matches!(bytes, [22] | [22, 3, ..] | [0x80..=0xff, _, 1, 3, ..])
}

/// Whether so few bytes could become a hello in the form of SSL 2.
pub(crate) fn may_begin(bytes: &[u8]) -> bool {
    matches!(bytes, [0x80..=0xff] | [0x80..=0xff, _] | [0x80..=0xff, _, 1])
}

/// Reads a ClientHello, however it is cut into records.
pub(crate) fn parse(bytes: &[u8]) -> Hello {
    if matches!(bytes, [0x80..=0xff, ..]) {
        // There is no place for a name in it.
        return Hello::Name(None);
    }
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        let [kind, major, _, high, low, tail @ ..] = rest else { return Hello::More };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if (*kind, *major) != (22, 3) || length == 0 || length > 16_384 {
            return Hello::Bad("the TLS record is malformed");
        }
        let (part, after) = tail.split_at(length.min(tail.len()));
        message.extend_from_slice(part);
        if let [kind, a, b, c, body @ ..] = message.as_slice() {
            let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            if *kind != 1 {
                return Hello::Bad("the TLS handshake does not begin with a ClientHello");
            }
            if length > MAX {
                return Hello::Bad("the ClientHello is too long");
            }
            if let Some(body) = body.get(..length) {
                return match server_name(&mut Reader(body)) {
                    Some(Ok(name)) => Hello::Name(name),
                    Some(Err(problem)) => Hello::Bad(problem),
                    None => Hello::Bad("the ClientHello is malformed"),
                };
            }
        }
        if part.len() < length {
            return Hello::More;
        }
        rest = after;
    }
}

/// `None`: cut short.
fn server_name(body: &mut Reader<'_>) -> Option<Result<Option<String>, &'static str>> {
    body.take(2 + 32)?;
    body.vector8()?;
    body.vector16()?;
    body.vector8()?;
    if body.0.is_empty() {
        return Some(Ok(None));
    }
    let mut extensions = body.vector16()?;
    let mut name = None;
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let mut data = extensions.vector16()?;
        if kind != 0 {
            continue;
        }
        if name.is_some() {
            return Some(Err("the ClientHello has two server names"));
        }
        let mut list = data.vector16()?;
        let kind = list.take(1)?;
        let host = list.vector16()?.0;
        if kind != [0] || !list.0.is_empty() || !data.0.is_empty() {
            return Some(Err("the ClientHello's list of server names is not one host name"));
        }
        match std::str::from_utf8(host) {
            Ok(host) if host.len() <= 254 && host.bytes().all(|b| b.is_ascii_graphic()) => {
                let host = host.to_ascii_lowercase();
                name = Some(host.strip_suffix('.').unwrap_or(&host).to_owned());
            }
            _ => return Some(Err("the ClientHello's server name is not a host name")),
        }
    }
    Some(Ok(name))
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn vector8(&mut self) -> Option<Reader<'a>> {
        let length = self.take(1)?[0];
        self.take(length.into()).map(Reader)
    }

    fn vector16(&mut self) -> Option<Reader<'a>> {
        let length = self.u16()?;
        self.take(length.into()).map(Reader)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn vector16(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
    }

    fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &vector16(data)].concat()
    }

    fn name_extension(names: &[&str]) -> Vec<u8> {
        let list: Vec<u8> = names.iter().flat_map(|name| [&[0][..], &vector16(name.as_bytes())].concat()).collect();
        extension(0, &vector16(&list))
    }

    fn message(extensions: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0]);
        body.extend(vector16(&[0x13, 0x01]));
        body.extend([1, 0]);
        body.extend(vector16(&extensions.concat()));
        [&[1, 0][..], &vector16(&body)].concat()
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        message.chunks(size).flat_map(|part| [&[22, 3, 1][..], &vector16(part)].concat()).collect()
    }

    #[test]
    fn the_name_is_found_however_the_records_are_cut() {
        let hello =
            message(&[extension(43, &[2, 3, 4]), name_extension(&["API.Example.com"]), extension(0xfe0d, &[0; 80])]);
        for size in [1, 7, 50, 16_384] {
            let bytes = records(&hello, size);
            assert_eq!(parse(&bytes), Hello::Name(Some("api.example.com".into())), "{size}");
            for cut in 0..bytes.len() {
                assert!(matches!(parse(&bytes[..cut]), Hello::More), "cut at {cut} of {size}");
            }
        }
        let dot = message(&[name_extension(&["a.com."])]);
        assert_eq!(parse(&records(&dot, 9000)), Hello::Name(Some("a.com".into())));
    }

    #[test]
    fn a_hello_without_a_name_says_so() {
        assert_eq!(parse(&records(&message(&[extension(43, &[2, 3, 4])]), 9000)), Hello::Name(None));
        let old = b"\x80\x2e\x01\x03\x01\0\x15\0\0\0\x10";
        assert!(begins(old) && (1..4).all(|cut| may_begin(&old[..cut])));
        assert_eq!(parse(old), Hello::Name(None), "the form of SSL 2");
    }

    #[test]
    fn what_could_mean_two_names_is_bad() {
        for extensions in [
            vec![name_extension(&["a.com"]), name_extension(&["b.com"])],
            vec![name_extension(&["a.com", "b.com"])],
            vec![name_extension(&[])],
            vec![name_extension(&["a.com\0b.com"])],
            vec![name_extension(&["a b"])],
            vec![extension(0, &[])],
        ] {
            assert!(matches!(parse(&records(&message(&extensions), 9000)), Hello::Bad(_)), "{extensions:?}");
        }
        for bytes in [
            &b"\x16\x03\x01\x00\x00"[..],
            b"\x16\x03\x01\xff\xff",
            b"\x17\x03\x01\0\x05hello",
            b"\x16\x03\x01\0\x04\x02\0\0\0",
        ] {
            assert!(matches!(parse(bytes), Hello::Bad(_)), "{bytes:?}");
        }
        assert!(matches!(parse(b"\x16\x03\x01\0\x04\x01\xff\xff\xff"), Hello::Bad(_)), "16 MiB");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes: Vec<u8>, cut: usize, change: (usize, u8)) {
            parse(&bytes);
            parse(&records(&bytes, 1 + cut % 99));
            let mut hello = records(&message(&[name_extension(&["a.com"])]), 1 + cut % 99);
            let place = change.0 % hello.len();
            hello[place] = change.1;
            parse(&hello);
        }
    }
}
