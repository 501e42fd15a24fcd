//! Rules for tables, read from TOML.
//!
//! ```toml
//! locale = "de"
//!
//! [table.customers]
//! id = { rule = "id", domain = "customer_id", unique = true }
//! email = "email"
//! country = "keep"
//! "contacts[].phone" = "phone"
//!
//! [table.orders]
//! customer = { same_as = "customers.id" }
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use ring::digest;
use serde::Deserialize;

use crate::MaskError;
use crate::key::hex;
use crate::rule::{Kind, Rule};
use crate::words::Words;

/// A rules file is written by hand.
const LARGEST: u64 = 4 << 20;

/// The rules of all tables.
#[derive(Debug, Clone)]
pub struct Config {
    tables: BTreeMap<String, Table>,
    digest: String,
}

/// The rules of one table or file.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Rules by column or path, in the order of the file.
    pub columns: Vec<(String, Rule)>,
    /// What `"*"` says about columns that are not named.
    pub others: Option<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    locale: Option<String>,
    #[serde(default)]
    table: BTreeMap<String, toml::Table>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Kind(Kind),
    SameAs(SameAs),
    Rule(Box<Rule>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SameAs {
    same_as: String,
}

impl Config {
    /// Reads a rules file.
    pub fn load(path: &Path) -> Result<Self, MaskError> {
        let meta = fs::metadata(path).map_err(MaskError::file("read the rules", path))?;
        if meta.len() > LARGEST {
            return Err(MaskError::Rules(format!("'{}' is larger than 4 MiB", path.display())));
        }
        Self::parse(&fs::read_to_string(path).map_err(MaskError::file("read the rules", path))?)
    }

    /// Reads rules.
    pub fn parse(text: &str) -> Result<Self, MaskError> {
        let wrong = |error: toml::de::Error| MaskError::Rules(error.to_string().trim_end().replace('\n', " "));
        let file: File = toml::from_str(text).map_err(wrong)?;
        if let Some(locale) = &file.locale {
            known_locale(locale)?;
        }
        let mut tables = BTreeMap::new();
        let mut copies = Vec::new();
        for (name, written) in file.table {
            let mut table = Table { name: name.clone(), ..Table::default() };
            for (column, value) in written {
                let place = format!("{name}.{column}");
                let written = Written::deserialize(value.clone()).map_err(|_| explain(&place, value))?;
                let mut rule = match written {
                    Written::Kind(kind) => Rule::new(kind),
                    Written::Rule(rule) => *rule,
                    Written::SameAs(same) => {
                        copies.push((name.clone(), table.columns.len(), same.same_as));
                        table.columns.push((column, Rule::new(Kind::Null)));
                        continue;
                    }
                };
                rule.locale = rule.locale.or_else(|| file.locale.clone());
                if let Some(locale) = &rule.locale {
                    known_locale(locale)?;
                }
                rule.check(&place)?;
                if column == "*" {
                    if rule.kind.fakes() {
                        return Err(MaskError::Rules(format!("{place}: '*' can be keep, drop, null or constant")));
                    }
                    table.others = Some(rule);
                } else {
                    table.columns.push((column, rule));
                }
            }
            if table.columns.is_empty() && table.others.is_none() {
                return Err(MaskError::Rules(format!("table '{name}' has no columns")));
            }
            tables.insert(name, table);
        }
        let mut config = Self { tables, digest: hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref()) };
        config.copy(copies)?;
        config.check_domains()?;
        Ok(config)
    }

    /// Fills in what `same_as` refers to.
    fn copy(&mut self, copies: Vec<(String, usize, String)>) -> Result<(), MaskError> {
        let unresolved: Vec<_> = copies.iter().map(|(table, at, _)| (table.clone(), *at)).collect();
        for (table, at, target) in copies {
            let found = target.split_once('.').and_then(|(name, column)| {
                let other = self.tables.get(name)?;
                let place = other.columns.iter().position(|(own, _)| own == column)?;
                (!unresolved.contains(&(name.to_owned(), place))).then(|| (name.to_owned(), place))
            });
            let Some((name, place)) = found else {
                return Err(MaskError::Rules(format!(
                    "{table}: same_as = \"{target}\" names no column with a rule of its own: write table.column"
                )));
            };
            let original = self.tables.get_mut(&name).map(|other| &mut other.columns[place].1);
            let Some(original) = original else { continue };
            // Both must draw under one name of their own.
            original.domain.get_or_insert(target);
            let rule = original.clone();
            if let Some(own) = self.tables.get_mut(&table) {
                own.columns[at].1 = Rule { refers: true, ..rule };
            }
        }
        Ok(())
    }

    /// Values of one domain must get the same fakes: that takes the same rule.
    fn check_domains(&self) -> Result<(), MaskError> {
        let mut known: HashMap<&str, (&Rule, String)> = HashMap::new();
        for table in self.tables.values() {
            for (column, rule) in &table.columns {
                let Some(domain) = &rule.domain else { continue };
                let place = format!("{}.{column}", table.name);
                let (first, first_place) = known.entry(domain).or_insert((rule, place.clone()));
                if (first.kind, first.unique, &first.locale, first.keep_bin, first.days, first.length)
                    != (rule.kind, rule.unique, &rule.locale, rule.keep_bin, rule.days, rule.length)
                {
                    return Err(MaskError::Rules(format!(
                        "{first_place} and {place} share the domain '{domain}' but not the rule, so they would not \
                         match: give both the same, or write same_as"
                    )));
                }
            }
        }
        Ok(())
    }

    /// The rules of a table: by its full name, by its name without the schema, or the only ones there are if it is a file.
    pub fn table(&self, name: &str) -> Option<&Table> {
        let short = name.rsplit('.').next().unwrap_or(name);
        self.tables.get(name).or_else(|| self.tables.get(short))
    }

    /// The only table, if there is one only.
    pub fn only_table(&self) -> Option<&Table> {
        self.tables.values().next().filter(|_| self.tables.len() == 1)
    }

    /// All tables.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.values()
    }

    /// SHA-256 of the rules as they were written.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

