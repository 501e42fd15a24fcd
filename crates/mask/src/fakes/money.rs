//! Cards and bank accounts, with the check digits that validators look at.

use super::Maker;
use crate::shape;

/// A card's number: 12 to 19 digits, the last of which checks the others, with spaces and dashes between them.
pub(super) struct CardNumber {
    digits: [u8; 19],
    count: usize,
}

impl CardNumber {
    /// Of a value that is one.
    pub fn read(value: &str) -> Option<Self> {
        let (mut digits, mut count) = ([0; 19], 0);
        for byte in value.bytes() {
            match byte {
                b'0'..=b'9' => {
                    *digits.get_mut(count)? = byte - b'0';
                    count += 1;
                }
                b' ' | b'-' => {}
                _ => return None,
            }
        }
        let own = &digits[..count];
        let is_one = count >= 12 && check_sum(own).is_multiple_of(10) && own.iter().any(|digit| *digit != 0);
        is_one.then_some(Self { digits, count })
    }

    /// How many numbers have the same first digits, and which of them this one is.
    pub fn place(&self, kept: usize) -> (u128, u128) {
        let middle = &self.digits[kept..self.count - 1];
        let (size, index) =
            middle.iter().fold((1u64, 0u64), |(size, index), digit| (size * 10, index * 10 + u64::from(*digit)));
        (size.into(), index.into())
    }

    /// Appends `value` with the digits of another place, and the check digit that is right then.
    pub fn write(&self, value: &str, kept: usize, place: u128, out: &mut String) -> Option<()> {
        let (mut digits, mut left) = (self.digits, u64::try_from(place).ok()?);
        for digit in digits[kept..self.count - 1].iter_mut().rev() {
            *digit = (left % 10) as u8;
            left /= 10;
        }
        digits[self.count - 1] = 0;
        digits[self.count - 1] = ((10 - check_sum(&digits[..self.count]) % 10) % 10) as u8;
        let mut new = digits.iter();
        for byte in value.bytes() {
            let byte = if byte.is_ascii_digit() { b'0' + new.next()? } else { byte };
            out.push(char::from(byte));
        }
        Some(())
    }
}

impl Maker {
    /// The network's digit (or the first six) stays, the check digit is right.
    pub(super) fn card(&mut self, value: &str, out: &mut String) -> Option<()> {
        let (card, kept) = (CardNumber::read(value)?, self.kept_digits());
        let (size, index) = card.place(kept);
        card.write(value, kept, self.all.apply(size, index)?, out)
    }

    /// Of a card.
    pub(super) fn kept_digits(&self) -> usize {
        if self.rule.keep_bin { 6 } else { 1 }
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

/// The sum of a number's digits by which its check digit makes it a multiple of ten (ISO/IEC 7812-1).
fn check_sum(digits: &[u8]) -> u32 {
    const DOUBLED: [u8; 10] = [0, 2, 4, 6, 8, 1, 3, 5, 7, 9];
    let double = |digit: u8| DOUBLED.get(usize::from(digit)).copied().unwrap_or(0);
    let from_the_end = digits.iter().rev().enumerate();
    from_the_end.map(|(at, digit)| u32::from(if at % 2 == 1 { double(*digit) } else { *digit })).sum()
}

/// Whether this is a card's number.
pub fn luhn_is_valid(value: &str) -> bool {
    CardNumber::read(value).is_some()
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
