//! Cards and bank accounts, with the check digits that validators look at.

use super::Maker;
use crate::shape;

impl Maker {
    /// The network's digit (or the first six) stays, the check digit is right.
    pub(super) fn card(&mut self, value: &str, out: &mut String) -> Option<()> {
        let digits = digits_of(value, " -")?;
        if !luhn_is_valid(&digits) {
            return None;
        }
        let kept = if self.rule.keep_bin { 6 } else { 1 };
        let middle = digits.get(kept..digits.len() - 1)?;
        let size = 10u128.checked_pow(u32::try_from(middle.len()).ok()?)?;
        let image = self.all.apply(size, middle.parse().ok()?)?;
        let mut fake = format!("{}{image:0width$}", &digits[..kept], width = middle.len());
        let check = (10 - luhn_sum(&fake, true) % 10) % 10;
        fake.push_str(&check.to_string());
        shape::refill(value, &fake, out);
        Some(())
    }

    /// The country stays, the check digits are right.
    pub(super) fn iban(&mut self, value: &str, out: &mut String) -> Option<()> {
        if !iban_is_valid(value) {
            return None;
        }
        let plain: String = value.chars().filter(|c| *c != ' ').collect::<String>().to_uppercase();
        let mut account = String::new();
        shape::permute(&mut self.all, &self.prf, &plain[4..], &mut account)?;
        let check = 98 - modulo_97(&format!("{account}{}00", &plain[..2]))?;
        shape::refill(value, &format!("{}{check:02}{account}", &plain[..2]), out);
        Some(())
    }
}

/// The digits of a value that has only digits and `between`.
fn digits_of(value: &str, between: &str) -> Option<String> {
    value
        .chars()
        .all(|c| c.is_ascii_digit() || between.contains(c))
        .then(|| value.chars().filter(char::is_ascii_digit).collect())
}

fn luhn_sum(digits: &str, check_follows: bool) -> u32 {
    let digits = digits.bytes().rev().map(|byte| u32::from(byte.wrapping_sub(b'0')));
    digits
        .enumerate()
        .map(|(at, digit)| if (at % 2 == 0) == check_follows { digit * 2 / 10 + digit * 2 % 10 } else { digit })
        .sum()
}

/// Whether this is a card's number: 12 to 19 digits (spaces and dashes aside), the last of which checks the others.
pub fn luhn_is_valid(value: &str) -> bool {
    digits_of(value, " -").is_some_and(|digits| {
        (12..=19).contains(&digits.len())
            && luhn_sum(&digits, false).is_multiple_of(10)
            && digits.bytes().any(|b| b != b'0')
    })
}

/// Whether this is an IBAN with the right check digits.
pub fn iban_is_valid(value: &str) -> bool {
    let plain: String = value.chars().filter(|c| *c != ' ').collect();
    plain.is_ascii()
        && (15..=34).contains(&plain.len())
        && plain.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && plain[..2].bytes().all(|byte| byte.is_ascii_alphabetic())
        && plain[2..4].bytes().all(|byte| byte.is_ascii_digit())
        && modulo_97(&format!("{}{}", &plain[4..], &plain[..4])) == Some(1)
}

fn modulo_97(text: &str) -> Option<u32> {
    text.chars().try_fold(0, |rest, c| {
        let value = c.to_digit(36)?;
        Some((if value > 9 { rest * 100 } else { rest * 10 } + value) % 97)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_digits_of_published_examples() {
        assert!(luhn_is_valid("4242 4242 4242 4242") && luhn_is_valid("378282246310005"));
        assert!(!luhn_is_valid("4242424242424241") && !luhn_is_valid("0000000000000000") && !luhn_is_valid("42"));
        assert!(iban_is_valid("DE89 3704 0044 0532 0130 00") && iban_is_valid("GB82WEST12345698765432"));
        assert!(!iban_is_valid("DE89370400440532013001") && !iban_is_valid("DE") && !iban_is_valid("ÄÖ89370400440532"));
    }
}
