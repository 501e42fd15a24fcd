//! A record as a line.
//!
//! ```text
//! {"seq":7,"time_ms":1700000000000,"sandbox":"s1","actor":"cli","prev":"…","event":{…},"hash":"…"}
//! ```
//! `hash` is the SHA-256 of the line's bytes before `,"hash"`, and the next line's `prev`. It is the bytes that are
//! hashed, never JSON that was read and written again.

use ring::digest::{SHA256, digest};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A SHA-256 in hexadecimal digits.
pub(crate) type Hash = [u8; 64];

/// What the first record has as its predecessor's.
pub(crate) const NO_HASH: Hash = [b'0'; 64];

const BEFORE_HASH: &[u8] = b",\"hash\":\"";
const AFTER_HASH: &[u8] = b"\"}";
const SUFFIX: usize = BEFORE_HASH.len() + 64 + AFTER_HASH.len();

/// The longest event that is written.
pub(crate) const EVENT_MAX: usize = 256 * 1024;
/// Longer lines are not records.
pub(crate) const LINE_MAX: usize = EVENT_MAX + 64 * 1024;

/// All of a record but its place in the chain. The parts are JSON.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub time_ms: u64,
    pub sandbox: Vec<u8>,
    pub actor: Vec<u8>,
    pub event: Vec<u8>,
}

/// A line, taken apart.
#[derive(Deserialize)]
pub(crate) struct Parsed<'a> {
    pub seq: u64,
    pub time_ms: u64,
    pub sandbox: Option<String>,
    pub actor: String,
    pub prev: &'a str,
    #[serde(borrow)]
    pub event: &'a RawValue,
    pub hash: &'a str,
}

/// Appends the line and returns its hash.
pub(crate) fn write(out: &mut Vec<u8>, seq: u64, draft: &Draft, prev: &Hash) -> Hash {
    let start = out.len();
    out.extend_from_slice(format!("{{\"seq\":{seq},\"time_ms\":{},\"sandbox\":", draft.time_ms).as_bytes());
    let parts: [&[u8]; 7] =
        [&draft.sandbox, b",\"actor\":", &draft.actor, b",\"prev\":\"", prev, b"\",\"event\":", &draft.event];
    parts.iter().for_each(|part| out.extend_from_slice(part));
    let hash = sha256(&out[start..]);
    for part in [BEFORE_HASH, &hash, AFTER_HASH, b"\n"] {
        out.extend_from_slice(part);
    }
    hash
}

/// Reads a line (without its end); `None` if it is not a record at all.
pub(crate) fn parse(line: &[u8]) -> Option<Parsed<'_>> {
    let parsed: Parsed<'_> = serde_json::from_slice(line).ok()?;
    (parsed.hash.len() == 64 && parsed.prev.len() == 64).then_some(parsed)
}

/// Whether the line says its own hash.
pub(crate) fn intact(line: &[u8]) -> bool {
    let Some(body) = line.len().checked_sub(SUFFIX) else { return false };
    let (body, suffix) = line.split_at(body);
    let Some(rest) = suffix.strip_prefix(BEFORE_HASH) else { return false };
    rest.strip_suffix(AFTER_HASH).is_some_and(|hash| hash == sha256(body))
}

/// The hash as an array.
pub(crate) fn hash(text: &str) -> Option<Hash> {
    text.as_bytes().try_into().ok()
}

/// SHA-256 in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> Hash {
    let mut out = NO_HASH;
    for (pair, byte) in out.chunks_exact_mut(2).zip(digest(&SHA256, bytes).as_ref()) {
        pair.copy_from_slice(&pair_of(*byte));
    }
    out
}

/// Hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|byte| pair_of(*byte)).map(char::from).collect()
}

/// Bytes out of hexadecimal digits, small letters only.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

fn pair_of(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_carries_its_hash() {
        let draft = Draft { time_ms: 5, sandbox: b"null".into(), actor: b"\"a\"".into(), event: b"{\"x\":1}".into() };
        let mut out = Vec::new();
        let first = write(&mut out, 1, &draft, &NO_HASH);
        let line = out.strip_suffix(b"\n").unwrap();
        let parsed = parse(line).unwrap();
        assert_eq!((parsed.seq, parsed.time_ms, parsed.event.get()), (1, 5, "{\"x\":1}"));
        assert_eq!(hash(parsed.hash), Some(first));
        assert!(intact(line));
        for at in 0..line.len() {
            let mut changed = line.to_vec();
            changed[at] ^= 0x20;
            assert!(!intact(&changed), "byte {at}");
        }
        assert_eq!(unhex(&hex(&[0, 255, 18])), Some(vec![0, 255, 18]));
        assert_eq!(unhex("0G"), None);
        assert_eq!(unhex("0"), None);
    }
}
