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

    /// The same for two numbers: side by side if that is of use.
    pub fn apply_two(&mut self, [one, two]: [(u128, u128); 2]) -> [Option<u128>; 2] {
        if one.0 == two.0
            && (2..=LARGEST).contains(&one.0)
            && one.1.max(two.1) < one.0
            && let Some(network) = self.ready.iter_mut().find(|network| network.size == one.0)
            && [one.1, two.1].iter().all(|index| network.images.get(*index as usize).is_none_or(|image| *image == 0))
        {
            let images = network.images_of([one.1, two.1]);
            for (index, image) in [one.1, two.1].into_iter().zip(images) {
                if let Some(known) = network.images.get_mut(index as usize) {
                    *known = image as u32 + 1;
                }
            }
            return images.map(Some);
        }
        [self.apply(one.0, one.1), self.apply(two.0, two.1)]
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
        let [only] = self.images_of([index]);
        only
    }

    /// Where numbers go, side by side.
    fn images_of<const N: usize>(&self, indices: [u128; N]) -> [u128; N] {
        let images = self.walk::<N, false>(indices);
        let Some(shift) = self.shift else { return images };
        let shifted = images.map(|image| image + shift);
        self.walk::<N, true>(shifted.map(|image| if image >= self.size { image - self.size } else { image }))
    }

    fn walk<const N: usize, const BACK: bool>(&self, indices: [u128; N]) -> [u128; N] {
        let step = |at: [u128; N]| if BACK { self.back(at) } else { self.there(at) };
        let mut all = step(indices);
        // Few are beyond the bound; those that are not stay where they are.
        while all.iter().any(|at| *at >= self.size) {
            let next = step(all);
            for (at, next) in all.iter_mut().zip(next) {
                *at = if *at >= self.size { next } else { *at };
            }
        }
        all
    }

    #[inline(always)]
    fn there<const N: usize>(&self, indices: [u128; N]) -> [u128; N] {
        let (mut left, mut right) = self.halves(indices);
        for pair in self.rounds.chunks_exact(2) {
            add(&mut left, drawn(&pair[0], right, self.left), self.left);
            add(&mut right, drawn(&pair[1], left, self.right), self.right);
        }
        self.join(left, right)
    }

    #[inline(always)]
    fn back<const N: usize>(&self, indices: [u128; N]) -> [u128; N] {
        let (mut left, mut right) = self.halves(indices);
        for pair in self.rounds.chunks_exact(2).rev() {
            add(&mut right, drawn(&pair[1], left, self.right).map(|number| self.right - number), self.right);
            add(&mut left, drawn(&pair[0], right, self.left).map(|number| self.left - number), self.left);
        }
        self.join(left, right)
    }

    #[inline(always)]
    fn halves<const N: usize>(&self, indices: [u128; N]) -> ([u64; N], [u64; N]) {
        let both = indices.map(|index| divide(index, self.right));
        (both.map(|(left, _)| left as u64), both.map(|(_, right)| right))
    }

    #[inline(always)]
    fn join<const N: usize>(&self, left: [u64; N], right: [u64; N]) -> [u128; N] {
        let mut all = left.map(|left| u128::from(left) * u128::from(self.right));
        all.iter_mut().zip(right).for_each(|(all, right)| *all += u128::from(right));
        all
    }
}

/// Adds numbers up to `bound` to halves below it, modulo `bound`.
#[inline(always)]
fn add<const N: usize>(halves: &mut [u64; N], numbers: [u64; N], bound: u64) {
    for (half, number) in halves.iter_mut().zip(numbers) {
        *half += number;
        *half -= if *half >= bound { bound } else { 0 };
    }
}

/// Numbers below `bound` that belong to the other halves.
#[inline(always)]
fn drawn<const N: usize>(round: &Round, halves: [u64; N], bound: u64) -> [u64; N] {
    round.of_each(halves).map(|bits| ((u128::from(bits) * u128::from(bound)) >> 64) as u64)
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
        let two = |all: &mut Permutations| -> Vec<_> {
            (0..200).step_by(2).flat_map(|index| all.apply_two([(10_000, index), (10_000, index + 1)])).collect()
        };
        let mut all = permutations(5);
        assert_eq!(all.apply(10_000, 7), first[7]);
        assert!(two(&mut all) == first && two(&mut all) == first);
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
            prop_assert_eq!(all.apply_two([(size, a), (size, b)]), [Some(x), Some(y)]);
            prop_assert_eq!(permutations(3).apply_two([(size, a), (2, 2)]), [Some(x), None]);
        }
    }
}
