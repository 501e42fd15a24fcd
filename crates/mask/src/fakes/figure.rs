//! Numbers: of telephones, and such as one reckons with.

use std::fmt::Write;

use super::Maker;
use crate::shape;

/// Country codes of two digits; besides 1 and 7 all others have three.
const TWO_DIGITS: &[[u8; 2]] = &[
    *b"20", *b"27", *b"30", *b"31", *b"32", *b"33", *b"34", *b"36", *b"39", *b"40", *b"41", *b"43", *b"44", *b"45",
    *b"46", *b"47", *b"48", *b"49", *b"51", *b"52", *b"53", *b"54", *b"55", *b"56", *b"57", *b"58", *b"60", *b"61",
    *b"62", *b"63", *b"64", *b"65", *b"66", *b"81", *b"82", *b"84", *b"86", *b"90", *b"91", *b"92", *b"93", *b"94",
    *b"95", *b"98",
];

impl Maker {
    /// Country code and format stay; however it is written, the same number gets the same digits.
    pub(super) fn phone(&mut self, value: &str, out: &mut String) -> Option<()> {
        let number = PhoneNumber::read(value);
        let variable = std::str::from_utf8(number.variable()).ok().filter(|digits| !digits.is_empty())?;
        number.write(value, |fake| shape::permute(&mut self.all, &self.prf, variable, fake), out)
    }

    /// Near the value, with as many decimals, or other digits.
    pub(super) fn number(&mut self, value: &str, out: &mut String) -> Option<()> {
        let number: f64 = value.parse().ok().filter(|number: &f64| number.is_finite())?;
        let scientific = value.contains(['e', 'E']);
        let Some(jitter) = self.rule.jitter.or(scientific.then_some(0.5)) else {
            let plain = value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.' || byte == b'-');
            return if plain { shape::permute(&mut self.all, &self.prf, value, out) } else { None };
        };
        let mut draw = self.draw(value);
        let changed = number * (1.0 + jitter * (2.0 * draw.fraction() - 1.0));
        if !scientific && round_plainly(value, number, changed, out).is_some() {
            return Some(());
        }
        if scientific {
            out.push_str(&format!("{changed:e}"));
            return Some(());
        }
        let decimals = value.split_once('.').map_or(0, |(_, decimals)| decimals.len().min(17));
        let start = out.len();
        let _ = write!(out, "{changed:.decimals$}");
        if out[start..].parse() == Ok(number) {
            out.truncate(start);
            let unit = 0.1f64.powi(decimals as i32);
            out.push_str(&format!("{:.decimals$}", if draw.bits() & 1 == 0 { number + unit } else { number - unit }));
        }
        Some(())
    }
}

/// The digits of a telephone number, and how many of them say where it is. None if it is no such number.
pub(super) struct PhoneNumber {
    digits: [u8; 17],
    count: usize,
    kept: usize,
}

impl PhoneNumber {
    const NONE: Self = Self { digits: [0; 17], count: 0, kept: 0 };

    /// Of a value that has nothing but digits and what is written between them.
    pub fn read(value: &str) -> Self {
        let (mut digits, mut count) = ([0; 17], 0);
        for byte in value.bytes() {
            match (byte, digits.get_mut(count)) {
                (b'0'..=b'9', Some(digit)) => {
                    *digit = byte;
                    count += 1;
                }
                (b'+' | b'(' | b')' | b'-' | b'.' | b'/' | b' ', _) => {}
                _ => return Self::NONE,
            }
        }
        let kept = match &digits[..count] {
            all if value.trim_start().starts_with('+') => country(all),
            [b'0', b'0', rest @ ..] => 2 + country(rest),
            _ => 0,
        };
        if count < 6 || count - kept < 4 {
            return Self::NONE; // not enough of them would change
        }
        Self { digits, count, kept }
    }

    /// The digits that change.
    pub fn variable(&self) -> &[u8] {
        &self.digits[self.kept..self.count]
    }

    /// Appends `value` with those replaced that `write` writes.
    pub fn write(&self, value: &str, write: impl FnOnce(&mut String) -> Option<()>, out: &mut String) -> Option<()> {
        // Written at the end first, from where they go to their places.
        let start = out.len();
        write(out)?;
        let mut digits = self.digits;
        let new = out.as_bytes().get(start..)?;
        digits.get_mut(self.kept..self.count).filter(|old| old.len() == new.len())?.copy_from_slice(new);
        out.truncate(start);
        shape::refill(value, std::str::from_utf8(digits.get(..self.count)?).ok()?, out);
        Some(())
    }
}

/// Writes `changed` with as many decimals as `value` has, for the usual case: a few decimals, not too large, and neither
/// near the middle of two such numbers nor `number` itself. The digits are those that the standard library writes.
fn round_plainly(value: &str, number: f64, changed: f64, out: &mut String) -> Option<()> {
    let bytes = value.as_bytes();
    let decimals = memchr::memchr(b'.', bytes).map_or(0, |at| bytes.len() - at - 1);
    let unit = [1u32, 10, 100, 1000, 10_000].get(decimals).copied()?;
    let scaled = changed.abs() * f64::from(unit);
    let rounded = scaled.round();
    // So far apart, what a multiplication rounds makes no difference.
    if !scaled.is_finite()
        || scaled >= 1e12
        || ((scaled - scaled.floor()) - 0.5).abs() < 1e-3
        || rounded / f64::from(unit) == number.abs()
    {
        return None;
    }
    if changed.is_sign_negative() {
        out.push('-');
    }
    let (mut left, mut text, mut start) = (rounded as u64, [b'0'; 20], 20);
    while left > 0 || 20 - start <= decimals {
        start -= 1;
        text[start] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    let (whole, rest) = std::str::from_utf8(&text[start..]).ok()?.split_at_checked(20 - start - decimals)?;
    out.push_str(whole);
    if decimals > 0 {
        out.push('.');
        out.push_str(rest);
    }
    Some(())
}

/// How many digits the country code has.
fn country(digits: &[u8]) -> usize {
    match digits {
        [b'1' | b'7', ..] => 1,
        [first, second, ..] if TWO_DIGITS.contains(&[*first, *second]) => 2,
        _ => 3.min(digits.len()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_rounded_quickly_is_rounded_well(whole in 0u64..10_000_000, part in 0u32..10_000, decimals in 0usize..6, changed: f64, share in -1.0..1.0f64) {
            let number = whole as f64 + f64::from(part) / 10_000.0;
            let value = format!("{number:.decimals$}");
            for changed in [changed, number * (1.0 + share), number + share] {
                let mut out = String::new();
                if round_plainly(&value, number, changed, &mut out).is_some() {
                    prop_assert_eq!(&out, &format!("{changed:.decimals$}"));
                }
            }
        }
    }
}
