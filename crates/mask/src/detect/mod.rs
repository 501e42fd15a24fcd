//! Finds personal data and secrets in text.

mod personal;
mod secret;

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;
use serde::Serialize;

use crate::rule::Kind;

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// A private key in PEM form.
    PrivateKey,
    /// A JSON Web Token.
    Jwt,
    /// A URL with a password in it.
    UrlWithPassword,
    /// A key of a cloud.
    CloudKey,
    /// A token with the prefix of a known service.
    Token,
    /// An e-mail address.
    Email,
    /// A URL of a machine that is not public.
    InternalUrl,
    /// Another URL.
    Url,
    /// A bank account with valid check digits.
    Iban,
    /// A card with a valid check digit.
    Card,
    /// A number that a state gave a person.
    NationalId,
    /// An IP address.
    Ip,
    /// A telephone number.
    Phone,
    /// Street and number.
    Address,
    /// First and last name.
    Name,
    /// A date that is said to be of birth.
    BirthDate,
    /// The name of a machine that is not public.
    InternalHost,
    /// `password = …`, or something else that is assigned and looks random.
    Secret,
}

impl Found {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::PrivateKey => "private_key",
            Self::Jwt => "jwt",
            Self::UrlWithPassword => "url_with_password",
            Self::CloudKey => "cloud_key",
            Self::Token => "token",
            Self::Email => "email",
            Self::InternalUrl => "internal_url",
            Self::Url => "url",
            Self::Iban => "iban",
            Self::Card => "card",
            Self::NationalId => "national_id",
            Self::Ip => "ip",
            Self::Phone => "phone",
            Self::Address => "address",
            Self::Name => "name",
            Self::BirthDate => "birth_date",
            Self::InternalHost => "internal_host",
            Self::Secret => "secret",
        }
    }

    /// The rule that makes a fake of it; `None` for secrets, which have none.
    pub fn kind(self) -> Option<Kind> {
        match self {
            Self::Email => Some(Kind::Email),
            Self::InternalUrl | Self::Url | Self::UrlWithPassword => Some(Kind::Url),
            Self::Iban => Some(Kind::Iban),
            Self::Card => Some(Kind::Card),
            Self::NationalId => Some(Kind::Id),
            Self::Ip => Some(Kind::Ip),
            Self::Phone => Some(Kind::Phone),
            Self::Address => Some(Kind::Street),
            Self::Name => Some(Kind::Name),
            Self::BirthDate => Some(Kind::Date),
            Self::PrivateKey | Self::Jwt | Self::CloudKey | Self::Token | Self::InternalHost | Self::Secret => None,
        }
    }
}

/// Where something was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub what: Found,
    /// The bytes of the text that are it.
    pub range: Range<usize>,
}

/// What a text must have for a pattern to be worth a try: so many digits, and one of these.
type Needs = (usize, &'static [&'static str]);

/// What is found, what is needed, the pattern (the group `x` of it, or else the whole match), and a test of the match.
type Pattern = (Found, Needs, &'static str, fn(&str) -> bool);

/// One way to find something.
struct Detector {
    what: Found,
    needs: Needs,
    pattern: Regex,
    test: fn(&str) -> bool,
}

/// Those whose match is surest come first: what they found, others leave alone.
static DETECTORS: LazyLock<Vec<Detector>> = LazyLock::new(|| {
    let all = secret::PATTERNS.iter().chain(personal::PATTERNS);
    let compile = |(what, needs, pattern, test): &Pattern| {
        Some(Detector { what: *what, needs: *needs, pattern: Regex::new(pattern).ok()?, test: *test })
    };
    let mut all: Vec<Detector> = all.filter_map(compile).collect();
    all.sort_by_key(|detector| detector.what);
    all
});

/// Everything that is found in `text`, in its order; findings do not overlap.
pub fn scan(text: &str) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    for detector in DETECTORS.iter() {
        let (least, any) = detector.needs;
        if digits < least || !any.is_empty() && !any.iter().any(|part| text.contains(part)) {
            continue;
        }
        for captures in detector.pattern.captures_iter(text) {
            let Some(found) = captures.name("x").or_else(|| captures.get(0)) else { continue };
            let range = shrink(detector, text, found.range());
            let free = |range: &Range<usize>| {
                findings.iter().all(|other| other.range.end <= range.start || range.end <= other.range.start)
            };
            if let Some(range) = range.filter(free) {
                findings.push(Finding { what: detector.what, range });
            }
        }
    }
    findings.sort_by_key(|finding| finding.range.start);
    findings
}

