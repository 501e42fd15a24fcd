//! The rows of one table.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::check::{Check, digest};
use crate::config::Table;
use crate::detect;
use crate::fakes::{Fit, Maker};
use crate::report::{ColumnReport, TableReport};
use crate::rule::{Kind, Rule};
use crate::text::{Known, Scrubber};
use crate::{Key, MaskError};

/// Pairs of fakes that are remembered per column: names and cities come again and again.
const PAIRS: usize = 1 << 11;
/// Bytes of a value and its fake that are remembered: a pair of slots is a line of the processor's cache.
const SLOT: usize = 25;
/// After so many rows it is seen how many lookups were good for something.
const TRIAL: u64 = 1 << 13;
/// Values of kept columns that are looked at for personal data.
const SAMPLED: u64 = 500;

/// What became of a value. The text of a fake is in [`Masker::fake`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It stays.
    Kept,
    /// Nothing is there, or nothing is left.
    Null,
    /// It goes, with its column.
    Dropped,
    /// It was replaced.
    Masked,
}

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

/// One column: its rule, what it needs, and what was counted.
#[derive(Clone)]
struct Column {
    name: String,
    rule: Rule,
    maker: Maker,
    scrubber: Option<Scrubber>,
    /// The place of the column that its rule names as key.
    key: Option<usize>,
    slots: Vec<[Slot; 2]>,
    /// Whether it is worth while to remember fakes; the slots are made when the first one is.
    remembers: bool,
    /// Lookups that found something, since the last time it was seen to.
    hits: u64,
    values: u64,
    nulls: u64,
    misfits: u64,
    found: BTreeMap<&'static str, u64>,
}

impl Column {
    fn new(name: &str, rule: &Rule, key: &Key) -> Self {
        // Made as quickly as found.
        let cheap = matches!(rule.kind, Kind::Date | Kind::Number | Kind::Postcode | Kind::Id | Kind::Phone);
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

    /// Appends the fake of a value.
    fn fake(&mut self, real: &str, key: Option<&str>, check: &mut Check, out: &mut String) {
        let (hash, start) = (digest(real), out.len());
        // One half says where, the other one is kept.
        let (at, tag) = ((hash >> 32) as usize % PAIRS, hash as u32);
        let pair = self.slots.get(at).map_or(&[][..], |pair| &pair[..]);
        if let Some((slot, fake)) = pair.iter().find_map(|slot| Some((slot, slot.find(tag, real)?))) {
            self.misfits += u64::from(slot.misfit);
            self.hits += 1;
            out.push_str(fake);
            return;
        }
        let misfit = self.maker.make(real, key, out) == Fit::Misfit;
        self.misfits += u64::from(misfit);
        check.saw(self.rule.kind, hash, &out[start..]);
        if self.remembers && self.slots.is_empty() {
            self.slots = vec![[Slot::EMPTY; 2]; PAIRS];
        }
        if let Some(pair) = self.slots.get_mut(at)
            && let Some(new) = Slot::new(tag, real, &out[start..], misfit)
        {
            *pair = [new, pair[0]]; // the older one goes
        }
    }

    /// Gives up remembering where values hardly ever come again.
    fn judge(&mut self, rows: u64) {
        if self.hits < rows / 8 && !self.slots.is_empty() {
            (self.slots, self.remembers) = (Vec::new(), false);
        }
        self.hits = 0;
    }
}

/// Masks the rows of one table. Workers have a clone each and are put together with [`Masker::absorb`].
#[derive(Clone)]
pub struct Masker {
    table: String,
    columns: Vec<Column>,
    places: HashMap<String, usize>,
    others: Option<Rule>,
    key: Key,
    declared: Vec<String>,
    check: Check,
    rows: u64,
    outcomes: Vec<Outcome>,
    /// The fakes of a row, one behind the other, and where each is.
    fakes: String,
    places_of_fakes: Vec<Range<usize>>,
    /// A scrubbed text, before it is one of them.
    scrubbed: String,
}

impl Masker {
    /// For a table whose columns come to light row by row (JSON).
    pub fn new(table: &Table, key: &Key) -> Self {
        let mut masker = Self {
            table: table.name.clone(),
            columns: Vec::new(),
            places: HashMap::new(),
            others: table.others.clone(),
            key: key.clone(),
            declared: table.columns.iter().map(|(name, _)| name.clone()).collect(),
            check: Check::default(),
            rows: 0,
            outcomes: Vec::new(),
            fakes: String::new(),
            places_of_fakes: Vec::new(),
            scrubbed: String::new(),
        };
        for (name, rule) in &table.columns {
            masker.add(name, rule);
        }
        masker
    }

