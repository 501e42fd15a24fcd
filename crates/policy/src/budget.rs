//! What a sandbox may use up: money, tokens, calls, commands, bytes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::ByteSize;

/// What a sandbox may use up. What is not given is not bounded.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    /// Money for LLM calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd: Option<Usd>,
    /// Tokens of LLM calls, in and out, cached ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    /// LLM calls in any 60 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Commands started in any 60 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec_per_minute: Option<u32>,
    /// Bytes sent and received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_bytes: Option<ByteSize>,
    /// Sandboxes with the same group spend from one pot: the caps above on money, tokens and calls bound all of them together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// What happens at a cap.
    pub at_cap: AtCap,
}

/// What happens to a sandbox at a cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AtCap {
    /// What goes beyond it is refused; everything else goes on.
    #[default]
    Deny,
    /// The sandbox is paused, too, until someone raises the cap and resumes it.
    Pause,
    /// The sandbox is ended, too.
    Kill,
}

/// An amount of money in millionths of a dollar: `2`, `2.50`, `$2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "TextOrNumber", into = "String")]
pub struct Usd {
    /// Millionths of a dollar.
    pub micros: u64,
}

/// A number of tokens: `500k`, `2M`, `12000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "TextOrNumber", into = "u64")]
pub struct Tokens(pub u64);

/// A budget that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// Not an amount of money.
    #[error("'{0}' is not an amount of dollars: write 2, 2.50 or $2, at least 0.000001 and at most 1000000")]
    Usd(String),
    /// Not a number of tokens.
    #[error("'{0}' is not a number of tokens: write 500k, 2M or 12000")]
    Tokens(String),
    /// Not something that can happen.
    #[error("'{0}' is not what can happen at a cap: write deny, pause or kill")]
    AtCap(String),
    /// A rate of zero.
    #[error("{0} is 0, which allows nothing: leave it out for no limit, or give at least 1")]
    Zero(&'static str),
    /// Not a usable group.
    #[error("'{0}' is not the name of a budget group: use 1 to 64 letters, digits, '-', '_' or '.'")]
    Group(String),
}

impl Budget {
    /// Whether it bounds nothing at all.
    pub fn is_nothing(&self) -> bool {
        !self.counts_calls() && self.exec_per_minute.is_none() && self.egress_bytes.is_none()
    }

    /// Whether LLM calls must be counted for it.
    pub fn counts_calls(&self) -> bool {
        self.usd.is_some() || self.tokens.is_some() || self.requests_per_minute.is_some() || self.group.is_some()
    }

    /// Refuses values that cannot be meant.
    pub fn check(&self) -> Result<(), BudgetError> {
        for (what, value) in
            [("requests_per_minute", self.requests_per_minute), ("exec_per_minute", self.exec_per_minute)]
        {
            if value == Some(0) {
                return Err(BudgetError::Zero(what));
            }
        }
        match &self.group {
            Some(group) if !is_group(group) => Err(BudgetError::Group(printable(group))),
            _ => Ok(()),
        }
    }
}

fn is_group(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

impl FromStr for AtCap {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, BudgetError> {
        match text {
            "deny" => Ok(Self::Deny),
            "pause" => Ok(Self::Pause),
            "kill" => Ok(Self::Kill),
            _ => Err(BudgetError::AtCap(printable(text))),
        }
    }
}

impl fmt::Display for AtCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deny => "deny",
            Self::Pause => "pause",
            Self::Kill => "kill",
        })
    }
}

impl Usd {
    /// So many millionths of a dollar.
    pub const fn from_micros(micros: u64) -> Self {
        Self { micros }
    }
}

impl FromStr for Usd {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, BudgetError> {
        let number = text.trim();
        let number = number.strip_prefix('$').unwrap_or(number);
        // In integers throughout: a cap is not to be off by a rounding.
        decimal(number, 6)
            .filter(|micros| (1..=1_000_000_000_000).contains(micros))
            .map(Self::from_micros)
            .ok_or_else(|| BudgetError::Usd(printable(text)))
    }
}

impl fmt::Display for Usd {
    /// Cents at least, more digits only where they say something.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:06}", self.micros % 1_000_000);
        let kept = digits.trim_end_matches('0').len().max(2);
        write!(f, "${}.{}", self.micros / 1_000_000, &digits[..kept])
    }
}