/// A match that only passes its test without its last words: patterns that allow spaces run on into the next sentence.
fn shrink(detector: &Detector, text: &str, mut range: Range<usize>) -> Option<Range<usize>> {
    loop {
        let candidate = &text[range.clone()];
        if (detector.test)(candidate) {
            return Some(range);
        }
        range.end = range.start + candidate.rfind(' ').filter(|at| *at > 0)?;
    }
}

/// What a whole value is, if it is one thing.
pub fn whole(value: &str) -> Option<Found> {
    let value = value.trim();
    match scan(value).as_slice() {
        [only] if only.range == (0..value.len()) => Some(only.what),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_compiles() {
        assert_eq!(DETECTORS.len(), secret::PATTERNS.len() + personal::PATTERNS.len());
    }

    #[test]
    fn what_is_found() {
        let cases: &[(&str, Found, &str)] = &[
            ("write to jo.doe+x@mail.acme.io!", Found::Email, "jo.doe+x@mail.acme.io"),
            ("card 4242 4242 4242 4242 please", Found::Card, "4242 4242 4242 4242"),
            ("pay DE89 3704 0044 0532 0130 00 NOW", Found::Iban, "DE89 3704 0044 0532 0130 00"),
            ("from 203.0.113.9.", Found::Ip, "203.0.113.9"),
            ("from 2001:db8::17 too", Found::Ip, "2001:db8::17"),
            ("call +49 30 1234567 now", Found::Phone, "+49 30 1234567"),
            ("call (555) 123-4567 now", Found::Phone, "(555) 123-4567"),
            ("ssn 219-09-9999.", Found::NationalId, "219-09-9999"),
            ("dni 12345678Z", Found::NationalId, "12345678Z"),
            ("cpf 529.982.247-25", Found::NationalId, "529.982.247-25"),
            ("told Margaret Oyelaran so", Found::Name, "Margaret Oyelaran"),
            ("Herr Krawuttke rief an", Found::Name, "Krawuttke"),
            ("lives at 12 Elm Tree Road now", Found::Address, "12 Elm Tree Road"),
            ("wohnt Lindenstraße 5b jetzt", Found::Address, "Lindenstraße 5b"),
            ("born 1980-02-03.", Found::BirthDate, "1980-02-03"),
            ("AKIAIOSFODNN7EXAMPLE", Found::CloudKey, "AKIAIOSFODNN7EXAMPLE"),
            ("see https://wiki.corp.internal/x", Found::InternalUrl, "https://wiki.corp.internal/x"),
            ("see https://example.org/x now", Found::Url, "https://example.org/x"),
            ("postgres://app:s3cret@db.acme.io/x", Found::UrlWithPassword, "postgres://app:s3cret@db.acme.io/x"),
            ("ssh db7.prod.internal", Found::InternalHost, "db7.prod.internal"),
            ("password: hunter22", Found::Secret, "hunter22"),
            ("BUILD_SALT=q8Zt2LwX0pVn4RkJ7yBd", Found::Secret, "q8Zt2LwX0pVn4RkJ7yBd"),
        ];
        for (text, what, part) in cases {
            let found: Vec<_> = scan(text).into_iter().map(|one| (one.what, &text[one.range])).collect();
            assert_eq!(found, [(*what, *part)], "in '{text}'");
        }
    }

    #[test]
    fn tokens_and_keys() {
        let token = format!("use gh{}_{} here", "p", "a1B2".repeat(9));
        assert_eq!(scan(&token)[0].what, Found::Token);
        let jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlMTIzNA";
        assert_eq!(whole(jwt), Some(Found::Jwt));
        let pem = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----";
        assert_eq!(whole(pem), Some(Found::PrivateKey));
    }

    #[test]
    fn what_is_not_found() {
        for text in [
            "version 1.2.3 of 2020-01-01",
            "order 4242424242424241",
            "the meeting on Monday Morning",
            "999.999.999.999",
            "DE89370400440532013001",
            "row 17 of 23",
        ] {
            assert_eq!(scan(text), [], "in '{text}'");
        }
    }
}