    /// For a table with just these columns, in this order; refuses those without a rule, all at once.
    pub fn for_columns(table: &Table, names: &[String], key: &Key) -> Result<Self, MaskError> {
        let mut masker = Self::new(&Table { columns: Vec::new(), ..table.clone() }, key);
        masker.declared = table.columns.iter().map(|(name, _)| name.clone()).collect();
        let mut missing = Vec::new();
        for name in names {
            let rule = table.columns.iter().find(|(own, _)| own == name).map(|(_, rule)| rule);
            match rule.or(table.others.as_ref()) {
                Some(_) if masker.places.contains_key(name) => {
                    return Err(MaskError::malformed(1, format!("there are two columns '{name}'")));
                }
                Some(rule) => masker.add(name, rule),
                None => missing.push(format!("{}.{name}", table.name)),
            }
        }
        if !missing.is_empty() {
            return Err(MaskError::NoRule { names: missing });
        }
        masker.find_keys()?;
        Ok(masker)
    }

    fn add(&mut self, name: &str, rule: &Rule) {
        self.places.insert(name.to_owned(), self.columns.len());
        self.columns.push(Column::new(name, rule, &self.key));
    }

    /// Finds the key columns of rules that have one.
    pub fn find_keys(&mut self) -> Result<(), MaskError> {
        for at in 0..self.columns.len() {
            let Some(wanted) = self.columns[at].rule.key.clone() else { continue };
            let Some(place) = self.places.get(&wanted) else {
                let column = &self.columns[at].name;
                return Err(MaskError::Rules(format!("{}.{column}: there is no key column '{wanted}'", self.table)));
            };
            self.columns[at].key = Some(*place);
        }
        Ok(())
    }

    /// Where a column is; one that only `"*"` speaks of is added.
    pub fn place(&mut self, name: &str) -> Option<usize> {
        if let Some(place) = self.places.get(name) {
            return Some(*place);
        }
        let rule = self.others.clone()?;
        self.add(name, &rule);
        Some(self.columns.len() - 1)
    }

    /// The rule of the column at a place.
    pub fn kind(&self, place: usize) -> Kind {
        self.columns[place].rule.kind
    }

    /// The rule by name, without `"*"`.
    pub fn kind_of(&self, name: &str) -> Option<Kind> {
        self.places.get(name).map(|place| self.kind(*place))
    }

    /// Masks a row: places and values. Outcomes and fakes are in the order of the cells.
    pub fn mask(&mut self, cells: &[(usize, Option<&str>)]) {
        self.rows += 1;
        if self.rows.is_multiple_of(TRIAL) {
            self.columns.iter_mut().for_each(|column| column.judge(TRIAL));
        }
        self.outcomes.clear();
        self.fakes.clear();
        self.places_of_fakes.clear();
        let mut texts = false;
        for (place, value) in cells {
            let start = self.fakes.len();
            let column = &mut self.columns[*place];
            let empty = value.is_none_or(str::is_empty);
            column.nulls += u64::from(empty);
            column.values += u64::from(!empty);
            let outcome = match (column.rule.kind, value) {
                (Kind::Drop, _) => Outcome::Dropped,
                (Kind::Null, _) => Outcome::Null,
                (Kind::Keep, None) => Outcome::Null,
                (Kind::Keep, Some(value)) => {
                    if column.values <= SAMPLED {
                        for finding in detect::scan(value) {
                            *column.found.entry(finding.what.name()).or_default() += 1;
                        }
                    }
                    Outcome::Kept
                }
                (_, None) if column.rule.keep_null => Outcome::Null,
                (_, Some("")) if column.rule.keep_null => Outcome::Kept,
                (Kind::Constant, _) => {
                    self.fakes.push_str(column.rule.value.as_deref().unwrap_or_default());
                    Outcome::Masked
                }
                (Kind::Text, _) => {
                    texts = true;
                    Outcome::Masked
                }
                (_, value) => {
                    let key = column.key.and_then(|key| cells.iter().find(|(place, _)| *place == key)?.1);
                    column.fake(value.unwrap_or_default(), key, &mut self.check, &mut self.fakes);
                    Outcome::Masked
                }
            };
            self.outcomes.push(outcome);
            self.places_of_fakes.push(start..self.fakes.len());
        }
        if texts {
            self.scrub(cells);
        }
    }

