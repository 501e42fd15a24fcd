//! Names of people, users and mailboxes.

use super::{Maker, plain_from};
use crate::words::{Words, lowered};

/// What is no part of a name and tells nothing.
const TITLES: &[&str] =
    &["dr", "mr", "mrs", "ms", "miss", "prof", "herr", "frau", "mme", "sr", "sra", "jr", "ii", "iii"];

impl Maker {
    /// `First Last`, `Last, First`, more names in between; titles stay.
    pub(super) fn name(&mut self, value: &str, out: &mut String) -> Option<()> {
        if value.bytes().any(|byte| byte.is_ascii_digit() || byte == b'@') {
            return None;
        }
        let count = value.split_whitespace().count();
        let turned = value.contains(',');
        let (mut replaced, start) = (false, out.len());
        for (at, part) in value.split_whitespace().enumerate() {
            if out.len() > start {
                out.push(' ');
            }
            let (word, comma) = part.strip_suffix(',').map_or((part, ""), |word| (word, ","));
            if TITLES.contains(&word.trim_end_matches('.').to_lowercase().as_str()) {
                out.push_str(part);
                continue;
            }
            let last = if turned { !comma.is_empty() } else { at + 1 == count && count > 1 };
            self.word(word, !last, out)?;
            out.push_str(comma);
            replaced = true;
        }
        if self.rule.unique {
            let mut draw = self.draw(value);
            self.unique_suffix(&mut draw, ' ', out);
        }
        replaced.then_some(())
    }

    /// A first or a last name, of one word or several.
    pub(super) fn one_name(&mut self, value: &str, first: bool, out: &mut String) -> Option<()> {
        if value.trim().is_empty() || value.bytes().any(|byte| byte.is_ascii_digit() || byte == b'@') {
            return None;
        }
        for (at, word) in value.split_whitespace().enumerate() {
            if at > 0 {
                out.push(' ');
            }
            self.word(word, first, out)?;
        }
        if self.rule.unique {
            let mut draw = self.draw(value);
            self.unique_suffix(&mut draw, ' ', out);
        }
        Some(())
    }

    /// One word of a name: drawn without regard to its case, written in its case.
    fn word(&mut self, word: &str, first: bool, out: &mut String) -> Option<()> {
        lowered(word, |lower| self.lower_word(word, lower, first, out))
    }

    fn lower_word(&mut self, word: &str, lower: &str, first: bool, out: &mut String) -> Option<()> {
        let prf = if first { &self.first } else { &self.last };
        let names = if first { &self.words.first } else { &self.words.last };
        let mut fake = std::mem::take(&mut self.scratch);
        let mut found = None;
        for attempt in self.attempt..self.attempt + 4 {
            fake.clear();
            let foreseen = self.foreseen.name.take().filter(|_| attempt == 0);
            let mut draw = foreseen.unwrap_or_else(|| prf.draw_again(lower.as_bytes(), attempt));
            names.invent(&mut draw, &mut fake);
            if lowered(&fake, |fake| fake == lower) {
                continue;
            }
            let letters = word.chars().filter(|c| c.is_alphabetic()).count();
            if letters == 1 && word.len() <= 4 {
                // An initial stays an initial.
                fake.truncate(fake.chars().next().map_or(0, char::len_utf8));
                fake.push_str(if word.ends_with('.') { "." } else { "" });
                if fake == word {
                    continue;
                }
            }
            let cased = |test: fn(char) -> bool| letters > 1 && word.chars().all(|c| !c.is_alphabetic() || test(c));
            if cased(char::is_uppercase) {
                out.push_str(&fake.to_uppercase());
            } else if cased(char::is_lowercase) {
                out.push_str(&fake.to_lowercase());
            } else {
                out.push_str(&fake);
            }
            found = Some(());
            break;
        }
        self.scratch = fake;
        found
    }

    pub(super) fn email(&mut self, value: &str, out: &mut String) -> Option<()> {
        let (local, host) = value.rsplit_once('@')?;
        if local.is_empty() || host.is_empty() || has_space(value) {
            return None;
        }
        self.handle(value, '.', out);
        out.push('@');
        self.host(host, out);
        Some(())
    }

    pub(super) fn username(&mut self, value: &str, out: &mut String) -> Option<()> {
        if value.contains('@') {
            return self.email(value, out);
        }
        self.handle(value, '_', out);
        Some(())
    }

    /// `first.last42`, in letters that every mail server takes.
    fn handle(&mut self, value: &str, between: char, out: &mut String) {
        let mut draw = self.draw(value);
        let (start, words) = (out.len(), Words::default_language());
        words.first.invent(&mut draw, out);
        out.push(between);
        words.last.invent(&mut draw, out);
        plain_from(start, out);
        if self.rule.unique {
            self.unique_suffix(&mut draw, between, out);
        } else {
            out.push_str(&draw.below(10_000).to_string());
        }
    }
}

/// Whether there is white space in it.
pub(super) fn has_space(value: &str) -> bool {
    // All bytes at once rather than one after the other: hardly ever is there any.
    let (mut spaces, mut others) = (false, false);
    for byte in value.bytes() {
        spaces |= matches!(byte, b' ' | b'\t'..=b'\r');
        others |= byte > 127;
    }
    if others { value.contains(char::is_whitespace) } else { spaces }
}