impl FromStr for Tokens {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, BudgetError> {
        let number = text.trim();
        let (number, places) = match number.char_indices().next_back() {
            Some((end, 'k' | 'K')) => (&number[..end], 3),
            Some((end, 'm' | 'M')) => (&number[..end], 6),
            Some((end, 'g' | 'G' | 'b' | 'B')) => (&number[..end], 9),
            _ => (number, 0),
        };
        let error = || BudgetError::Tokens(printable(text));
        decimal(number, places).filter(|count| (1..=1 << 53).contains(count)).map(Self).ok_or_else(error)
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            count if count.is_multiple_of(1_000_000) => write!(f, "{}M", count / 1_000_000),
            count if count.is_multiple_of(1000) => write!(f, "{}k", count / 1000),
            count => write!(f, "{count}"),
        }
    }
}

/// A decimal number times 10^places, exactly; `None` if it is none, has more places, or is too large.
fn decimal(text: &str, places: usize) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !digits(whole) || !digits(fraction) || fraction.len() > places {
        return None;
    }
    format!("{whole}{fraction:0<places$}").parse().ok()
}

/// JSON and TOML may give text or a bare number.
#[derive(Deserialize)]
#[serde(untagged)]
enum TextOrNumber {
    Text(String),
    Whole(u64),
    Fraction(f64),
}

impl TextOrNumber {
    fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Whole(number) => number.to_string(),
            Self::Fraction(number) => number.to_string(),
        }
    }
}

impl TryFrom<TextOrNumber> for Usd {
    type Error = BudgetError;

    fn try_from(value: TextOrNumber) -> Result<Self, BudgetError> {
        value.text().parse()
    }
}

impl TryFrom<TextOrNumber> for Tokens {
    type Error = BudgetError;

    fn try_from(value: TextOrNumber) -> Result<Self, BudgetError> {
        value.text().parse()
    }
}

impl From<Usd> for String {
    fn from(usd: Usd) -> Self {
        usd.to_string()
    }
}

impl From<Tokens> for u64 {
    fn from(tokens: Tokens) -> Self {
        tokens.0
    }
}

fn printable(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_read_exactly() {
        for (text, micros) in
            [("2", 2_000_000), ("$2", 2_000_000), ("2.50", 2_500_000), (".1", 100_000), ("0.000001", 1)]
        {
            assert_eq!(text.parse::<Usd>().unwrap().micros, micros, "{text}");
        }
        for text in ["", "$", ".", "0", "-1", "1e3", "2,50", "0.0000001", "9999999", "two", "inf"] {
            let error = text.parse::<Usd>().unwrap_err().to_string();
            assert!(error.contains("2.50"), "{text}: {error}");
        }
        for text in ["$2.00", "$0.05", "$1.2345", "$0.000001"] {
            assert_eq!(text.parse::<Usd>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn tokens_are_read_as_people_write_them() {
        for (text, count) in [("500k", 500_000), ("2M", 2_000_000), ("1.5m", 1_500_000), ("12000", 12_000)] {
            assert_eq!(text.parse::<Tokens>().unwrap().0, count, "{text}");
        }
        for text in ["", "k", "0", "1.5", "-2", "2X", "99999999999M"] {
            assert!(text.parse::<Tokens>().is_err(), "{text}");
        }
        assert_eq!(Tokens(500_000).to_string(), "500k");
    }

    #[test]
    fn a_budget_reads_back_and_says_whether_it_is_any() {
        let json = r#"{"usd":5.0,"tokens":2000000,"exec_per_minute":120,"egress_bytes":"500MiB","at_cap":"kill"}"#;
        let budget: Budget = serde_json::from_str(json).unwrap();
        assert_eq!((budget.usd, budget.tokens), (Some(Usd::from_micros(5_000_000)), Some(Tokens(2_000_000))));
        assert_eq!(serde_json::from_str::<Budget>(&serde_json::to_string(&budget).unwrap()).unwrap(), budget);
        assert!(!budget.is_nothing() && budget.check().is_ok());
        assert!(Budget::default().is_nothing());
        assert!(serde_json::from_str::<Budget>(r#"{"dollars":5}"#).is_err());
        assert!(Budget { exec_per_minute: Some(0), ..Budget::default() }.check().is_err());
        assert!(Budget { group: Some("a b".into()), ..Budget::default() }.check().is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in ".*") {
            let _ = text.parse::<Usd>();
            let _ = text.parse::<Tokens>();
        }
    }
}