    /// Free text comes last: what the rest of the row was replaced by is replaced in it too.
    fn scrub(&mut self, cells: &[(usize, Option<&str>)]) {
        for at in 0..cells.len() {
            let (place, Some(text)) = cells[at] else { continue };
            if self.outcomes[at] != Outcome::Masked || self.columns[place].rule.kind != Kind::Text {
                continue;
            }
            let mut out = std::mem::take(&mut self.scrubbed);
            out.clear();
            let known: Vec<Known<'_>> = cells
                .iter()
                .zip(&self.places_of_fakes)
                .zip(&self.outcomes)
                .filter(|((_, fake), outcome)| **outcome == Outcome::Masked && !fake.is_empty())
                .filter_map(|(((place, real), fake), _)| {
                    let kind = self.columns[*place].rule.kind;
                    let fake = self.fakes.get(fake.clone())?;
                    (kind.fakes() && kind != Kind::Text).then_some(Known { kind, real: (*real)?, fake })
                })
                .collect();
            let mut found = std::mem::take(&mut self.columns[place].found);
            if let Some(scrubber) = &mut self.columns[place].scrubber {
                scrubber.scrub(text, &known, &mut self.check, &mut found, &mut out);
            }
            drop(known);
            self.columns[place].found = found;
            let start = self.fakes.len();
            self.fakes.push_str(&out);
            self.places_of_fakes[at] = start..self.fakes.len();
            self.scrubbed = out;
        }
    }

    /// What became of a cell of the last row.
    pub fn outcome(&self, cell: usize) -> Outcome {
        self.outcomes.get(cell).copied().unwrap_or(Outcome::Null)
    }

    /// What the value of a cell was replaced by.
    pub fn fake(&self, cell: usize) -> &str {
        self.places_of_fakes.get(cell).and_then(|place| self.fakes.get(place.clone())).unwrap_or_default()
    }

    /// Bytes that are no text: as many others.
    pub fn fake_bytes(&self, place: usize, real: &[u8]) -> Vec<u8> {
        let mut draw = crate::prf::Prf::new(&self.key, self.columns[place].rule.domain()).draw(real);
        real.iter().map(|_| draw.bits() as u8).collect()
    }

    /// Counts a value that did not come through [`Masker::mask`].
    pub fn count_misfit(&mut self, place: usize) {
        self.columns[place].values += 1;
        self.columns[place].misfits += 1;
    }

    /// Adds what a clone counted; both began with nothing.
    pub fn absorb(&mut self, other: Self) {
        self.rows += other.rows;
        self.check.absorb(other.check);
        for theirs in other.columns {
            let Some(place) = self.place(&theirs.name) else { continue };
            let own = &mut self.columns[place];
            own.values += theirs.values;
            own.nulls += theirs.nulls;
            own.misfits += theirs.misfits;
            for (what, count) in theirs.found {
                *own.found.entry(what).or_default() += count;
            }
        }
    }

    /// What was counted, and the check for the report of the whole.
    pub fn finish(self) -> (TableReport, Check) {
        let seen = |column: &&Column| column.values + column.nulls > 0;
        let absent = self.declared.iter().filter(|name| {
            !self.columns.iter().any(|column| column.name == **name && (self.rows == 0 || seen(&column)))
        });
        let report = TableReport {
            name: self.table,
            rows: self.rows,
            absent: absent.cloned().collect(),
            columns: self
                .columns
                .iter()
                .filter(seen)
                .map(|column| ColumnReport {
                    name: column.name.clone(),
                    rule: column.rule.kind,
                    domain: column.rule.domain().to_owned(),
                    values: column.values,
                    nulls: column.nulls,
                    misfits: column.misfits,
                    found: column.found.clone(),
                })
                .collect(),
        };
        (report, self.check)
    }
}
