//! What is done with one column.

use serde::{Deserialize, Serialize};

use crate::MaskError;

/// The kinds of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An address at a host below `.example`; one host stays one host.
    Email,
    /// Same format and country code, other digits.
    Phone,
    /// Same length and network, a valid check digit.
    Card,
    /// Same country, valid check digits.
    Iban,
    /// First and last name, the same as the rules for each would give.
    Name,
    /// A first name.
    FirstName,
    /// A last name.
    LastName,
    /// Street and number, postcode and city if there were any.
    Address,
    /// A street with a number if there was one.
    Street,
    /// A city.
    City,
    /// Same format, other digits and letters.
    Postcode,
    /// A company.
    Company,
    /// Shifted by days.
    Date,
    /// Near the value, or another of as many digits.
    Number,
    /// Same format, other digits and letters.
    Id,
    /// Another UUID of the same version.
    Uuid,
    /// An address of a range for tests.
    Ip,
    /// A URL below `.example`.
    Url,
    /// A user's name.
    Username,
    /// Free text with what was detected in it replaced.
    Text,
    /// A keyed digest.
    Hash,
    /// Always the same.
    Constant,
    /// Nothing.
    Null,
    /// As it is: declared safe.
    Keep,
    /// The column goes.
    Drop,
}

impl Kind {
    /// Its name in rules and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Email => "email",
            Self::Phone => "phone",
            Self::Card => "card",
            Self::Iban => "iban",
            Self::Name => "name",
            Self::FirstName => "first_name",
            Self::LastName => "last_name",
            Self::Address => "address",
            Self::Street => "street",
            Self::City => "city",
            Self::Postcode => "postcode",
            Self::Company => "company",
            Self::Date => "date",
            Self::Number => "number",
            Self::Id => "id",
            Self::Uuid => "uuid",
            Self::Ip => "ip",
            Self::Url => "url",
            Self::Username => "username",
            Self::Text => "text",
            Self::Hash => "hash",
            Self::Constant => "constant",
            Self::Null => "null",
            Self::Keep => "keep",
            Self::Drop => "drop",
        }
    }

    /// Whether values are replaced by fakes, one for each.
    pub fn fakes(self) -> bool {
        !matches!(self, Self::Constant | Self::Null | Self::Keep | Self::Drop)
    }

    /// Whether a whole object or list of a JSON document can have this rule.
    pub fn covers_subtrees(self) -> bool {
        !self.fakes()
    }

    /// Whether fakes come from so few values that they meet real ones by chance: that tells nobody anything.
    pub fn meets_by_chance(self) -> bool {
        matches!(self, Self::Date | Self::Number | Self::Postcode | Self::Id | Self::Phone)
    }
}

/// A rule with its options, as written in a rules file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What is done.
    #[serde(rename = "rule")]
    pub kind: Kind,
    /// Values of one domain have the same fakes, in whichever table they are. The kind's name unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Different values never have the same fake.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unique: bool,
    /// Whether nothing stays nothing: an empty field, NULL.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub keep_null: bool,
    /// The language of names and places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    /// `card`: the first six digits stay.
    #[serde(default, skip_serializing_if = "is_false")]
    pub keep_bin: bool,
    /// `date`: the greatest shift.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub days: Option<u32>,
    /// `date`: the column whose value says how far, so that the dates of one customer keep their distances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `date`: how to read 03/04/2020: `dmy` or `mdy`; or `unix`, `unix_ms` for numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<DateFormat>,
    /// `number`: the greatest change as a fraction of the value. Without it, all digits change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
    /// `hash`: how many hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<usize>,
    /// `constant`: what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Written as `same_as`: values are those of another column.
    #[serde(skip)]
    pub refers: bool,
    /// Rows from nothing, `id` and the like: `#` is a digit, `?` a capital letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Rows from nothing: one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
    /// Rows from nothing, `number`: from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Rows from nothing, `number`: to here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// Rows from nothing, `date`: from here, as YYYY-MM-DD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Rows from nothing, `date`: to here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Rows from nothing: how many of them have nothing here, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub null_rate: Option<f64>,
}

/// Forms of dates that cannot be told by looking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DateFormat {
    /// Day first.
    Dmy,
    /// Month first.
    Mdy,
    /// Seconds since 1970.
    Unix,
    /// Milliseconds since 1970.
    UnixMs,
}

impl Rule {
    /// A rule without options.
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            domain: None,
            unique: false,
            keep_null: true,
            locale: None,
            keep_bin: false,
            days: None,
            key: None,
            format: None,
            jitter: None,
            length: None,
            value: None,
            refers: false,
            pattern: None,
            values: Vec::new(),
            min: None,
            max: None,
            from: None,
            to: None,
            null_rate: None,
        }
    }

    /// Under which name values of this column are drawn.
    pub fn domain(&self) -> &str {
        self.domain.as_deref().unwrap_or_else(|| self.kind.name())
    }

    /// Refuses options that contradict each other.
    pub(crate) fn check(&self, place: &str) -> Result<(), MaskError> {
        let wrong = |why: &str| Err(MaskError::Rules(format!("{place}: {why}")));
        if self.unique {
            match self.kind {
                Kind::Date if self.key.is_some() => {
                    return wrong("dates that are shifted by a key cannot stay unique: leave out 'key' or 'unique'");
                }
                Kind::Number if self.jitter.is_some() => {
                    return wrong("numbers that are jittered cannot stay unique: leave out 'jitter' or 'unique'");
                }
                Kind::Text | Kind::Constant | Kind::Null => return wrong("this rule cannot keep values unique"),
                _ => {}
            }
        }
        if self.kind == Kind::Constant && self.value.is_none() {
            return wrong("a constant needs a 'value'");
        }
        if self.days == Some(0) || self.days.is_some_and(|days| days > 36_500) {
            return wrong("'days' must be 1 to 36500");
        }
        if self.jitter.is_some_and(|jitter| !(jitter > 0.0 && jitter <= 1.0)) {
            return wrong("'jitter' must be above 0 and at most 1");
        }
        if self.length.is_some_and(|length| !(8..=64).contains(&length)) {
            return wrong("'length' must be 8 to 64");
        }
        if self.unique && self.kind == Kind::Hash && self.length.is_some_and(|length| length < 26) {
            return wrong("a 'length' below 26 cannot keep values unique");
        }
        if self.null_rate.is_some_and(|rate| !(0.0..=1.0).contains(&rate)) {
            return wrong("'null_rate' must be 0 to 1");
        }
        Ok(())
    }
}

fn yes() -> bool {
    true
}

fn is_true(value: &bool) -> bool {
    *value
}

fn is_false(value: &bool) -> bool {
    !*value
}
