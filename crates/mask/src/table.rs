//! The rows of one table.

use std::collections::HashMap;
use std::ops::Range;

use crate::check::Check;
use crate::column::{Column, Fakes};
use crate::config::Table;
use crate::report::{ColumnReport, TableReport};
use crate::rule::{Kind, Rule};
use crate::text::Known;
use crate::{Key, MaskError};

/// After so many rows it is seen how many lookups of remembered fakes were good for something.
const TRIAL: u64 = 1 << 13;

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
    /// What became of the rows of a batch, for each column.
    batch: Vec<Fakes>,
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
            batch: Vec::new(),
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
            let outcome = column.spare(*value).unwrap_or_else(|| {
                if column.rule.kind == Kind::Text {
                    texts = true;
                } else {
                    let key = column.key.and_then(|key| cells.iter().find(|(place, _)| *place == key)?.1);
                    column.fake(value.unwrap_or_default(), key, &mut self.check, &mut self.fakes);
                }
                Outcome::Masked
            });
            self.outcomes.push(outcome);
            self.places_of_fakes.push(start..self.fakes.len());
        }
        if texts {
            self.scrub(cells);
        }
    }

    /// Masks rows that have a cell for each column, one column after the other: what a column needs stays at hand.
    pub fn mask_rows(&mut self, cells: &[&str]) {
        let count = self.columns.len();
        self.batch.resize_with(count, Fakes::default);
        if self.columns.iter().any(|column| column.rule.kind == Kind::Text) {
            return self.mask_rows_with_texts(cells);
        }
        let before = self.rows;
        self.rows += (cells.len() / count.max(1)) as u64;
        if before / TRIAL != self.rows / TRIAL {
            self.columns.iter_mut().for_each(|column| column.judge(TRIAL));
        }
        for (place, (column, fakes)) in self.columns.iter_mut().zip(&mut self.batch).enumerate() {
            column.fakes(cells, count, place, &mut self.check, fakes);
        }
    }

    /// A text needs the rest of its row.
    fn mask_rows_with_texts(&mut self, cells: &[&str]) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.iter_mut().for_each(Fakes::clear);
        let mut row = Vec::with_capacity(batch.len());
        for cells in cells.chunks_exact(batch.len().max(1)) {
            row.clear();
            row.extend(cells.iter().enumerate().map(|(place, cell)| (place, Some(*cell))));
            self.mask(&row);
            batch.iter_mut().enumerate().for_each(|(at, fakes)| fakes.push(self.outcome(at), self.fake(at)));
        }
        self.batch = batch;
    }

    /// What became of the last batch, column by column.
    pub(crate) fn batch(&self) -> &[Fakes] {
        &self.batch
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
