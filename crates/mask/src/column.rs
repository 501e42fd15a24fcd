//! One column: its rule, the fakes that it remembers, and what was counted.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::Key;
use crate::check::{Check, digest};
use crate::detect;
use crate::fakes::{Fit, Maker};
use crate::rule::{Kind, Rule};
use crate::table::Outcome;
use crate::text::Scrubber;

/// Pairs of fakes that are remembered per column: names and cities come again and again. Half a MiB, so that a few columns stay
/// in the processor's own cache.
const PAIRS: usize = 1 << 13;
/// Bytes of a value and its fake that are remembered.
const SLOT: usize = 25;
/// Values of kept columns that are looked at for personal data.
const SAMPLED: u64 = 500;

/// A value and its fake, in one place: reading them from three would take as long as making the fake anew.
#[derive(Clone, Copy)]
#[repr(align(32))]
struct Slot {
    hash: u32,
    real: u8,
    fake: u8,
    misfit: bool,
    bytes: [u8; SLOT],
}

impl Slot {
    const EMPTY: Self = Self { hash: 0, real: 0, fake: 0, misfit: false, bytes: [0; SLOT] };

    /// The fake of a value, if it is here.
    fn find(&self, hash: u32, real: &str) -> Option<&str> {
        if self.hash != hash {
            return None;
        }
        let (own, rest) = self.bytes.split_at_checked(usize::from(self.real))?;
        let fake = rest.get(..usize::from(self.fake)).filter(|fake| !fake.is_empty())?;
        if own == real.as_bytes() { std::str::from_utf8(fake).ok() } else { None }
    }

    /// Of a value and its fake, if they fit.
    fn new(hash: u32, real: &str, fake: &str, misfit: bool) -> Option<Self> {
        let mut bytes = [0; SLOT];
        let (own, rest) = bytes.split_at_mut_checked(real.len())?;
        own.copy_from_slice(real.as_bytes());
        rest.get_mut(..fake.len())?.copy_from_slice(fake.as_bytes());
        Some(Self { hash, real: real.len() as u8, fake: fake.len() as u8, misfit, bytes })
    }
}

/// Two slots, in one line of the processor's cache.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Pair([Slot; 2]);

/// One column.
#[derive(Clone)]
pub(crate) struct Column {
    pub name: String,
    pub rule: Rule,
    maker: Maker,
    pub scrubber: Option<Scrubber>,
    /// The place of the column that its rule names as key.
    pub key: Option<usize>,
    slots: Vec<Pair>,
    /// Whether it is worth while to remember fakes; the slots are made when the first one is.
    remembers: bool,
    /// Lookups that found something, since the last time it was seen to.
    hits: u64,
    pub values: u64,
    pub nulls: u64,
    pub misfits: u64,
    pub found: BTreeMap<&'static str, u64>,
}

impl Column {
    pub fn new(name: &str, rule: &Rule, key: &Key) -> Self {
        // Made as quickly as found.
        let cheap = match rule.kind {
            Kind::Date | Kind::Postcode | Kind::Id | Kind::Phone | Kind::Card => true,
            Kind::Number => rule.jitter.is_none(),
            _ => false,
        };
        let remembers = rule.kind.fakes() && rule.kind != Kind::Text && rule.key.is_none() && !cheap;
        Self {
            name: name.to_owned(),
            rule: rule.clone(),
            maker: Maker::new(rule, key),
            scrubber: (rule.kind == Kind::Text).then(|| Scrubber::new(rule, key)),
            key: None,
            slots: Vec::new(),
            remembers,
            hits: 0,
            values: 0,
            nulls: 0,
            misfits: 0,
            found: BTreeMap::new(),
        }
    }

    /// Counts a value and says what becomes of it, if it is not replaced.
    #[inline]
    pub fn spare(&mut self, value: Option<&str>) -> Option<Outcome> {
        let empty = value.is_none_or(str::is_empty);
        self.nulls += u64::from(empty);
        self.values += u64::from(!empty);
        match (self.rule.kind, value) {
            (Kind::Drop, _) => Some(Outcome::Dropped),
            (Kind::Null, _) | (Kind::Keep, None) => Some(Outcome::Null),
            (Kind::Keep, Some(value)) => {
                if self.values <= SAMPLED {
                    for finding in detect::scan(value) {
                        *self.found.entry(finding.what.name()).or_default() += 1;
                    }
                }
                Some(Outcome::Kept)
            }
            (_, None) if self.rule.keep_null => Some(Outcome::Null),
            (_, Some("")) if self.rule.keep_null => Some(Outcome::Kept),
            _ => None,
        }
    }

    /// Appends what a value is replaced by.
    pub fn fake(&mut self, real: &str, key: Option<&str>, check: &mut Check, out: &mut String) {
        if self.rule.kind == Kind::Constant {
            return out.push_str(self.rule.value.as_deref().unwrap_or_default());
        }
        let hash = digest(real);
        if !self.recall(real, hash, out) {
            let start = out.len();
            let fit = self.maker.make(real, key, out);
            check.saw(self.rule.kind, hash, &out[start..]);
            self.remember(real, hash, &out[start..], fit);
        }
    }

