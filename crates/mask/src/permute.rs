//! Keyed permutations of the numbers below a bound: unique values stay unique, without a table of those seen.
//!
//! A Feistel network on two halves that need not be powers of two, with walking for the few numbers beyond the bound.
//! Small permutations are turned into ones without fixed points (`E⁻¹(E(x) + c)`): no value may stand for itself.

use crate::prf::{Prf, Round};

/// As many as FF1 of NIST SP 800-38G.
const ROUNDS: u8 = 10;
/// As many there and as many back.
const ROUNDS_TWICE: u8 = 6;
/// Permutations up to this size have no fixed points; in larger ones they are as rare as this.
const SMALL: u128 = 1 << 32;
/// Beyond this, halves would not fit the round function.
pub const LARGEST: u128 = 1 << 112;
/// Sizes that are kept ready, per column: a column has few shapes.
const READY: usize = 32;
/// Numbers whose images are remembered, per column: house numbers and postcodes come again and again.
const REMEMBERED: usize = 1 << 17;

/// A column's permutations, one for each size of space.
#[derive(Clone)]
pub struct Permutations {
    prf: Prf,
    ready: Vec<Network>,
    /// The one that goes when another is needed.
    oldest: usize,
}

impl Permutations {
    /// Under the function of a domain.
    pub fn new(prf: Prf) -> Self {
        Self { prf, ready: Vec::new(), oldest: 0 }
    }

    /// Where `index` goes among `size` numbers; `None` if there is nowhere to go or the space is too large.
    pub fn apply(&mut self, size: u128, index: u128) -> Option<u128> {
        if !(2..=LARGEST).contains(&size) || index >= size {
            return None;
        }
        let known = self.ready.iter().position(|network| network.size == size);
        let at = known.unwrap_or_else(|| self.make_ready(size));
        let network = self.ready.get_mut(at)?;
        // One more than the image, so that nothing is known at first.
        match network.images.get(index as usize) {
            None => Some(network.image(index)),
            Some(0) => {
                let image = network.image(index);
                network.images[index as usize] = image as u32 + 1;
                Some(image)
            }
            Some(image) => Some(u128::from(*image - 1)),
        }
    }

    fn make_ready(&mut self, size: u128) -> usize {
        let mut network = Network::new(&self.prf, size);
        let remembered: usize = self.ready.iter().map(|network| network.images.len()).sum();
        if size <= (REMEMBERED - remembered.min(REMEMBERED)) as u128 {
            network.images = vec![0; size as usize];
        }
        if self.ready.len() < READY {
            self.ready.push(network);
            return self.ready.len() - 1;
        }
        let at = self.oldest;
        self.oldest = (at + 1) % READY;
        self.ready[at] = network;
        at
    }
}

/// Quotient and remainder, the quick way where there is one.
fn divide(number: u128, by: u64) -> (u128, u64) {
    match u64::try_from(number) {
        Ok(number) => (u128::from(number / by), number % by),
        Err(_) => (number / u128::from(by), (number % u128::from(by)) as u64),
    }
}

#[derive(Clone)]
struct Network {
    size: u128,
    left: u64,
    right: u64,
    rounds: Vec<Round>,
    /// What is added between there and back; `None` in a large one, which goes there only.
    shift: Option<u128>,
    /// Images that are known, one more than they are; empty if they are too many.
    images: Vec<u32>,
}

impl Network {
    fn new(prf: &Prf, size: u128) -> Self {
        let left = size.isqrt().max(1) as u64;
        let right = divide(size + u128::from(left) - 1, left).0 as u64;
        let count = if size < SMALL { ROUNDS_TWICE } else { ROUNDS };
        let rounds = (0..count).map(|round| prf.round(round, size)).collect();
        let shift = (size < SMALL).then(|| 1 + u128::from(prf.round(u8::MAX, size).of(0) % (size as u64 - 1)));
        Self { size, left, right, rounds, shift, images: Vec::new() }
    }

    fn image(&self, index: u128) -> u128 {
        let image = self.walk(index, false);
        let Some(shift) = self.shift else { return image };
        let shifted = image + shift;
        self.walk(if shifted >= self.size { shifted - self.size } else { shifted }, true)
    }

    fn walk(&self, index: u128, backwards: bool) -> u128 {
        let mut at = index;
        loop {
            at = if backwards { self.back(at) } else { self.there(at) };
            if at < self.size {
                return at;
            }
        }
    }

    fn there(&self, index: u128) -> u128 {
        let (mut l, mut r) = self.halves(index);
        for pair in self.rounds.chunks_exact(2) {
            l += drawn(&pair[0], r, self.left);
            l -= if l >= self.left { self.left } else { 0 };
            r += drawn(&pair[1], l, self.right);
            r -= if r >= self.right { self.right } else { 0 };
        }
        u128::from(l) * u128::from(self.right) + u128::from(r)
    }

    fn back(&self, index: u128) -> u128 {
        let (mut l, mut r) = self.halves(index);
        for pair in self.rounds.chunks_exact(2).rev() {
            r += self.right - drawn(&pair[1], l, self.right);
            r -= if r >= self.right { self.right } else { 0 };
            l += self.left - drawn(&pair[0], r, self.left);
            l -= if l >= self.left { self.left } else { 0 };
        }
        u128::from(l) * u128::from(self.right) + u128::from(r)
    }

    fn halves(&self, index: u128) -> (u64, u64) {
        let (l, r) = divide(index, self.right);
        (l as u64, r)
    }
}

/// A number below `bound` that belongs to the other half.
fn drawn(round: &Round, half: u64, bound: u64) -> u64 {
    ((u128::from(round.of(half)) * u128::from(bound)) >> 64) as u64
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
            let mut all = permutations(1);
            let images: HashSet<u128> = (0..size).map(|index| all.apply(size, index).unwrap()).collect();
            assert_eq!(images.len() as u128, size);
            assert!(images.iter().all(|image| *image < size));
            assert!((0..size).all(|index| all.apply(size, index) != Some(index)), "a fixed point among {size}");
        }
    }

    #[test]
    fn nothing_to_permute() {
        let mut all = permutations(1);
        assert_eq!(all.apply(1, 0), None);
        assert_eq!(all.apply(10, 10), None);
        assert_eq!(all.apply(LARGEST + 1, 0), None);
    }

    #[test]
    fn another_key_is_another_permutation() {
        let (mut one, mut two) = (permutations(1), permutations(2));
        assert!((0..1000).filter(|index| one.apply(1000, *index) == two.apply(1000, *index)).count() < 20);
    }

    #[test]
    fn what_is_remembered_or_not_makes_no_difference() {
        let images = |all: &mut Permutations| -> Vec<_> { (0..200).map(|index| all.apply(10_000, index)).collect() };
        let mut all = permutations(5);
        let first = images(&mut all);
        assert_eq!(images(&mut all), first);
        // Others take all the room that there is, and its place.
        (2..=2 + READY as u128).for_each(|size| assert!(all.apply(size * 50_000, 1).is_some()));
        assert!(all.ready.iter().all(|network| network.size != 10_000) && all.ready.len() == READY);
        assert_eq!(images(&mut all), first);
    }

    proptest! {
        #[test]
        fn large_ones_are_injective(size in 2u128..=LARGEST, a: u128, b: u128) {
            let (a, b) = (a % size, b % size);
            let mut all = permutations(3);
            let (x, y) = (all.apply(size, a).unwrap(), all.apply(size, b).unwrap());
            prop_assert!(x < size && y < size);
            prop_assert_eq!(a == b, x == y);
        }
    }
}
