//! Secret values, kept out of the record.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

use aho_corasick::{AhoCorasick, MatchKind};
use base64::Engine;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::text::CUT;

/// What stands where a secret was.
pub const REDACTED: &str = "[redacted]";

/// Shorter beginnings of a secret, left over by a cut, say nothing.
const PREFIX: usize = 4;

/// Values that must not be written down. Clones share the set; a value that was added stays for the life of the process,
/// since records that hold it may still be under way.
///
/// A value is found as it is, percent-encoded, and in base64, alone or in the middle of something.
#[derive(Clone, Default)]
pub struct Redactor {
    shared: Arc<RwLock<Set>>,
}

#[derive(Default)]
struct Set {
    values: BTreeSet<String>,
    compiled: Option<Arc<Compiled>>,
}

struct Compiled {
    /// The patterns as they look inside JSON strings, and the mark of a cut: whether a record needs a closer look.
    quick: AhoCorasick,
    exact: AhoCorasick,
    patterns: Vec<String>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Redactor(..)")
    }
}

impl Redactor {
    /// The shortest value that is told from ordinary text.
    pub const SHORTEST: usize = 8;

    /// Adds a value; false if it is shorter than [`Redactor::SHORTEST`] bytes and so will not be kept out.
    pub fn add(&self, value: &str) -> bool {
        // Files end in a newline that the value as it is used does not have.
        let value = value.trim();
        if value.len() < Self::SHORTEST {
            return false;
        }
        let mut set = self.shared.write().unwrap_or_else(PoisonError::into_inner);
        if set.values.insert(value.to_owned()) {
            set.compiled = Compiled::new(&set.values).map(Arc::new);
        }
        true
    }

    /// `text` without secrets.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.compiled() {
            Some(compiled) => compiled.text(text),
            None => Cow::Borrowed(text),
        }
    }

    /// `json`, an event, without secrets.
    pub(crate) fn json(&self, json: Vec<u8>) -> Vec<u8> {
        let Some(compiled) = self.compiled() else { return json };
        if !compiled.quick.is_match(&json) {
            return json;
        }
        let Ok(mut value) = serde_json::from_slice::<Value>(&json) else { return b"null".to_vec() };
        let kind = value.get("kind").cloned();
        compiled.value(&mut value);
        // A secret called like a kind of event would otherwise hide what the record is.
        if let (Some(kind), Some(fields)) = (kind, value.as_object_mut()) {
            fields.insert("kind".into(), kind);
        }
        serde_json::to_vec(&value).unwrap_or_else(|_| b"null".to_vec())
    }

    /// `bytes`, an output, without secrets.
    pub(crate) fn bytes<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        match self.compiled() {
            Some(compiled) if compiled.exact.is_match(bytes) => {
                Cow::Owned(compiled.exact.replace_all_bytes(bytes, &vec![REDACTED; compiled.patterns.len()]))
            }
            _ => Cow::Borrowed(bytes),
        }
    }

    /// See [`Compiled::parts`].
    pub(crate) fn parts(&self, head: &[u8], tail: &[u8]) -> (usize, usize) {
        self.compiled().map_or((0, 0), |compiled| compiled.parts(head, tail))
    }

    fn compiled(&self) -> Option<Arc<Compiled>> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner).compiled.clone()
    }
}

impl Compiled {
    fn new(values: &BTreeSet<String>) -> Option<Self> {
        let patterns: BTreeSet<String> = values.iter().flat_map(|value| spellings(value)).collect();
        let patterns: Vec<String> = patterns.into_iter().collect();
        // Without the quotes.
        let escaped = patterns.iter().filter_map(|pattern| {
            let json = serde_json::to_string(pattern).ok()?;
            Some(json.get(1..json.len() - 1)?.to_owned())
        });
        let quick = AhoCorasick::new(escaped.chain([CUT.to_owned()])).ok()?;
        let exact = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&patterns).ok()?;
        Some(Self { quick, exact, patterns })
    }

    fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut out = Cow::Borrowed(text);
        if self.exact.is_match(text) {
            out = Cow::Owned(self.exact.replace_all(text, &vec![REDACTED; self.patterns.len()]));
        }
        // A cut may have left the beginning of a secret.
        if let Some(at) = out.find(CUT) {
            let (part, _) = self.parts(&out.as_bytes()[..at], &[]);
            if part > 0 {
                out = Cow::Owned(format!("{}{REDACTED}{}", &out[..at - part], &out[at..]));
            }
        }
        out
    }

    /// How many bytes at the end of `head` and at the start of `tail` may be parts of a secret that was cut in two.
    fn parts(&self, head: &[u8], tail: &[u8]) -> (usize, usize) {
        let patterns = || self.patterns.iter().map(String::as_bytes);
        let end = patterns().filter_map(|pattern| {
            let sizes = PREFIX..=pattern.len().min(head.len());
            sizes.rev().find(|&size| head.ends_with(&pattern[..size]))
        });
        let start = patterns().filter_map(|pattern| {
            let sizes = PREFIX..=pattern.len().min(tail.len());
            sizes.rev().find(|&size| tail.starts_with(&pattern[pattern.len() - size..]))
        });
        (end.max().unwrap_or(0), start.max().unwrap_or(0))
    }

    fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Cow::Owned(clean) = self.text(text) {
                    *text = clean;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::Object(fields) => {
                let taken = std::mem::take(fields);
                for (name, mut field) in taken {
                    self.value(&mut field);
                    fields.insert(self.text(&name).into_owned(), field);
                }
            }
            _ => {}
        }
    }
}

