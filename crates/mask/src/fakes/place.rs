//! Streets, cities, companies.

use super::Maker;
use crate::prf::Draw;
use crate::shape;

impl Maker {
    /// A street, with a number where the value has one.
    pub(super) fn street(&mut self, value: &str, out: &mut String) -> Option<()> {
        let mut words = value.split_whitespace();
        let starts_with_digit = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
        let before = words.next().filter(starts_with_digit);
        let behind = words.next_back().filter(starts_with_digit);
        if !value.chars().any(char::is_alphabetic) {
            return None;
        }
        if let Some(number) = before {
            shape::permute(&mut self.all, &self.prf, number, out)?;
            out.push(' ');
        }
        let mut draw = self.draw(value);
        self.street_name(&mut draw, out);
        if let Some(number) = behind.filter(|_| before.is_none()) {
            out.push(' ');
            shape::permute(&mut self.all, &self.prf, number, out)?;
        }
        self.unique_suffix(&mut draw, ' ', out);
        Some(())
    }

    fn street_name(&self, draw: &mut Draw, out: &mut String) {
        let suffix = draw.pick(self.words.street_suffix).unwrap_or_default();
        let joined = suffix.starts_with(char::is_lowercase);
        let mut form = self.words.street;
        let (mut name, mut written) = (None, false);
        while !form.is_empty() {
            if let Some(rest) = form.strip_prefix("{StreetName}") {
                match name {
                    None => {
                        let start = out.len();
                        self.words.last.invent(draw, out);
                        name = Some(start..out.len());
                    }
                    Some(ref again) => out.extend_from_within(again.clone()),
                }
                (form, written) = (rest, true);
            } else if let Some(rest) = form.strip_prefix("{StreetSuffix}") {
                out.push_str(suffix);
                (form, written) = (rest, true);
            } else if joined && written && form.starts_with(" {") {
                form = &form[1..];
                written = false;
            } else {
                let mut rest = form.chars();
                out.extend(rest.next());
                (form, written) = (rest.as_str(), false);
            }
        }
    }

    pub(super) fn city(&mut self, value: &str, out: &mut String) -> Option<()> {
        if !value.chars().any(char::is_alphabetic) {
            return None;
        }
        let mut draw = self.draw(value);
        self.city_name(&mut draw, out);
        self.unique_suffix(&mut draw, ' ', out);
        Some(())
    }

    fn city_name(&self, draw: &mut Draw, out: &mut String) {
        self.words.last.invent(draw, out);
        let suffix = draw.pick(self.words.city_suffix).unwrap_or_default();
        if suffix.contains(' ') || suffix.starts_with(char::is_uppercase) {
            out.push(' ');
        }
        out.push_str(suffix);
    }

    pub(super) fn company(&mut self, value: &str, out: &mut String) -> Option<()> {
        let mut draw = self.draw(value);
        self.words.last.invent(&mut draw, out);
        out.push(' ');
        out.push_str(draw.pick(self.words.company_suffix).unwrap_or_default());
        self.unique_suffix(&mut draw, ' ', out);
        Some(())
    }

    /// Parts between commas or on lines: first the street, then codes and cities.
    pub(super) fn address(&mut self, value: &str, out: &mut String) -> Option<()> {
        let (mut street, mut rest) = (true, value);
        while !rest.is_empty() {
            let end = rest.find([',', '\n']).unwrap_or(rest.len());
            let (part, after) = rest.split_at(end);
            let lead = part.len() - part.trim_start().len();
            out.push_str(&part[..lead]);
            let part = part.trim();
            if street && part.chars().any(char::is_alphabetic) {
                let unique = std::mem::take(&mut self.rule.unique);
                let made = self.street(part, out);
                self.rule.unique = unique;
                made?;
                street = false;
            } else {
                self.locality(part, out);
            }
            let mut rest_of = after.chars();
            out.extend(rest_of.next());
            rest = rest_of.as_str();
        }
        if street {
            return None;
        }
        if self.rule.unique {
            let mut draw = self.draw(value);
            self.unique_suffix(&mut draw, ' ', out);
        }
        Some(())
    }

    /// Words with digits keep their shape, as do abbreviations; the others become one city.
    fn locality(&mut self, part: &str, out: &mut String) {
        let (mut written, mut city) = (false, false);
        for word in part.split_whitespace() {
            let short = word.len() <= 3 && word.bytes().all(|byte| byte.is_ascii_uppercase());
            let code = short || word.bytes().any(|byte| byte.is_ascii_digit());
            if !code && city {
                continue;
            }
            if std::mem::replace(&mut written, true) {
                out.push(' ');
            }
            if code && shape::permute(&mut self.all, &self.prf, word, out).is_some() {
                continue;
            }
            city = true;
            let mut draw = self.draw(part);
            self.city_name(&mut draw, out);
        }
    }
}