fn known_locale(name: &str) -> Result<(), MaskError> {
    match Words::find(name) {
        Some(_) => Ok(()),
        None => Err(MaskError::Rules(format!("locale '{name}' is not known: there are {}", Words::names().join(", ")))),
    }
}

/// What is wrong with one rule, better said than "matches no variant".
fn explain(place: &str, value: toml::Value) -> MaskError {
    let why = match &value {
        toml::Value::String(kind) => format!("there is no rule '{kind}'"),
        toml::Value::Table(table) if table.contains_key("same_as") => "same_as goes without other options".into(),
        toml::Value::Table(table) if !table.contains_key("rule") => "it needs rule = \"…\"".into(),
        _ => Rule::deserialize(value)
            .err()
            .map_or_else(|| "it is not a rule".into(), |error| error.to_string().trim().replace('\n', " ")),
    };
    MaskError::Rules(format!("{place}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Config::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_place() {
        assert!(refused("[table.t]\na = \"emial\"").contains("t.a: there is no rule 'emial'"));
        assert!(refused("[table.t]\na = { rule = \"id\", uniqe = true }").contains("uniqe"));
        assert!(refused("[table.t]\na = { rule = \"constant\" }").contains("needs a 'value'"));
        assert!(refused("[table.t]\na = { same_as = \"u.b\" }").contains("names no column"));
        assert!(refused("[table.t]\na = { rule = \"name\", locale = \"xx\" }").contains("not known"));
        assert!(refused("[table.t]\n\"*\" = \"email\"").contains("'*' can be"));
        assert!(refused("[tables.t]\na = \"id\"").contains("unknown field"));
        let clash = "[table.t]\na = { rule = \"id\", domain = \"d\" }\nb = { rule = \"email\", domain = \"d\" }";
        assert!(refused(clash).contains("share the domain 'd'"));
    }

    #[test]
    fn same_as_copies_the_rule_and_its_domain() {
        let config = Config::parse("[table.a]\nx = { same_as = \"b.id\" }\n[table.b]\nid = { rule = \"id\" }").unwrap();
        let (a, b) = (config.table("a").unwrap(), config.table("public.b").unwrap());
        assert_eq!(a.columns[0].1, Rule { refers: true, ..b.columns[0].1.clone() });
        assert_eq!(a.columns[0].1.domain(), "b.id");
    }
}
