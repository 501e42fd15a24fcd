//! Sizes, durations and processor shares, as people write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};

/// A value that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not a {what}: {hint}")]
pub struct UnitError {
    given: String,
    what: &'static str,
    hint: &'static str,
}

/// A number of bytes: `512MiB`, `2G`, `1048576`.
///
/// Suffixes are powers of 1024 whether written `K`, `KB` or `KiB`: a limit meant generously is better than one missed
/// by 2 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "TextOrNumber", into = "String")]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// So many MiB.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// So many GiB.
    pub const fn gib(count: u64) -> Self {
        Self(count << 30)
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let error = || UnitError {
            given: printable(text),
            what: "size",
            hint: "write a positive number of bytes with an optional suffix, like 512MiB or 2GiB",
        };
        let (number, suffix) = split_suffix(text);
        let shift = match suffix.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(error()),
        };
        scaled(number, (1u64 << shift) as f64).map(Self).ok_or_else(error)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 >= 1 << shift && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// A length of time: `90s`, `30m`, `1h30m`, `250ms`; a bare number is seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "TextOrNumber", into = "String")]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let error = || UnitError {
            given: printable(text),
            what: "duration",
            hint: "write a positive time like 90s, 30m, 1h30m or 250ms",
        };
        let mut rest = text.trim();
        let mut millis = 0u64;
        if rest.is_empty() {
            return Err(error());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            let (number, tail) = rest.split_at(digits);
            let letters = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(letters);
            let scale = match unit.trim() {
                "ms" => 1.0,
                "" | "s" => 1e3,
                "m" | "min" => 60e3,
                "h" => 3_600e3,
                "d" => 86_400e3,
                _ => return Err(error()),
            };
            millis = scaled(number, scale).and_then(|more| millis.checked_add(more)).ok_or_else(error)?;
            rest = tail;
        }
        Ok(Self(Duration::from_millis(millis)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        if !millis.is_multiple_of(1000) {
            return write!(f, "{millis}ms");
        }
        let seconds = self.0.as_secs();
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        if seconds > 0 || (hours == 0 && minutes == 0) {
            write!(f, "{seconds}s")?;
        }
        Ok(())
    }
}

/// A share of processors in thousandths: `1`, `0.5`, `2.25`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "TextOrNumber", into = "f64")]
pub struct Cpus {
    /// Thousandths of one processor.
    pub millis: u32,
}

impl FromStr for Cpus {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let error = || UnitError {
            given: printable(text),
            what: "number of processors",
            hint: "write a number from 0.01 to 1024, like 1 or 0.5",
        };
        match scaled(text.trim(), 1000.0) {
            Some(millis @ 10..=1_024_000) => Ok(Self { millis: millis as u32 }),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(*self))
    }
}

impl From<Cpus> for f64 {
    fn from(cpus: Cpus) -> Self {
        f64::from(cpus.millis) / 1000.0
    }
}

impl From<ByteSize> for String {
    fn from(size: ByteSize) -> Self {
        size.to_string()
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        span.to_string()
    }
}

/// JSON and TOML may give a unit as text or as a bare number.
enum TextOrNumber {
    Text(String),
    Whole(u64),
    Fraction(f64),
}

impl<'de> Deserialize<'de> for TextOrNumber {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader)
    }
}

/// Reads one, and says what is expected in words of those who write it.
struct Reader;

