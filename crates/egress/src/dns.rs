//! Questions and answers of DNS, as far as a sandbox needs them: every answer is made here, nothing is passed on.
//!
//! A message has one question; answers have at most one record and fit every datagram. So a whole DNS library would
//! bring mostly what must not happen here.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Kinds of records.
pub(crate) mod kind {
    pub(crate) const A: u16 = 1;
    pub(crate) const PTR: u16 = 12;
    pub(crate) const AAAA: u16 = 28;
    pub(crate) const ANY: u16 = 255;
}

/// How long programs may remember an answer. A name keeps its address anyway; the rules are asked at each connection.
const TTL_SECONDS: u32 = 60;

/// What an answer says about the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// Answered, possibly with nothing.
    NoError = 0,
    /// The question is malformed.
    FormatError = 1,
    /// All addresses are in use.
    ServerFailure = 2,
    /// There is no such name.
    NoSuchName = 3,
    /// Not something that is done here.
    NotImplemented = 4,
    /// Not now, or not this class.
    Refused = 5,
}

/// A record of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// An IPv4 address.
    A(Ipv4Addr),
    /// An IPv6 address.
    Aaaa(Ipv6Addr),
    /// A name.
    Ptr(String),
}

/// A question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Query {
    id: u16,
    recursion: bool,
    /// The question section as it came: programs compare it, some down to upper and lower case.
    section: Vec<u8>,
    /// Whether the asker knows EDNS.
    edns: bool,
    /// The name in lower case; `None` if it has bytes that no host name has.
    pub(crate) name: Option<String>,
    /// The name as it may be printed.
    pub(crate) shown: String,
    /// The kind of record.
    pub(crate) kind: u16,
    /// Whether it is about the Internet.
    pub(crate) internet: bool,
}

impl Query {
    /// Reads a question. An error is the answer to send, if there should be one.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Option<Vec<u8>>> {
        let Some((header, body)) = message.split_first_chunk::<12>() else { return Err(None) };
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let (id, flags) = (word(0), word(2));
        if flags & 0x8000 != 0 {
            // An answer is never answered: two resolvers could keep each other busy forever.
            return Err(None);
        }
        let refuse = |code: Code| Err(Some(bare(id, flags, code)));
        if flags >> 11 & 0xf != 0 {
            return refuse(Code::NotImplemented);
        }
        if (word(4), word(6), word(8)) != (1, 0, 0) {
            return refuse(Code::FormatError);
        }
        let Some(question) = question(body) else { return refuse(Code::FormatError) };
        let (name, shown, used, kind, class) = question;
        Ok(Self {
            id,
            recursion: flags & 0x0100 != 0,
            section: body[..used].to_vec(),
            edns: body[used..].starts_with(&[0, 0, 41]),
            name,
            shown,
            kind,
            internet: class == 1 || class == 255,
        })
    }

    /// The answer, with a reason for those who can read one (RFC 8914).
    pub(crate) fn answer(&self, code: Code, record: Option<&Record>, reason: Option<&str>) -> Vec<u8> {
        let mut out = Vec::with_capacity(160);
        out.extend(self.id.to_be_bytes());
        // An answer, with recursion available; authoritative, because there is nobody else.
        let flags = 0x8480 | u16::from(self.recursion) << 8 | code as u16;
        out.extend(flags.to_be_bytes());
        for count in [1, u16::from(record.is_some()), 0, u16::from(self.edns)] {
            out.extend(count.to_be_bytes());
        }
        out.extend(&self.section);
        if let Some(record) = record {
            let (kind, data) = match record {
                Record::A(address) => (kind::A, address.octets().to_vec()),
                Record::Aaaa(address) => (kind::AAAA, address.octets().to_vec()),
                Record::Ptr(name) => (kind::PTR, encode(name)),
            };
            // The name is the one at byte 12.
            out.extend([0xc0, 12]);
            out.extend(kind.to_be_bytes());
            out.extend(1u16.to_be_bytes());
            out.extend(TTL_SECONDS.to_be_bytes());
            out.extend((data.len() as u16).to_be_bytes());
            out.extend(data);
        }
        if self.edns {
            out.extend([0, 0, 41]);
            out.extend(1232u16.to_be_bytes());
            out.extend([0; 4]);
            let reason: Vec<u8> = reason.unwrap_or_default().bytes().take(200).collect();
            if reason.is_empty() {
                out.extend([0, 0]);
            } else {
                // Extended error 18: prohibited.
                out.extend((reason.len() as u16 + 6).to_be_bytes());
                out.extend([0, 15]);
                out.extend((reason.len() as u16 + 2).to_be_bytes());
                out.extend([0, 18]);
                out.extend(reason);
            }
        }
        out
    }

    /// The kind of record, as it is written.
    pub(crate) fn kind_name(&self) -> String {
        let known = [(1, "A"), (2, "NS"), (5, "CNAME"), (6, "SOA"), (12, "PTR"), (15, "MX"), (16, "TXT"), (28, "AAAA")];
        let more = [(33, "SRV"), (64, "SVCB"), (65, "HTTPS"), (255, "ANY")];
        let name = known.iter().chain(&more).find(|(number, _)| *number == self.kind);
        name.map_or_else(|| format!("TYPE{}", self.kind), |(_, name)| (*name).to_owned())
    }
}

