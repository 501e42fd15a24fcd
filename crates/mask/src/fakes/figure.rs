//! Numbers: of telephones, and such as one reckons with.

use std::fmt::Write;

use super::Maker;
use crate::shape;

/// Country codes of two digits; besides 1 and 7 all others have three.
const TWO_DIGITS: &[&str] = &[
    "20", "27", "30", "31", "32", "33", "34", "36", "39", "40", "41", "43", "44", "45", "46", "47", "48", "49", "51",
    "52", "53", "54", "55", "56", "57", "58", "60", "61", "62", "63", "64", "65", "66", "81", "82", "84", "86", "90",
    "91", "92", "93", "94", "95", "98",
];

impl Maker {
    /// Country code and format stay; however it is written, the same number gets the same digits.
    pub(super) fn phone(&mut self, value: &str, out: &mut String) -> Option<()> {
        let (mut buffer, mut count) = ([0; 17], 0);
        for byte in value.bytes() {
            match byte {
                b'0'..=b'9' => {
                    *buffer.get_mut(count)? = byte;
                    count += 1;
                }
                b'+' | b'(' | b')' | b'-' | b'.' | b'/' | b' ' => {}
                _ => return None,
            }
        }
        let digits = std::str::from_utf8(&buffer[..count]).ok().filter(|digits| digits.len() >= 6)?;
        let kept = if value.trim_start().starts_with('+') {
            country(digits)
        } else if let Some(rest) = digits.strip_prefix("00") {
            2 + country(rest)
        } else {
            0
        };
        let mut fake = String::with_capacity(24);
        fake.push_str(digits.get(..kept)?);
        shape::permute(&mut self.all, &self.prf, digits.get(kept..).filter(|rest| rest.len() >= 4)?, &mut fake)?;
        shape::refill(value, &fake, out);
        Some(())
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
fn country(digits: &str) -> usize {
    match digits.as_bytes() {
        [b'1' | b'7', ..] => 1,
        _ if digits.get(..2).is_some_and(|two| TWO_DIGITS.contains(&two)) => 2,
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
