//! Values whose format stays: digits become digits, letters letters of the same case, the rest stays.

use crate::permute::{LARGEST, Permutations};
use crate::prf::Prf;

/// Longer ones have room enough to need no permutation, or nearly nothing that changes.
const LONGEST: usize = 128;

/// What may stand at one place.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    Digit,
    /// The first digit of a number that has more: 1–9, so that it stays as long.
    Leading,
    Lower,
    Upper,
    Literal,
}

impl Class {
    fn first_and_count(self) -> (u8, u8) {
        match self {
            Self::Digit => (b'0', 10),
            Self::Leading => (b'1', 9),
            Self::Lower => (b'a', 26),
            Self::Upper => (b'A', 26),
            Self::Literal => (0, 1),
        }
    }
}

/// What may stand at `at` in `text`. Depends only on what stays the same, so that shape and fake have one shape.
fn class(text: &[u8], at: usize, number: bool) -> Class {
    match text[at] {
        b'0'..=b'9' if number && text.len() > 1 => {
            let first = usize::from(text[0] == b'-');
            match (at == first, text.len() - first > 1, text[at]) {
                (true, true, b'0') => Class::Literal,
                (true, true, _) => Class::Leading,
                _ => Class::Digit,
            }
        }
        b'0'..=b'9' => Class::Digit,
        b'a'..=b'z' => Class::Lower,
        b'A'..=b'Z' => Class::Upper,
        _ => Class::Literal,
    }
}

fn is_number(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// Appends the fake of `text` to `out`: a permutation of all texts of this shape, so what was unique stays unique.
/// `None` if there is nothing to change or if it is not ASCII.
pub fn permute(all: &mut Permutations, prf: &Prf, text: &str, out: &mut String) -> Option<()> {
    let bytes = text.as_bytes();
    if !text.is_ascii() {
        return None;
    }
    let shape = Shape::of(bytes);
    if shape.size == 0 {
        return substitute(prf, bytes, is_number(bytes), out);
    }
    shape.write(all.apply(shape.size, shape.index)?, out)
}

/// A text as one of all that have its shape.
#[derive(Clone, Copy)]
pub struct Shape<'a> {
    text: &'a [u8],
    number: bool,
    /// How many there are; 0 if it is too long or has too many of its like.
    pub size: u128,
    /// Which one it is.
    pub index: u128,
}

impl<'a> Shape<'a> {
    /// Of a text in ASCII.
    pub fn of(text: &'a [u8]) -> Self {
        let number = is_number(text);
        let (size, index) = match small_place(text, number) {
            _ if text.len() > LONGEST => (0, 0),
            Some((size, index)) => (u128::from(size), u128::from(index)),
            None => place(text, number).unwrap_or((0, 0)),
        };
        Self { text, number, size, index }
    }

    /// Whether it is what it should be.
    pub fn is_ascii(&self) -> bool {
        self.text.is_ascii()
    }

    /// Appends the text of this shape that has a number.
    pub fn write(&self, image: u128, out: &mut String) -> Option<()> {
        let mut places = [0; LONGEST];
        let places = places.get_mut(..self.text.len())?;
        places.copy_from_slice(self.text);
        // From the last place to the first, as long as a number is too large with slow divisions.
        let (mut large, mut end) = (image, places.len());
        while large > u128::from(u64::MAX) {
            end = end.checked_sub(1)?;
            let (first, count) = class(self.text, end, self.number).first_and_count();
            places[end] = if count > 1 { first + (large % u128::from(count)) as u8 } else { places[end] };
            large /= u128::from(count);
        }
        let mut image = large as u64;
        for (at, place) in places.iter_mut().enumerate().take(end).rev() {
            let class = class(self.text, at, self.number);
            // Each with a divisor that the compiler knows.
            let rest = match class {
                Class::Digit => split::<10>(&mut image),
                Class::Leading => split::<9>(&mut image),
                Class::Lower | Class::Upper => split::<26>(&mut image),
                Class::Literal => continue,
            };
            *place = class.first_and_count().0 + rest;
        }
        out.push_str(std::str::from_utf8(places).ok()?);
        Some(())
    }
}