/// The forms in which a value travels.
fn spellings(value: &str) -> Vec<String> {
    let mut all = vec![value.to_owned(), utf8_percent_encode(value, NON_ALPHANUMERIC).to_string()];
    let engines = [base64::engine::general_purpose::STANDARD_NO_PAD, base64::engine::general_purpose::URL_SAFE_NO_PAD];
    for engine in engines {
        // Three bytes are four letters: where a value stands in what is encoded decides how it looks. The letters that
        // its neighbours have a part in are left out.
        for before in 0..3_usize {
            let mut bytes = vec![0; before];
            bytes.extend_from_slice(value.as_bytes());
            let encoded = engine.encode(&bytes);
            let first = (before * 8).div_ceil(6);
            let last = bytes.len() * 8 / 6;
            all.push(encoded[first..last].to_owned());
        }
    }
    all.retain(|spelling| spelling.len() >= Redactor::SHORTEST);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Text;

    const SECRET: &str = "sk-ant-\"q\\uote\"\n/é-12345";

    fn json(redactor: &Redactor, value: &Value) -> Value {
        serde_json::from_slice(&redactor.json(serde_json::to_vec(value).unwrap())).unwrap()
    }

    #[test]
    fn values_are_found_in_every_spelling() {
        let redactor = Redactor::default();
        assert!(redactor.add(SECRET));
        let standard = base64::engine::general_purpose::STANDARD;
        for before in ["", "u", "us", "user:"] {
            let forms = [
                format!("{before}{SECRET}@host"),
                format!("{before}{}@host", utf8_percent_encode(SECRET, NON_ALPHANUMERIC)),
                format!("Basic {}", standard.encode(format!("{before}{SECRET}!"))),
            ];
            for form in forms {
                let clean = json(&redactor, &serde_json::json!({"kind": "note", "text": form, "n": 12345678}));
                let text = clean["text"].as_str().unwrap();
                assert!(text.contains(REDACTED), "{form} gave {text}");
                assert!(!text.contains("uote"), "{text}");
                assert_eq!(clean["n"], 12345678);
            }
        }
        let nested = serde_json::json!({"kind": "x", "a": [{"b": SECRET}], SECRET: 1});
        assert!(!json(&redactor, &nested).to_string().contains("uote"));
    }

    #[test]
    fn a_cut_secret_is_found() {
        let redactor = Redactor::default();
        redactor.add("sk-0123456789abcdef");
        let text = Text::from(format!("{}sk-0123456789abcdef{}", "x".repeat(4055), "y".repeat(4000)));
        assert!(text.contains("sk-012345"), "the cut must be in the secret for this to prove anything");
        let clean = json(&redactor, &serde_json::json!({"kind": "note", "text": text}));
        assert!(!clean["text"].as_str().unwrap().contains("sk-0"), "{clean}");
        assert!(clean["text"].as_str().unwrap().ends_with(" bytes]"));
    }

    #[test]
    fn structure_survives_odd_secrets() {
        let redactor = Redactor::default();
        for odd in ["exec_started", "12345678", "nfoobar12", "}},{{}},"] {
            assert!(redactor.add(odd));
        }
        assert!(!redactor.add("short"));
        let clean = json(&redactor, &serde_json::json!({"kind": "exec_started", "t": "\nfoobar12 ", "n": 1123456789}));
        assert_eq!(clean["kind"], "exec_started");
        assert_eq!(clean["n"], 1123456789);
        assert_eq!(clean["t"], "\nfoobar12 ");
        assert_eq!(redactor.bytes(b"\xff12345678"), &b"\xff[redacted]"[..]);
    }
}
