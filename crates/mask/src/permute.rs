//! Keyed permutations of the numbers below a bound: unique values stay unique, without a table of those seen.
//!
//! A Feistel network on two halves that need not be powers of two, with walking for the few numbers beyond the bound.
//! Small permutations are turned into ones without fixed points (`E⁻¹(E(x) + c)`): no value may stand for itself.

use crate::prf::Prf;

/// As many as FF1 of NIST SP 800-38G.
const ROUNDS: u8 = 10;
/// As many there and as many back.
const ROUNDS_TWICE: u8 = 6;
/// Permutations up to this size have no fixed points; in larger ones they are as rare as this.
const SMALL: u128 = 1 << 32;
/// Beyond this, halves would not fit the round function.
pub const LARGEST: u128 = 1 << 112;

/// A column's permutations, one for each size of space.
#[derive(Clone)]
pub struct Permutations {
    prf: Prf,
}

impl Permutations {
    /// Under the function of a domain.
    pub fn new(prf: Prf) -> Self {
        Self { prf }
    }

    /// Where `index` goes among `size` numbers; `None` if there is nowhere to go or the space is too large.
    pub fn apply(&self, size: u128, index: u128) -> Option<u128> {
        if !(2..=LARGEST).contains(&size) || index >= size {
            return None;
        }
        let left = size.isqrt().max(1) as u64;
        let right = divide(size + u128::from(left) - 1, left).0 as u64;
        let rounds = if size < SMALL { ROUNDS_TWICE } else { ROUNDS };
        let network = Network { prf: &self.prf, size, left, right, rounds };
        let image = network.walk(index, false);
        if size >= SMALL {
            return Some(image);
        }
        let shift = 1 + u128::from(self.prf.round(u8::MAX, size, 0) % (size as u64 - 1));
        let shifted = image + shift;
        Some(network.walk(if shifted >= size { shifted - size } else { shifted }, true))
    }
}

/// Quotient and remainder, the quick way where there is one.
fn divide(number: u128, by: u64) -> (u128, u64) {
    match u64::try_from(number) {
        Ok(number) => (u128::from(number / by), number % by),
        Err(_) => (number / u128::from(by), (number % u128::from(by)) as u64),
    }
}

struct Network<'a> {
    prf: &'a Prf,
    size: u128,
    left: u64,
    right: u64,
    rounds: u8,
}

impl Network<'_> {
    fn walk(&self, index: u128, backwards: bool) -> u128 {
        let mut at = index;
        loop {
            at = self.pass(at, backwards);
            if at < self.size {
                return at;
            }
        }
    }

    fn pass(&self, index: u128, backwards: bool) -> u128 {
        let (l, mut r) = divide(index, self.right);
        let mut l = l as u64;
        for step in 0..self.rounds {
            let round = if backwards { self.rounds - 1 - step } else { step };
            let (changed, other, bound) = if round % 2 == 0 { (&mut l, r, self.left) } else { (&mut r, l, self.right) };
            let drawn = self.prf.round(round, self.size, other);
            let add = ((u128::from(drawn) * u128::from(bound)) >> 64) as u64;
            *changed = if backwards { *changed + bound - add } else { *changed + add };
            if *changed >= bound {
                *changed -= bound;
            }
        }
        u128::from(l) * u128::from(self.right) + u128::from(r)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::Key;

    fn permutations(key: u8) -> Permutations {
        Permutations::new(Prf::new(&Key::from_bytes([key; 32]), "test"))
    }

    #[test]
    fn small_ones_hit_every_number_once_and_none_stays() {
        for size in [2u128, 3, 7, 10, 90, 1000, 6561, 20_011] {
            let all = permutations(1);
            let images: HashSet<u128> = (0..size).map(|index| all.apply(size, index).unwrap()).collect();
            assert_eq!(images.len() as u128, size);
            assert!(images.iter().all(|image| *image < size));
            assert!((0..size).all(|index| all.apply(size, index) != Some(index)), "a fixed point among {size}");
        }
    }

    #[test]
    fn nothing_to_permute() {
        let all = permutations(1);
        assert_eq!(all.apply(1, 0), None);
        assert_eq!(all.apply(10, 10), None);
        assert_eq!(all.apply(LARGEST + 1, 0), None);
    }

    #[test]
    fn another_key_is_another_permutation() {
        let (one, two) = (permutations(1), permutations(2));
        assert!((0..1000).filter(|index| one.apply(1000, *index) == two.apply(1000, *index)).count() < 20);
    }

    proptest! {
        #[test]
        fn large_ones_are_injective(size in 2u128..=LARGEST, a: u128, b: u128) {
            let (a, b) = (a % size, b % size);
            let all = permutations(3);
            let (x, y) = (all.apply(size, a).unwrap(), all.apply(size, b).unwrap());
            prop_assert!(x < size && y < size);
            prop_assert_eq!(a == b, x == y);
        }
    }
}
