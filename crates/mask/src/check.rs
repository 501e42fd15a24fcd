//! Whether a fake is somebody's real value after all: a look at everything that went in and came out, in bounded memory.
//!
//! Values are kept as 64-bit digests. Of more than `MOST` only those below a falling threshold are kept, on both sides
//! alike: then a share of the values is checked, and the report says which.

use serde::Serialize;

use crate::rule::Kind;

/// Digests kept of each side of each kind.
const MOST: usize = 1 << 12;
/// The same for kinds that meet by chance, which says little.
const MOST_BY_CHANCE: usize = 1 << 9;

/// Places of a set: at most half of them are taken.
const PLACES: usize = 2 * MOST;

/// Digests that are added at once.
const ROOM: usize = 256;

/// A set of digests. One that is looked at for every value has to fit the processor's cache, so it is as small as it can
/// be: each digest at the first free place from where its low bits say.
#[derive(Clone, Default)]
struct Digests {
    /// Empty until there is one; 0 is a free place.
    places: Vec<u64>,
    count: usize,
}

impl Digests {
    fn insert(&mut self, digest: u64) {
        if self.places.is_empty() {
            self.places = vec![0; PLACES];
        }
        let digest = digest.max(1);
        let mut at = digest as usize % PLACES;
        while self.places[at] != 0 {
            if self.places[at] == digest {
                return;
            }
            at = (at + 1) % PLACES;
        }
        self.places[at] = digest;
        self.count += 1;
    }

    /// Inserts several. First, what is already there is sorted out: each look waits for memory, and looks that do not depend on
    /// each other wait together.
    fn insert_all(&mut self, digests: &mut Vec<u64>) {
        if !self.places.is_empty() {
            digests.retain(|digest| self.places[*digest as usize % PLACES] != *digest);
        }
        digests.iter().for_each(|digest| self.insert(*digest));
    }

    fn contains(&self, digest: u64) -> bool {
        let begin = digest as usize % PLACES;
        let around = self.places.iter().skip(begin).chain(self.places.iter().take(begin));
        around.take_while(|place| **place != 0).any(|place| *place == digest)
    }

    fn iter(&self) -> impl Iterator<Item = u64> {
        self.places.iter().copied().filter(|digest| *digest != 0)
    }

    fn keep_up_to(&mut self, threshold: u64) {
        let all = std::mem::take(self);
        all.iter().filter(|digest| *digest <= threshold).for_each(|digest| self.insert(digest));
    }
}

/// The digest by which values are compared.
pub fn digest(value: &str) -> u64 {
    crate::hash::hash(value.as_bytes())
}

/// Real values and fakes of one kind.
#[derive(Clone)]
struct Sides {
    kind: Kind,
    threshold: u64,
    real: Digests,
    fake: Digests,
}

impl Sides {
    fn new(kind: Kind) -> Self {
        Self { kind, threshold: u64::MAX, real: Digests::default(), fake: Digests::default() }
    }

    fn shrink(&mut self) {
        let most = if self.kind.meets_by_chance() { MOST_BY_CHANCE } else { MOST };
        while self.real.count.max(self.fake.count) > most {
            self.lower(self.threshold / 2);
        }
    }

    fn lower(&mut self, threshold: u64) {
        self.threshold = threshold;
        self.real.keep_up_to(threshold);
        self.fake.keep_up_to(threshold);
    }
}

/// The result for one kind of rule.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Checked {
    /// The kind.
    pub rule: Kind,
    /// Different real values that were looked at.
    pub values: u64,
    /// Which share of all that is.
    pub share: f64,
    /// Fakes that are the real value of another row. (No row ever keeps its own.)
    pub coincidences: u64,
    /// Whether that was to be expected, because there are not so many values of this kind.
    pub by_chance: bool,
}

/// Remembers real values and fakes.
#[derive(Clone, Default)]
pub struct Check {
    /// Those that were seen, each at its kind's place: it is looked up for every value.
    kinds: Vec<Option<Sides>>,
}