impl Visitor<'_> for Reader {
    type Value = TextOrNumber;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or text like \"512MiB\" or \"30s\"")
    }

    fn visit_str<E>(self, text: &str) -> Result<TextOrNumber, E> {
        Ok(TextOrNumber::Text(text.to_owned()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<TextOrNumber, E> {
        Ok(TextOrNumber::Whole(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<TextOrNumber, E> {
        Ok(u64::try_from(number).map_or(TextOrNumber::Text(number.to_string()), TextOrNumber::Whole))
    }

    fn visit_f64<E>(self, number: f64) -> Result<TextOrNumber, E> {
        Ok(TextOrNumber::Fraction(number))
    }
}

macro_rules! from_text_or_number {
    ($($unit:ty),*) => {$(
        impl TryFrom<TextOrNumber> for $unit {
            type Error = UnitError;

            fn try_from(value: TextOrNumber) -> Result<Self, UnitError> {
                match value {
                    TextOrNumber::Text(text) => text.parse(),
                    TextOrNumber::Whole(number) => number.to_string().parse(),
                    TextOrNumber::Fraction(number) => number.to_string().parse(),
                }
            }
        }
    )*};
}
from_text_or_number!(Span, Cpus);

impl TryFrom<TextOrNumber> for ByteSize {
    type Error = UnitError;

    fn try_from(value: TextOrNumber) -> Result<Self, UnitError> {
        match value {
            TextOrNumber::Text(text) => text.parse(),
            TextOrNumber::Whole(number) => number.to_string().parse(),
            // Somebody meant gigabytes: there is no half of a byte.
            TextOrNumber::Fraction(number) if number.fract() != 0.0 => Err(UnitError {
                given: number.to_string(),
                what: "size",
                hint: "a number without a unit is bytes; write text with a suffix, like \"1.5GiB\"",
            }),
            TextOrNumber::Fraction(number) => number.to_string().parse(),
        }
    }
}

fn split_suffix(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// A positive decimal number times `scale`, rounded; `None` if it is no such number, zero, or beyond 2^62.
fn scaled(number: &str, scale: f64) -> Option<u64> {
    if !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return None;
    }
    if let Ok(whole) = number.parse::<u64>()
        && scale.fract() == 0.0
    {
        return whole.checked_mul(scale as u64).filter(|n| (1..=1 << 62).contains(n));
    }
    let value = (number.parse::<f64>().ok()? * scale).round();
    (1.0..=(1u64 << 62) as f64).contains(&value).then_some(value as u64)
}

/// What a person gave, made safe to print back.
fn printable(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [("512MiB", 512 << 20), ("2g", 2 << 30), ("1.5K", 1536), ("77", 77), ("1 GB", 1 << 30)] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "0", "-1", "1X", "MiB", "1e9", "inf", "99999999T", "1.2.3", "\u{1b}[2J"] {
            let error = text.parse::<ByteSize>().unwrap_err().to_string();
            assert!(error.contains("like 512MiB") && !error.contains('\u{1b}'), "{text}: {error}");
        }
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in [("60", 60_000), ("1h30m", 5_400_000), ("250ms", 250), ("0.5s", 500), ("2d", 172_800_000)]
        {
            assert_eq!(text.parse(), Ok(Span(Duration::from_millis(millis))), "{text}");
        }
        for text in ["", "0", "5 parsecs", "-3s", "m", "1h-2m"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_printed_reads_back() {
        for text in ["512MiB", "3", "1025KiB", "7TiB"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
        for text in ["1h30m", "45s", "250ms", "2m", "1h1s"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        assert_eq!("0.5".parse::<Cpus>().unwrap().to_string(), "0.5");
    }

    #[test]
    fn json_takes_numbers_and_text() {
        assert_eq!(serde_json::from_str::<ByteSize>("\"1GiB\"").unwrap(), ByteSize::gib(1));
        assert_eq!(serde_json::from_str::<ByteSize>("4096").unwrap(), ByteSize(4096));
        assert_eq!(serde_json::from_str::<Cpus>("1.5").unwrap(), Cpus { millis: 1500 });
        assert!(serde_json::from_str::<Span>("-1").is_err());
        assert_eq!(serde_json::from_str::<ByteSize>("1e9").unwrap(), ByteSize(1_000_000_000));
        assert_eq!(serde_json::from_str::<Span>("1.5").unwrap(), Span(Duration::from_millis(1500)));
        let fraction = serde_json::from_str::<ByteSize>("1.5").unwrap_err().to_string();
        assert!(fraction.contains("like \"1.5GiB\""), "{fraction}");
        let other = serde_json::from_str::<ByteSize>("true").unwrap_err().to_string();
        assert!(other.contains("expected a number, or text like"), "{other}");
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in ".*") {
            let _ = text.parse::<ByteSize>();
            let _ = text.parse::<Span>();
            let _ = text.parse::<Cpus>();
        }
    }
}
