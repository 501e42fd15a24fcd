//! What belongs to people.

use std::net::IpAddr;

use super::{Found, Pattern};
use crate::fakes::{iban_is_valid, luhn_is_valid, time};
use crate::words;

pub const PATTERNS: &[Pattern] = &[
    (Found::Email, (0, &["@"]), r"[\p{L}0-9._%+-]+@[\p{L}0-9.-]+\.\p{L}{2,}", always),
    (Found::Url, (0, &["://"]), r#"\b(https?|ftp)://[^\s<>"')\]]+"#, always),
    (Found::Iban, (8, &[]), r"\b[A-Za-z]{2}\d{2}( ?[A-Za-z0-9]){11,30}\b", iban_is_valid),
    (Found::Card, (12, &[]), r"\b\d([ -]?\d){11,18}\b", luhn_is_valid),
    (Found::NationalId, (9, &["-"]), r"\b\d{3}-\d{2}-\d{4}\b", social_security),
    (Found::NationalId, (6, &[]), r"\b[A-CEGHJ-PR-TW-Z]{2} ?\d{2} ?\d{2} ?\d{2} ?[A-D]\b", always),
    (Found::NationalId, (7, &[]), r"\b[0-9XYZ]\d{7}[A-Z]\b", spanish),
    (Found::NationalId, (7, &[]), r"\b[A-Z]{6}\d{2}[A-EHLMPR-T]\d{2}[A-Z]\d{3}[A-Z]\b", always),
    (Found::NationalId, (11, &["."]), r"\b\d{3}\.\d{3}\.\d{3}-\d{2}\b", brazilian),
    (Found::NationalId, (11, &[]), r"\b[12] ?\d{2} ?\d{2} ?\d[0-9AB] ?\d{3} ?\d{3} ?\d{2}\b", french),
    (Found::Ip, (4, &["."]), r"\b\d{1,3}(\.\d{1,3}){3}\b", is_ip),
    (Found::Ip, (0, &[":"]), r"(?i)\b[0-9a-f]{1,4}(:[0-9a-f]{0,4}){2,7}\b", is_ip),
    (Found::Phone, (7, &[]), r"(\+|\b00)\d[\d ()./-]{6,18}\d\b", telephone),
    (Found::Phone, (7, &[]), r"(\(|\b)0\d{1,5}\)?[ /-]?\d[\d -]{4,10}\d\b", telephone),
    (Found::Phone, (7, &[]), r"(\(|\b)\d{3}\)?[ .-]\d{3}[ .-]\d{4}\b", telephone),
    (
        Found::Address,
        (1, &[" "]),
        r"\b\d{1,5}[a-z]? (\p{Lu}[\p{L}'.]+ ){1,3}(Street|St|Avenue|Ave|Road|Rd|Lane|Ln|Drive|Dr|Boulevard|Blvd|Way|Court|Ct|Square|Place)\b",
        always,
    ),
    (
        Found::Address,
        (1, &[" "]),
        r"\b\p{Lu}\p{L}+(straße|strasse|str\.|weg|allee|platz|gasse|laan|straat) \d{1,4} ?[a-z]?\b",
        always,
    ),
    (
        Found::Address,
        (1, &[" "]),
        r"\b\d{1,4},? (rue|avenue|boulevard|place|allée|chemin) (de la |de l'|du |des |de )?\p{Lu}[\p{L}-]+",
        always,
    ),
    (
        Found::Name,
        (0, &[" "]),
        r"\b\p{Lu}[\p{L}'-]+( \p{Lu}\.)?( (von|van|de|der|da|di|del|la|al|bin))*( \p{Lu}[\p{L}'-]+)+",
        listed,
    ),
    (Found::Name, (0, &[" "]), r"\b(Mr|Mrs|Ms|Dr|Herr|Frau|Mme|Prof)\.? (?P<x>\p{Lu}[\p{L}'-]+)", always),
    (
        Found::BirthDate,
        (4, &["-", ".", "/"]),
        r"(?i)\b(born|birth|dob|geboren|geb\.|nacimiento|naissance)[^0-9\n]{0,12}(?P<x>[0-9]{1,4}[-./][0-9]{1,2}[-./][0-9]{1,4})",
        time::is_date,
    ),
];

fn always(_: &str) -> bool {
    true
}

fn digits(text: &str) -> Vec<u32> {
    text.chars().filter_map(|c| c.to_digit(10)).collect()
}

fn is_ip(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

fn telephone(text: &str) -> bool {
    (7..=15).contains(&digits(text).len()) && !time::is_date(text)
}

/// A listed first name begins it: other words with capitals are no names.
fn listed(text: &str) -> bool {
    text.contains(' ') && text.split([' ', '-']).next().is_some_and(words::is_first_name)
}

fn social_security(text: &str) -> bool {
    !(text.starts_with("000") || text.starts_with("666") || text.starts_with('9') || text.ends_with("0000"))
}

fn spanish(text: &str) -> bool {
    let number = text.replacen('X', "0", 1).replacen('Y', "1", 1).replacen('Z', "2", 1);
    // Only the first may be a letter besides the check: put back what the last may have lost.
    let number = number.get(..8).and_then(|digits| digits.parse::<usize>().ok());
    number.is_some_and(|number| b"TRWAGMYFPDXBNJZSQVHLCKE".get(number % 23) == text.as_bytes().last())
}

fn brazilian(text: &str) -> bool {
    let digits = digits(text);
    let check = |count: usize| {
        let sum: u32 =
            digits.iter().take(count).zip((2..=count as u32 + 1).rev()).map(|(digit, weight)| digit * weight).sum();
        sum * 10 % 11 % 10
    };
    digits.len() == 11
        && digits[9] == check(9)
        && digits[10] == check(10)
        && digits.iter().any(|digit| *digit != digits[0])
}

fn french(text: &str) -> bool {
    let plain: String = text.chars().filter(|c| *c != ' ').collect();
    let plain = plain.replace("2A", "19").replace("2B", "18");
    let (Some(number), Some(key)) = (plain.get(..13), plain.get(13..15)) else { return false };
    match (number.parse::<u64>(), key.parse::<u64>()) {
        (Ok(number), Ok(key)) => 97 - number % 97 == key,
        _ => false,
    }
}