impl Check {
    /// Remembers a value and its fake.
    pub fn saw(&mut self, kind: Kind, real: u64, fake: &str) {
        let sides = self.sides(kind);
        let fake = digest(fake);
        if real <= sides.threshold {
            sides.real.insert(real);
        }
        if fake <= sides.threshold {
            sides.fake.insert(fake);
        }
        sides.shrink();
    }

    /// Remembers several values and their fakes, by their digests.
    pub fn saw_all(&mut self, kind: Kind, real: &[u64], fake: &[u64]) {
        let sides = self.sides(kind);
        // So few at a time that they fit, whatever they are.
        for (real, fake) in real.chunks(ROOM).zip(fake.chunks(ROOM)) {
            for (digests, side) in [(real, &mut sides.real), (fake, &mut sides.fake)] {
                let mut new: Vec<u64> = Vec::with_capacity(ROOM);
                new.extend(digests.iter().filter(|digest| **digest <= sides.threshold));
                side.insert_all(&mut new);
            }
            sides.shrink();
        }
    }

    fn sides(&mut self, kind: Kind) -> &mut Sides {
        let at = kind as usize;
        if self.kinds.len() <= at {
            self.kinds.resize(at + 1, None);
        }
        self.kinds[at].get_or_insert_with(|| Sides::new(kind))
    }

    /// Adds what another saw.
    pub fn absorb(&mut self, other: Self) {
        for theirs in other.kinds.into_iter().flatten() {
            let sides = self.sides(theirs.kind);
            if theirs.threshold < sides.threshold {
                sides.lower(theirs.threshold);
            }
            // One at a time: there is not room for all of both.
            for (real, digest) in
                theirs.real.iter().map(|digest| (true, digest)).chain(theirs.fake.iter().map(|digest| (false, digest)))
            {
                if digest <= sides.threshold {
                    if real { &mut sides.real } else { &mut sides.fake }.insert(digest);
                    sides.shrink();
                }
            }
        }
    }

    /// What came of it.
    pub fn results(&self) -> Vec<Checked> {
        let result = |sides: &Sides| Checked {
            rule: sides.kind,
            values: sides.real.count as u64,
            share: (sides.threshold as f64 + 1.0) / 2f64.powi(64),
            coincidences: sides.real.iter().filter(|digest| sides.fake.contains(*digest)).count() as u64,
            by_chance: sides.kind.meets_by_chance(),
        };
        self.kinds.iter().flatten().map(result).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fake_that_is_real_is_seen_whichever_came_first() {
        let mut check = Check::default();
        check.saw(Kind::Email, digest("a"), "b");
        check.saw(Kind::Email, digest("c"), "a");
        let mut other = Check::default();
        other.saw(Kind::Email, digest("b"), "d");
        check.absorb(other);
        let result = &check.results()[0];
        assert_eq!((result.values, result.coincidences, result.share), (3, 2, 1.0));
        let mut together = Check::default();
        together.saw_all(Kind::Email, &["a", "c", "b", "a"].map(digest), &["b", "a", "d", "b"].map(digest));
        together.saw_all(Kind::Email, &[digest("a")], &[digest("b")]);
        assert_eq!(&together.results()[0], result);
    }

    #[test]
    fn memory_is_bounded_and_the_share_is_said() {
        let mut check = Check::default();
        for number in 0..MOST * 3 {
            check.saw(Kind::Email, digest(&number.to_string()), &(number + 1).to_string());
        }
        let result = &check.results()[0];
        assert!(result.values <= MOST as u64);
        assert!(result.share < 0.6 && result.share > 0.1, "{}", result.share);
        assert!(result.coincidences > result.values * 9 / 10);
        let mut together = Check::default();
        let digests =
            |from: usize| -> Vec<u64> { (from..from + MOST * 3).map(|number| digest(&number.to_string())).collect() };
        together.saw_all(Kind::Email, &digests(0), &digests(1));
        assert_eq!(&together.results()[0], result);
    }
}