fn split<const COUNT: u64>(image: &mut u64) -> u8 {
    let rest = *image % COUNT;
    *image /= COUNT;
    rest as u8
}

/// How many texts there are of a shape, and which one this is; `None` if there are more than 2^64.
fn small_place(bytes: &[u8], number: bool) -> Option<(u64, u64)> {
    let (mut size, mut index) = (1u64, 0u64);
    for (at, byte) in bytes.iter().enumerate() {
        let (first, count) = class(bytes, at, number).first_and_count();
        if count > 1 {
            size = size.checked_mul(u64::from(count))?;
            index = index * u64::from(count) + u64::from(byte - first);
        }
    }
    Some((size, index))
}

/// The same; `None` if there are more than [`LARGEST`].
fn place(bytes: &[u8], number: bool) -> Option<(u128, u128)> {
    let (mut size, mut index) = (1u128, 0u128);
    for (at, byte) in bytes.iter().enumerate() {
        let (first, count) = class(bytes, at, number).first_and_count();
        if count > 1 {
            size = size.checked_mul(u128::from(count)).filter(|size| *size <= LARGEST)?;
            index = index * u128::from(count) + u128::from(byte - first);
        }
    }
    Some((size, index))
}

/// In a space of more than 2^112, two values do not meet by chance: no permutation is needed.
fn substitute(prf: &Prf, bytes: &[u8], number: bool, out: &mut String) -> Option<()> {
    if !bytes.iter().any(u8::is_ascii_alphanumeric) {
        return None;
    }
    let mut draw = prf.draw(bytes);
    for at in 0..bytes.len() {
        let (first, count) = class(bytes, at, number).first_and_count();
        out.push(char::from(if count > 1 { first + draw.below(u64::from(count)) as u8 } else { bytes[at] }));
    }
    Some(())
}

/// The digits of `text` replaced by those of `digits`, in order; everything else as it is.
pub fn refill(text: &str, digits: &str, out: &mut String) {
    let mut digits = digits.chars();
    for c in text.chars() {
        out.push(if c.is_ascii_alphanumeric() { digits.next().unwrap_or(c) } else { c });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::Key;

    fn fake(text: &str) -> Option<String> {
        let prf = Prf::new(&Key::from_bytes([7; 32]), "id");
        let mut out = String::new();
        permute(&mut Permutations::new(prf.clone()), &prf, text, &mut out).map(|()| out)
    }

    #[test]
    fn numbers_stay_as_long_and_unique() {
        let prf = Prf::new(&Key::from_bytes([7; 32]), "id");
        let mut all = Permutations::new(prf.clone());
        let fakes: HashSet<String> = (0..20_000)
            .map(|number| {
                let mut out = String::new();
                permute(&mut all, &prf, &number.to_string(), &mut out).unwrap();
                assert_eq!(out.len(), number.to_string().len());
                assert_eq!(out.parse::<u32>().unwrap().to_string(), out, "a leading zero");
                out
            })
            .collect();
        assert_eq!(fakes.len(), 20_000);
    }

    #[test]
    fn nothing_to_change() {
        assert_eq!(fake("---"), None);
        assert_eq!(fake(""), None);
        assert_eq!(fake("ü1"), None);
    }

    proptest! {
        #[test]
        fn the_format_stays(text in "[A-Za-z0-9 _./-]{0,60}") {
            if let Some(out) = fake(&text) {
                prop_assert_eq!(out.len(), text.len());
                for (a, b) in text.chars().zip(out.chars()) {
                    prop_assert_eq!(a.is_ascii_digit(), b.is_ascii_digit());
                    prop_assert_eq!(a.is_ascii_lowercase(), b.is_ascii_lowercase());
                    prop_assert_eq!(a.is_ascii_uppercase(), b.is_ascii_uppercase());
                    prop_assert!(a.is_ascii_alphanumeric() || a == b);
                }
                prop_assert!(out != text);
            } else {
                prop_assert!(!text.chars().any(|c| c.is_ascii_alphanumeric()));
            }
        }

        #[test]
        fn no_two_become_one(a in "[A-Z]{2}-[0-9]{6}", b in "[A-Z]{2}-[0-9]{6}") {
            prop_assert_eq!(a == b, fake(&a) == fake(&b));
        }
    }
}
