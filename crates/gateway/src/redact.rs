//! Finds values in a stream of bytes and puts something else in their place, across the borders of pieces.

use std::cmp::Reverse;
use std::sync::Arc;

use hyper::header::{HeaderMap, HeaderValue};
use memchr::memmem;
use zeroize::Zeroizing;

/// Shorter values are not searched for: they would be found in innocent text.
pub const SHORTEST: usize = 8;

/// What is looked for, and what is put in its place.
#[derive(Clone, Default)]
pub struct Needles(Vec<(Needle, Vec<u8>)>);

/// Shared by all answers under way, and zeroed with the last of them.
type Needle = Arc<Zeroizing<Vec<u8>>>;

impl Needles {
    /// Looks for one more.
    pub fn add(&mut self, needle: &[u8], replacement: &[u8]) {
        let known = self.0.iter().any(|(other, _)| other.as_slice() == needle);
        if needle.len() >= SHORTEST && !known && needle != replacement {
            self.0.push((Arc::new(Zeroizing::new(needle.to_vec())), replacement.to_vec()));
        }
    }

    /// Whether nothing is looked for.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Replaces all in a text that is complete; `None` if there was none.
    pub fn replace(&self, text: &[u8]) -> Option<Vec<u8>> {
        if self.0.iter().all(|(needle, _)| memmem::find(text, needle).is_none()) {
            return None;
        }
        let mut redactor = Redactor::new(self.clone());
        let mut replaced = redactor.push(text);
        replaced.extend(redactor.finish());
        Some(replaced)
    }

    /// Replaces all in a text of ours.
    pub(crate) fn replace_text(&self, text: &str) -> String {
        let replaced = self.replace(text.as_bytes());
        replaced.map_or_else(|| text.to_owned(), |clean| String::from_utf8_lossy(&clean).into_owned())
    }

    /// Replaces all in headers.
    pub(crate) fn replace_headers(&self, headers: &mut HeaderMap) {
        for value in headers.values_mut() {
            if let Some(clean) = self.replace(value.as_bytes()) {
                *value = HeaderValue::from_bytes(&clean).unwrap_or_else(|_| HeaderValue::from_static(""));
            }
        }
    }
}

/// Replaces while bytes stream through. Holds back only what may be the beginning of something looked for.
pub struct Redactor {
    needles: Needles,
    held: Vec<u8>,
}

impl Redactor {
    /// Begins a stream.
    pub fn new(needles: Needles) -> Self {
        Self { needles, held: Vec::new() }
    }

    /// Takes a piece; returns what can go on.
    pub fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut text = std::mem::take(&mut self.held);
        text.extend_from_slice(piece);
        let mut out = Vec::with_capacity(text.len());
        let mut at = 0;
        loop {
            let rest = &text[at..];
            let open = self.open_end(rest);
            match self.first(rest) {
                // The same place may turn out to be the beginning of something longer: that must be known first.
                Some((start, ..)) if open.is_some_and(|open| open <= start) => {}
                Some((start, length, replacement)) => {
                    out.extend_from_slice(&rest[..start]);
                    out.extend_from_slice(replacement);
                    at += start + length;
                    continue;
                }
                None => {}
            }
            let keep = open.unwrap_or(rest.len());
            out.extend_from_slice(&rest[..keep]);
            self.held = rest[keep..].to_vec();
            return out;
        }
    }

    /// The stream is over; returns what was held back.
    pub fn finish(&mut self) -> Vec<u8> {
        let text = std::mem::take(&mut self.held);
        let mut out = Vec::with_capacity(text.len());
        let mut rest = text.as_slice();
        while let Some((start, length, replacement)) = self.first(rest) {
            out.extend_from_slice(&rest[..start]);
            out.extend_from_slice(replacement);
            rest = &rest[start + length..];
        }
        out.extend_from_slice(rest);
        out
    }

    /// The first, and there the longest, that is wholly in the text.
    fn first(&self, text: &[u8]) -> Option<(usize, usize, &[u8])> {
        let found = self.needles.0.iter().filter_map(|(needle, replacement)| {
            Some((memmem::find(text, needle)?, needle.len(), replacement.as_slice()))
        });
        found.min_by_key(|&(start, length, _)| (start, Reverse(length)))
    }

    /// Where the text's end begins that is the beginning of something looked for, but not all of it.
    fn open_end(&self, text: &[u8]) -> Option<usize> {
        let longest = self.needles.0.iter().map(|(needle, _)| needle.len()).max()?;
        let from = text.len().saturating_sub(longest - 1);
        (from..text.len()).find(|&start| {
            let end = &text[start..];
            self.needles.0.iter().any(|(needle, _)| needle.len() > end.len() && needle.starts_with(end))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needles(list: &[(&str, &str)]) -> Needles {
        let mut needles = Needles::default();
        for (needle, replacement) in list {
            needles.add(needle.as_bytes(), replacement.as_bytes());
        }
        needles
    }

    /// The same text in pieces of every size.
    fn in_pieces(needles: &Needles, text: &str, size: usize) -> String {
        let mut redactor = Redactor::new(needles.clone());
        let mut out = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            out.extend(redactor.push(piece));
        }
        out.extend(redactor.finish());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn values_are_found_across_every_border() {
        let needles = needles(&[("secret-value", "<one>"), ("secret-value-longer", "<two>"), ("aaaaaaab", "<three>")]);
        for (text, expected) in [
            ("x secret-value y", "x <one> y"),
            ("secret-value-longersecret-value", "<two><one>"),
            ("secret-value-longe", "<one>-longe"),
            ("secret-secret-value", "secret-<one>"),
            ("aaaaaaaaaaab", "aaaa<three>"),
            ("secret-valu", "secret-valu"),
            ("", ""),
        ] {
            for size in 1..=text.len().max(1) {
                assert_eq!(in_pieces(&needles, text, size), expected, "{text} in pieces of {size}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn pieces_make_no_difference(text in "[ab]{0,80}", size in 1usize..20) {
            let needles = needles(&[("abababab", "<1>"), ("ababababa", "<2>"), ("aaaaaaaab", "<3>"), ("bbbbbbbb", "<4>")]);
            let whole = in_pieces(&needles, &text, 1000);
            assert_eq!(in_pieces(&needles, &text, size), whole);
            assert!(["abababab", "aaaaaaaab", "bbbbbbbb"].iter().all(|needle| !whole.contains(needle)), "{whole}");
        }
    }

    #[test]
    fn only_what_may_be_a_beginning_is_held_back() {
        let mut redactor = Redactor::new(needles(&[("secret-value", "x")]));
        assert_eq!(redactor.push(b"data: hello\n\n"), b"data: hello\n\n");
        assert_eq!(redactor.push(b"hello sec"), b"hello ");
        assert_eq!(redactor.push(b"ond"), b"second");
    }

    #[test]
    fn short_values_are_left_alone() {
        assert!(needles(&[("short", "x")]).is_empty());
        assert_eq!(needles(&[("long-enough", "x")]).replace(b"nothing"), None);
    }
}
