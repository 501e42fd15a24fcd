//! What was found and what was done.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::check::Checked;
use crate::rule::Kind;

/// About one file.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// SHA-256 of what was read, as hexadecimal digits.
    pub source_digest: String,
    /// How much that was.
    pub source_bytes: u64,
    /// SHA-256 of the rules file.
    pub rules_digest: String,
    /// SHA-256 of what was written.
    pub output_digest: String,
    /// The version that did it: another one may make other fakes.
    pub version: String,
    /// By table.
    pub tables: Vec<TableReport>,
    /// Whether fakes are real values of other rows, by kind of rule.
    pub check: Vec<Checked>,
    /// What somebody should look at.
    pub warnings: Vec<String>,
}

/// About one table.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct TableReport {
    /// Its name.
    pub name: String,
    /// How many.
    pub rows: u64,
    /// By column or path.
    pub columns: Vec<ColumnReport>,
    /// Columns that have a rule but are not there.
    pub absent: Vec<String>,
}

/// About one column.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ColumnReport {
    /// Its name.
    pub name: String,
    /// What was done.
    pub rule: Kind,
    /// Under which name values were drawn.
    pub domain: String,
    /// Values that were there.
    pub values: u64,
    /// Rows that had none.
    pub nulls: u64,
    /// Values that were not what the rule is for, and were replaced by something of their shape.
    pub misfits: u64,
    /// What was found in free text, or in a sample of a column that is kept.
    pub found: BTreeMap<&'static str, u64>,
}

impl Report {
    /// Rows of all tables.
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|table| table.rows).sum()
    }

    /// Fakes that are real values of other rows, where that was not to be expected.
    pub fn coincidences(&self) -> u64 {
        self.check.iter().filter(|one| !one.by_chance).map(|one| one.coincidences).sum()
    }

    /// Puts into words what somebody should look at.
    pub(crate) fn warn(&mut self) {
        for table in &self.tables {
            for column in &table.columns {
                let place = format!("{}.{}", table.name, column.name);
                if column.rule == Kind::Keep && !column.found.is_empty() {
                    let found: Vec<String> =
                        column.found.iter().map(|(what, count)| format!("{what} ({count} in a sample)")).collect();
                    self.warnings.push(format!("{place} is kept but holds {}", found.join(", ")));
                }
                if column.misfits > 0 {
                    self.warnings.push(format!(
                        "{} of {} values of {place} are no {}: replaced by others of their shape",
                        column.misfits,
                        column.values,
                        column.rule.name()
                    ));
                }
            }
            if !table.absent.is_empty() {
                self.warnings.push(format!("{} has rules for absent columns: {}", table.name, table.absent.join(", ")));
            }
        }
        for one in self.check.iter().filter(|one| !one.by_chance && one.coincidences > 0) {
            self.warnings.push(format!(
                "{} fakes of rule {} are also real values of other rows; --strict refuses that",
                one.coincidences,
                one.rule.name()
            ));
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for table in &self.tables {
            writeln!(f, "{}: {} rows", table.name, table.rows)?;
            let width = table.columns.iter().map(|column| column.name.chars().count()).max().unwrap_or(0);
            for column in &table.columns {
                write!(f, "  {:<width$}  {:<10} {} values", column.name, column.rule.name(), column.values)?;
                if column.nulls > 0 {
                    write!(f, ", {} empty", column.nulls)?;
                }
                if column.misfits > 0 {
                    write!(f, ", {} misfits", column.misfits)?;
                }
                for (what, count) in &column.found {
                    write!(f, ", {what} {count}")?;
                }
                writeln!(f)?;
            }
        }
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        if !self.check.is_empty() {
            let share = self.check.iter().map(|one| one.share).fold(1.0, f64::min);
            let values: u64 = self.check.iter().map(|one| one.values).sum();
            let extent =
                if share >= 1.0 { "all".to_owned() } else { format!("at least {:.1} % of all", share * 100.0) };
            writeln!(
                f,
                "check: no row keeps a masked value; {} fakes are real values of other rows, of {values} looked at ({extent})",
                self.coincidences()
            )?;
        }
        Ok(())
    }
}