/// A header and nothing else.
fn bare(id: u16, flags: u16, code: Code) -> Vec<u8> {
    let mut out = vec![0; 12];
    out[..2].copy_from_slice(&id.to_be_bytes());
    out[2..4].copy_from_slice(&(0x8080 | flags & 0x7900 | code as u16).to_be_bytes());
    out
}

/// The name, how it is shown, the bytes it takes with what follows, kind and class.
fn question(body: &[u8]) -> Option<(Option<String>, String, usize, u16, u16)> {
    let (mut at, mut name, mut shown, mut plain) = (0, String::new(), String::new(), true);
    loop {
        let length = usize::from(*body.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        // Compression has nothing to point at in a question.
        let label = body.get(at..at + length).filter(|_| length <= 63)?;
        at += length;
        // A name has 255 bytes at most, with the zero at its end.
        if at > 254 {
            return None;
        }
        if !name.is_empty() {
            name.push('.');
            shown.push('.');
        }
        for byte in label.iter().map(u8::to_ascii_lowercase) {
            plain &= byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            name.push(byte as char);
            let _ = match byte {
                b'!'..=b'~' if byte != b'\\' => write!(shown, "{}", byte as char),
                _ => write!(shown, "\\{byte:03}"),
            };
        }
    }
    let [a, b, c, d] = *body.get(at..)?.first_chunk()?;
    Some((plain.then_some(name), shown, at + 4, u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

/// A name in the form of the wire. Names here come from [`question`], so their labels fit.
fn encode(name: &str) -> Vec<u8> {
    let mut out: Vec<u8> =
        name.split('.').flat_map(|label| [&[label.len() as u8][..], label.as_bytes()].concat()).collect();
    out.push(0);
    out
}

/// The address that a reverse name is about.
pub(crate) fn reverse(name: &str) -> Option<IpAddr> {
    if let Some(octets) = name.strip_suffix(".in-addr.arpa") {
        let forward: Vec<&str> = octets.split('.').rev().collect();
        return forward.join(".").parse::<Ipv4Addr>().ok().map(IpAddr::V4);
    }
    let nibbles = name.strip_suffix(".ip6.arpa")?;
    let mut bits = 0u128;
    let mut count = 0;
    for nibble in nibbles.split('.').rev() {
        let digit = u128::from_str_radix(nibble, 16).ok().filter(|_| nibble.len() == 1)?;
        bits = bits << 4 | digit;
        count += 1;
    }
    (count == 32).then(|| IpAddr::V6(Ipv6Addr::from_bits(bits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(name: &str, kind: u16, tail: &[u8]) -> Vec<u8> {
        let head = [0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(!tail.is_empty())];
        [&head[..], &encode(name), &kind.to_be_bytes(), &[0, 1], tail].concat()
    }

    #[test]
    fn a_question_is_answered_in_its_own_words() {
        let query = Query::parse(&ask("API.Example.com", kind::A, &[])).unwrap();
        assert_eq!((query.name.as_deref(), query.kind, query.internet), (Some("api.example.com"), kind::A, true));
        let answer = query.answer(Code::NoError, Some(&Record::A(Ipv4Addr::new(198, 19, 1, 2))), Some("unseen"));
        assert_eq!(&answer[..12], [0xab, 0xcd, 0x85, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        assert_eq!(&answer[12..29], encode("API.Example.com"));
        assert_eq!(&answer[33..], [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 19, 1, 2]);
    }

    #[test]
    fn those_who_can_read_a_reason_get_one() {
        let query = Query::parse(&ask("evil.com", 16, &[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0])).unwrap();
        assert_eq!(query.kind_name(), "TXT");
        let answer = query.answer(Code::NoSuchName, None, Some("no rule"));
        assert_eq!((answer[3] & 15, answer[11]), (3, 1));
        assert!(answer.ends_with(b"\0\x0d\0\x0f\0\x09\0\x12no rule"));
    }

    #[test]
    fn malformed_questions_are_answered_or_dropped() {
        let good = ask("a.b", 1, &[]);
        assert_eq!(Query::parse(&good[..11]), Err(None));
        let with = |at: usize, byte: u8| {
            let mut message = good.clone();
            message[at] = byte;
            Query::parse(&message)
        };
        assert_eq!(with(2, 0x81), Err(None), "an answer");
        assert_eq!(with(2, 0x29).unwrap_err().unwrap()[3] & 15, 4, "an update");
        assert_eq!(with(5, 2).unwrap_err().unwrap()[3] & 15, 1, "two questions");
        assert_eq!(with(12, 0xc0).unwrap_err().unwrap()[3] & 15, 1, "a pointer");
        assert_eq!(Query::parse(&good[..good.len() - 1]).unwrap_err().unwrap()[3] & 15, 1, "cut");
        let odd = Query::parse(&ask("a\0b.c\u{7f}", 1, &[])).unwrap();
        assert_eq!((odd.name, odd.shown.as_str()), (None, "a\\000b.c\\127"));
        let long = vec!["a".repeat(60); 5].join(".");
        assert!(Query::parse(&ask(&long, 1, &[])).is_err(), "more than 255 bytes");
        let longest = |last: usize| [vec!["a".repeat(63); 3].join("."), "b".repeat(last)].join(".");
        assert_eq!(Query::parse(&ask(&longest(61), 1, &[])).unwrap().name.unwrap().len(), 253);
        assert!(Query::parse(&ask(&longest(62), 1, &[])).is_err(), "256 bytes, with the zero at its end");
    }

    #[test]
    fn reverse_names_are_read() {
        assert_eq!(reverse("2.1.19.198.in-addr.arpa"), Some("198.19.1.2".parse().unwrap()));
        let name = format!("{}1.0.0.0.c.6.0.7.f.6.c.6.3.5.d.f.ip6.arpa", "1.".to_owned() + &"0.".repeat(15));
        assert_eq!(reverse(&name), Some("fd53:6c6f:706c:1::1".parse().unwrap()));
        for bad in ["in-addr.arpa", "1.2.in-addr.arpa", "0.0.ip6.arpa", "+1.ip6.arpa", "example.com"] {
            assert_eq!(reverse(bad), None, "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_message_makes_the_parser_panic(bytes: Vec<u8>, change: (usize, u8)) {
            let mut message = ask("some.name.example", 28, &[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
            let place = change.0 % message.len();
            message[place] = change.1;
            for message in [bytes, message] {
                if let Ok(query) = Query::parse(&message) {
                    let answer = query.answer(Code::NoSuchName, None, Some("x"));
                    proptest::prop_assert!(answer.len() <= 512);
                    query.kind_name();
                }
            }
        }
    }
}
