//! Free text: what is known from the row and what is detected is replaced, the rest stays.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::Key;
use crate::check::{Check, digest};
use crate::detect::{self, Found};
use crate::fakes::Maker;
use crate::prf::Prf;
use crate::rule::{Kind, Rule};

/// A value of another column of the row, and its fake.
pub struct Known<'a> {
    /// What its rule is.
    pub kind: Kind,
    /// As it was.
    pub real: &'a str,
    /// As it is now.
    pub fake: &'a str,
}

/// Replaces identifiers in text by what the rules for such columns would give.
#[derive(Clone)]
pub struct Scrubber {
    key: Key,
    locale: Option<String>,
    makers: HashMap<Kind, Maker>,
    secrets: Prf,
}

impl Scrubber {
    /// For a rule of kind [`Kind::Text`].
    pub fn new(rule: &Rule, key: &Key) -> Self {
        Self { key: key.clone(), locale: rule.locale.clone(), makers: HashMap::new(), secrets: Prf::new(key, "secret") }
    }

    /// Appends the scrubbed `text` and counts what was found.
    pub fn scrub(
        &mut self,
        text: &str,
        row: &[Known<'_>],
        check: &mut Check,
        found: &mut BTreeMap<&'static str, u64>,
        out: &mut String,
    ) {
        // Detected things first: they are whole, where a value of the row may be a part of one.
        let mut edits: Vec<(Range<usize>, String)> = Vec::new();
        for finding in detect::scan(text) {
            let real = &text[finding.range.clone()];
            let fake = match row.iter().find(|known| known.real.eq_ignore_ascii_case(real)) {
                Some(known) => known.fake.to_owned(),
                None => self.fake(finding.what, real, check),
            };
            *found.entry(finding.what.name()).or_default() += 1;
            edits.push((finding.range, fake));
        }
        for (real, fake) in parts(row) {
            for range in occurrences(text, real) {
                if edits.iter().all(|(other, _)| other.end <= range.start || range.end <= other.start) {
                    *found.entry("row").or_default() += 1;
                    edits.push((range, fake.to_owned()));
                }
            }
        }
        edits.sort_by_key(|(range, _)| range.start);
        let mut at = 0;
        for (range, fake) in edits {
            out.push_str(&text[at..range.start]);
            out.push_str(&fake);
            at = range.end;
        }
        out.push_str(&text[at..]);
    }

    fn fake(&mut self, what: Found, real: &str, check: &mut Check) -> String {
        let mut fake = String::new();
        let Some(kind) = what.kind() else {
            fake.push_str(what.name());
            fake.push('-');
            self.secrets.draw(real.as_bytes()).token(8, &mut fake);
            return fake;
        };
        let (key, locale) = (&self.key, &self.locale);
        let maker = self
            .makers
            .entry(kind)
            .or_insert_with(|| Maker::new(&Rule { locale: locale.clone(), ..Rule::new(kind) }, key));
        maker.make(real, None, &mut fake);
        check.saw(kind, digest(real), &fake);
        fake
    }
}

/// What to look for: values long enough to be no accident, names also word by word; the longest first.
fn parts<'a>(row: &[Known<'a>]) -> Vec<(&'a str, &'a str)> {
    let mut parts = Vec::new();
    for known in row {
        let name = matches!(known.kind, Kind::Name | Kind::FirstName | Kind::LastName);
        if known.real.chars().count() >= if name { 2 } else { 4 } {
            parts.push((known.real.trim(), known.fake));
        }
        if name {
            let words = known.real.split([' ', ',']).filter(|word| !word.is_empty());
            let fakes = known.fake.split([' ', ',']).filter(|word| !word.is_empty());
            parts.extend(words.zip(fakes).filter(|(word, _)| word.chars().count() > 2));
        }
    }
    parts.sort_by_key(|(real, _)| std::cmp::Reverse(real.len()));
    parts.retain(|(real, _)| !real.is_empty());
    parts
}

/// Where `wanted` stands in `text` as a whole word, without regard to the case of ASCII letters.
fn occurrences(text: &str, wanted: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (haystack, needle) = (text.as_bytes(), wanted.as_bytes());
    let mut at = 0;
    while at + needle.len() <= haystack.len() {
        let end = at + needle.len();
        let boundary = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
        if haystack[at..end].eq_ignore_ascii_case(needle)
            && text.is_char_boundary(at)
            && text.is_char_boundary(end)
            && boundary(text[..at].chars().next_back())
            && boundary(text[end..].chars().next())
        {
            ranges.push(at..end);
            at = end;
        } else {
            at += 1;
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_row_knows_and_what_is_detected_goes() {
        let mut scrubber = Scrubber::new(&Rule::new(Kind::Text), &Key::from_bytes([1; 32]));
        let row = [Known { kind: Kind::Name, real: "Zq Wolff", fake: "Ada Beta" }];
        let (mut found, mut out) = (BTreeMap::new(), String::new());
        let text = "ZQ WOLFF (wolff@acme.io) asked; Wolffs did not. token=abcdef123";
        scrubber.scrub(text, &row, &mut Check::default(), &mut found, &mut out);
        assert!(out.starts_with("Ada Beta ("), "{out}");
        assert!(out.contains("Wolffs did not"), "a longer word is another word: {out}");
        assert!(!out.contains("acme") && !out.contains("abcdef123") && out.contains(".example"), "{out}");
        assert_eq!((found["row"], found["secret"]), (1, 1));
    }
}