    /// Masks the values of a batch: those at `place` of each row of `count` cells. What is remembered comes first; the others
    /// are made two at a time, because the processor works on two as long as on one.
    pub fn fakes(&mut self, cells: &[&str], count: usize, place: usize, check: &mut Check, out: &mut Fakes) {
        out.clear();
        let own = |row: usize| cells.get(row * count + place).copied().unwrap_or_default();
        for row in 0..cells.len() / count {
            let outcome = self.spare(Some(own(row)));
            out.outcomes.push(outcome.unwrap_or(Outcome::Masked));
            out.places.push(0..0);
            if outcome.is_none() {
                out.wanted.push((row, digest(own(row))));
            }
        }
        if out.wanted.is_empty() {
            return;
        }
        if self.rule.kind == Kind::Constant {
            out.text.push_str(self.rule.value.as_deref().unwrap_or_default());
            return out.wanted.iter().for_each(|(row, _)| out.places[*row] = 0..out.text.len());
        }
        self.recall_all(own, out);
        // A key belongs to a row: such fakes are made one by one.
        let (pairs, single) = match self.key {
            None => out.wanted.as_chunks::<2>(),
            Some(_) => (&[][..], &out.wanted[..]),
        };
        for pair in pairs {
            let (start, values) = (out.text.len(), pair.map(|(row, _)| own(row)));
            let [(middle, first), (end, second)] = self.maker.make_two(values, &mut out.text);
            for (((row, hash), made), fit) in pair.iter().zip([start..middle, middle..end]).zip([first, second]) {
                self.remember(own(*row), *hash, &out.text[made.clone()], fit);
                out.places[*row] = made;
            }
        }
        for (row, hash) in single {
            let (start, key) = (out.text.len(), self.key.and_then(|key| cells.get(row * count + key).copied()));
            let fit = self.maker.make(own(*row), key, &mut out.text);
            self.remember(own(*row), *hash, &out.text[start..], fit);
            out.places[*row] = start..out.text.len();
        }
        let real: Vec<u64> = out.wanted.iter().map(|(_, hash)| *hash).collect();
        let fake: Vec<u64> = out.wanted.iter().map(|(row, _)| digest(&out.text[out.places[*row].clone()])).collect();
        check.saw_all(self.rule.kind, &real, &fake);
    }

    /// Takes the fakes that are remembered; those of others stay wanted. All slots are looked at first: each look waits for
    /// memory, and looks that do not depend on each other wait together.
    fn recall_all<'a>(&mut self, own: impl Fn(usize) -> &'a str, out: &mut Fakes) {
        if self.slots.is_empty() {
            return;
        }
        let likely =
            |(_, hash): &(usize, u64)| self.slots[slot_of(*hash)].0.iter().any(|slot| slot.hash == *hash as u32);
        out.likely.extend(out.wanted.iter().map(likely));
        let Fakes { places, text, wanted, likely, .. } = out;
        let mut likely = likely.iter();
        wanted.retain(|(row, hash)| {
            let start = text.len();
            let found = likely.next() == Some(&true) && self.recall(own(*row), *hash, text);
            places[*row] = start..text.len();
            !found
        });
    }

    /// Appends a fake that is remembered, if it is.
    fn recall(&mut self, real: &str, hash: u64, out: &mut String) -> bool {
        let Some(pair) = self.slots.get(slot_of(hash)) else { return false };
        let found = pair.0.iter().find_map(|slot| Some((slot.misfit, slot.find(hash as u32, real)?)));
        let Some((misfit, fake)) = found else { return false };
        self.misfits += u64::from(misfit);
        self.hits += 1;
        out.push_str(fake);
        true
    }

    /// Remembers a fake that was made.
    fn remember(&mut self, real: &str, hash: u64, fake: &str, fit: Fit) {
        let misfit = fit == Fit::Misfit;
        self.misfits += u64::from(misfit);
        if self.remembers && self.slots.is_empty() {
            self.slots = vec![Pair([Slot::EMPTY; 2]); PAIRS];
        }
        if let Some(pair) = self.slots.get_mut(slot_of(hash))
            && let Some(new) = Slot::new(hash as u32, real, fake, misfit)
        {
            *pair = Pair([new, pair.0[0]]); // the older one goes
        }
    }

    /// Gives up remembering where values hardly ever come again.
    pub fn judge(&mut self, rows: u64) {
        if self.hits < rows / 3 && !self.slots.is_empty() {
            (self.slots, self.remembers) = (Vec::new(), false);
        }
        self.hits = 0;
    }
}

/// Where a fake is remembered: one half of the digest says it, the other one is kept with it.
fn slot_of(hash: u64) -> usize {
    (hash >> 32) as usize % PAIRS
}

/// What became of the values of one column of a batch.
#[derive(Clone, Default)]
pub(crate) struct Fakes {
    outcomes: Vec<Outcome>,
    places: Vec<Range<usize>>,
    text: String,
    /// Rows and digests of the values whose fakes have yet to be found or made, and which of them may be remembered.
    wanted: Vec<(usize, u64)>,
    likely: Vec<bool>,
}

impl Fakes {
    pub fn clear(&mut self) {
        self.outcomes.clear();
        self.places.clear();
        self.text.clear();
        self.wanted.clear();
        self.likely.clear();
    }

    /// What became of the value of a row, and its fake.
    pub fn get(&self, row: usize) -> (Outcome, &[u8]) {
        let fake = self.places.get(row).and_then(|place| self.text.as_bytes().get(place.clone()));
        (self.outcomes.get(row).copied().unwrap_or(Outcome::Null), fake.unwrap_or_default())
    }

    /// The fakes of all rows.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Adds one that was made elsewhere.
    pub fn push(&mut self, outcome: Outcome, fake: &str) {
        let start = self.text.len();
        self.text.push_str(fake);
        self.outcomes.push(outcome);
        self.places.push(start..self.text.len());
    }
}
