//! Keyed permutations of the numbers below a bound: unique values stay unique, without a table of those seen.
//!
//! A Feistel network on two halves that need not be powers of two, with walking for the few numbers beyond the bound.
//! Small permutations are turned into ones without fixed points (`E⁻¹(E(x) + c)`): no value may stand for itself.

use std::collections::HashMap;

use crate::prf::Prf;

/// As many as FF1 of NIST SP 800-38G.
const ROUNDS: u8 = 10;
/// Halves up to here have their rounds remembered; permutations of such have no fixed points.
const SMALL: u64 = 1 << 17;
/// Permutations remembered per column: the shapes of hostile data are without number.
const REMEMBERED: usize = 32;
/// Beyond this, halves would not fit the round function.
pub const LARGEST: u128 = 1 << 112;

/// A column's permutations, one for each size of space.
#[derive(Clone)]
pub struct Permutations {
    prf: Prf,
    known: HashMap<u128, Permutation>,
}

impl Permutations {
    /// Under the function of a domain.
    pub fn new(prf: Prf) -> Self {
        Self { prf, known: HashMap::new() }
    }

    /// Where `index` goes among `size` numbers; `None` if there is nowhere to go or the space is too large.
    pub fn apply(&mut self, size: u128, index: u128) -> Option<u128> {
        if !(2..=LARGEST).contains(&size) || index >= size {
            return None;
        }
        if let Some(known) = self.known.get_mut(&size) {
            return Some(known.apply(&self.prf, index));
        }
        let mut new = Permutation::new(&self.prf, size);
        let image = new.apply(&self.prf, index);
        if self.known.len() < REMEMBERED {
            self.known.insert(size, new);
        }
        Some(image)
    }
}

#[derive(Clone)]
struct Permutation {
    size: u128,
    left: u64,
    right: u64,
    shift: u128,
    /// By round and half; `u32::MAX` is not computed yet.
    rounds: Option<Vec<Vec<u32>>>,
}

impl Permutation {
    fn new(prf: &Prf, size: u128) -> Self {
        let left = size.isqrt().max(1) as u64;
        let right = size.div_ceil(u128::from(left)) as u64;
        let small = right <= SMALL;
        let shift = if small { 1 + u128::from(prf.round(ROUNDS, size, 0)) % (size - 1) } else { 0 };
        Self { size, left, right, shift, rounds: small.then(|| vec![Vec::new(); usize::from(ROUNDS)]) }
    }

    fn apply(&mut self, prf: &Prf, index: u128) -> u128 {
        let image = self.walk(prf, index, false);
        if self.shift == 0 {
            return image;
        }
        self.walk(prf, (image + self.shift) % self.size, true)
    }

    fn walk(&mut self, prf: &Prf, index: u128, backwards: bool) -> u128 {
        let mut at = index;
        loop {
            at = self.network(prf, at, backwards);
            if at < self.size {
                return at;
            }
        }
    }

    fn network(&mut self, prf: &Prf, index: u128, backwards: bool) -> u128 {
        let (mut l, mut r) = ((index / u128::from(self.right)) as u64, (index % u128::from(self.right)) as u64);
        for step in 0..ROUNDS {
            let round = if backwards { ROUNDS - 1 - step } else { step };
            let (changed, other, bound) = if round % 2 == 0 { (&mut l, r, self.left) } else { (&mut r, l, self.right) };
            let others = if round % 2 == 0 { self.right } else { self.left };
            let add = Self::round(&mut self.rounds, prf, round, self.size, other, bound, others);
            *changed = if backwards { *changed + bound - add } else { *changed + add };
            if *changed >= bound {
                *changed -= bound;
            }
        }
        u128::from(l) * u128::from(self.right) + u128::from(r)
    }

    fn round(
        known: &mut Option<Vec<Vec<u32>>>,
        prf: &Prf,
        round: u8,
        size: u128,
        half: u64,
        bound: u64,
        halves: u64,
    ) -> u64 {
        let compute = || ((u128::from(prf.round(round, size, half)) * u128::from(bound)) >> 64) as u64;
        let Some(table) = known.as_mut().and_then(|rounds| rounds.get_mut(usize::from(round))) else {
            return compute();
        };
        if table.is_empty() {
            table.resize(halves as usize, u32::MAX);
        }
        match table.get_mut(half as usize) {
            Some(entry) => {
                if *entry == u32::MAX {
                    *entry = compute() as u32;
                }
                u64::from(*entry)
            }
            None => compute(),
        }
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
