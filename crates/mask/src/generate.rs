//! Rows from nothing but rules: the same for the same seed.

use std::io::Write;
use std::path::Path;

use fake::locales::{Data, EN};

use crate::config::{Config, Table};
use crate::fakes::{Maker, time};
use crate::formats::Format;
use crate::formats::json::Node;
use crate::key::hex;
use crate::output::{self, Output, Sink};
use crate::prf::{Draw, Prf};
use crate::report::{Report, TableReport};
use crate::rule::{Kind, Rule};
use crate::words::Words;
use crate::{Key, MaskError};

/// Makes `rows` rows of a table, or of every table into files of their names in the folder `out`.
pub fn generate(
    config: &Config,
    table: Option<&str>,
    rows: u64,
    seed: u64,
    out: &Path,
    format: Option<Format>,
) -> Result<Report, MaskError> {
    let mut report = Report {
        rules_digest: config.digest().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Report::default()
    };
    let one = match table {
        Some(name) => Some(config.table(name).ok_or_else(|| MaskError::NoRule { names: vec![name.to_owned()] })?),
        None => config.only_table(),
    };
    if let Some(table) = one {
        let format = format.map_or_else(|| Format::of(out), Ok)?;
        report.output_digest = write_table(table, rows, seed, out, format)?;
        report.tables.push(counted(table, rows));
        return Ok(report);
    }
    if !out.is_dir() {
        return Err(MaskError::Rules(format!(
            "there are several tables: --out must be a folder that exists, or say which with --table ('{}' is no folder)",
            out.display()
        )));
    }
    let format = format.unwrap_or(Format::Csv);
    let extension = match format {
        Format::Tsv => "tsv",
        Format::Json => "json",
        Format::Jsonl => "jsonl",
        _ => "csv",
    };
    for table in config.tables() {
        write_table(table, rows, seed, &out.join(format!("{}.{extension}", table.name)), format)?;
        report.tables.push(counted(table, rows));
    }
    Ok(report)
}

fn counted(table: &Table, rows: u64) -> TableReport {
    TableReport { name: table.name.clone(), rows, ..TableReport::default() }
}

/// Makes the values of one column.
struct Source<'a> {
    name: &'a str,
    rule: &'a Rule,
    prf: Prf,
    maker: Maker,
    words: &'static Words,
    /// As many rows as there are: references pick one of them.
    rows: u64,
}

fn write_table(table: &Table, rows: u64, seed: u64, path: &Path, format: Format) -> Result<String, MaskError> {
    let key = Key::from_seed(seed);
    let mut sources = Vec::new();
    for (name, rule) in table.columns.iter().filter(|(_, rule)| rule.kind != Kind::Drop) {
        check(table, name, rule, rows)?;
        sources.push(Source {
            name,
            rule,
            prf: Prf::new(&key, &format!("synthetic/{}/{name}", table.name)),
            maker: Maker::new(rule, &key),
            words: rule.locale.as_deref().and_then(Words::find).unwrap_or_else(Words::default_language),
            rows,
        });
    }
    let output = Output::create(path, None)?;
    let mut sink = output.writer()?;
    match format {
        Format::Csv => write_csv(&mut sources, rows, b',', &mut sink),
        Format::Tsv => write_csv(&mut sources, rows, b'\t', &mut sink),
        Format::Json | Format::Jsonl => write_json(&mut sources, rows, format == Format::Json, &mut sink),
        Format::Sqlite | Format::Sql => {
            Err(std::io::Error::other("rows from nothing are CSV, TSV, JSON or JSON Lines"))
        }
    }
    .map_err(MaskError::file("write", path))?;
    let digest = output::flush(sink).map_err(MaskError::file("write", path))?;
    output.keep()?;
    Ok(digest)
}

fn write_csv(sources: &mut [Source<'_>], rows: u64, delimiter: u8, sink: &mut Sink) -> std::io::Result<()> {
    let mut writer = csv::WriterBuilder::new().delimiter(delimiter).from_writer(sink);
    writer.write_record(sources.iter().map(|source| source.name))?;
    for row in 0..rows {
        writer.write_record(sources.iter_mut().map(|source| source.value(row).unwrap_or_default()))?;
    }
    writer.flush()
}

fn write_json(sources: &mut [Source<'_>], rows: u64, list: bool, sink: &mut Sink) -> std::io::Result<()> {
    for row in 0..rows {
        let mut record = Node::Map(Vec::new());
        for source in sources.iter_mut() {
            let value = source.value(row);
            let number = || value.as_deref().filter(|_| source.rule.kind == Kind::Number)?.parse().ok();
            let node = number().map(Node::Number).or_else(|| value.clone().map(Node::Text)).unwrap_or(Node::Null);
            put(&mut record, source.name, node);
        }
        if list {
            sink.write_all(if row == 0 { b"[\n" } else { b",\n" })?;
        }
        serde_json::to_writer(&mut *sink, &record)?;
        if !list {
            sink.write_all(b"\n")?;
        }
    }
    match (list, rows) {
        (false, _) => Ok(()),
        (true, 0) => sink.write_all(b"[]\n"),
        (true, _) => sink.write_all(b"\n]\n"),
    }
}

/// Puts a value where a path says; lists get one element.
fn put(node: &mut Node, path: &str, value: Node) {
    if let Node::List(list) = node {
        if list.is_empty() {
            list.push(Node::Map(Vec::new()));
        }
        if let Some(first) = list.first_mut() {
            put(first, path, value);
        }
        return;
    }
    let Node::Map(members) = node else { return };
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let (name, list) = first.strip_suffix("[]").map_or((first, false), |name| (name, true));
    let Some(rest) = rest else {
        members.push((name.to_owned(), if list { Node::List(vec![value]) } else { value }));
        return;
    };
    let place = members.iter().position(|(own, _)| own == name).unwrap_or_else(|| {
        members.push((name.to_owned(), if list { Node::List(Vec::new()) } else { Node::Map(Vec::new()) }));
        members.len() - 1
    });
    put(&mut members[place].1, rest, value);
}

/// Refuses what could not be made.
fn check(table: &Table, name: &str, rule: &Rule, rows: u64) -> Result<(), MaskError> {
    let wrong = |why: String| Err(MaskError::Rules(format!("{}.{name}: {why}", table.name)));
    if rule.kind == Kind::Keep
        && rule.values.is_empty()
        && rule.pattern.is_none()
        && rule.min.is_none()
        && rule.from.is_none()
    {
        return wrong(
            "to make rows from nothing, a kept column needs 'values', 'pattern', 'min' and 'max', or 'from' and 'to'"
                .into(),
        );
    }
    if rule.unique && !rule.values.is_empty() && (rule.values.len() as u64) < rows {
        return wrong(format!("there are not {rows} different 'values'"));
    }
    if let Some(pattern) = rule.pattern.as_deref().filter(|_| rule.unique) {
        let size = pattern.chars().fold(1u64, |size, c| size.saturating_mul(places(c)));
        if size < rows {
            return wrong(format!("the pattern has room for {size} different values, not for {rows}"));
        }
    }
    for date in [&rule.from, &rule.to].into_iter().flatten() {
        if time::day(date).is_none() {
            return wrong(format!("'{date}' is not a date: write YYYY-MM-DD"));
        }
    }
    Ok(())
}

fn places(c: char) -> u64 {
    match c {
        '#' => 10,
        '?' => 26,
        _ => 1,
    }
}

impl Source<'_> {
    /// The value of a row.
    fn value(&mut self, row: u64) -> Option<String> {
        let rule = self.rule;
        let mut draw = self.prf.draw(&row.to_le_bytes());
        if rule.null_rate.is_some_and(|rate| draw.fraction() < rate) {
            return None;
        }
        // What is unique counts; what refers to it (`same_as`) picks.
        let index = match (rule.unique, rule.refers) {
            (true, false) => row,
            (_, true) => draw.below(self.rows.max(1)),
            _ => draw.bits() >> 1,
        };
        if !rule.values.is_empty() {
            return rule.values.get((index % rule.values.len() as u64) as usize).cloned();
        }
        if let Some(pattern) = &rule.pattern {
            let real = fill(pattern, index);
            return Some(if rule.kind == Kind::Keep { real } else { self.masked(&real) });
        }
        let real = match rule.kind {
            Kind::Null => return None,
            Kind::Constant => return rule.value.clone(),
            Kind::Date => return Some(self.date(&mut draw)),
            Kind::Number | Kind::Keep if rule.from.is_some() => return Some(self.date(&mut draw)),
            Kind::Number | Kind::Keep => return Some(self.number(&mut draw)),
            Kind::Text => return Some(lorem(&mut draw)),
            Kind::FirstName | Kind::LastName | Kind::Name => self.person(&mut draw),
            Kind::Email => format!("{index}@{}.example", draw.below(40)),
            Kind::Phone => fill("+1 ###-###-####", index),
            Kind::Card => with_check(&fill("4##############", index)),
            Kind::Iban => iban(&fill("##################", index)),
            Kind::Ip => std::net::Ipv4Addr::from(index as u32).to_string(),
            Kind::Uuid => {
                let digits =
                    hex(&[self.prf.draw(&index.to_le_bytes()).bits().to_le_bytes(), index.to_le_bytes()].concat());
                format!(
                    "{}-{}-4{}-a{}-{}",
                    &digits[..8],
                    &digits[8..12],
                    &digits[13..16],
                    &digits[17..20],
                    &digits[20..]
                )
            }
            Kind::Url => format!("https://{}.example/{index}", draw.below(40)),
            Kind::Street => format!("{} Row {index} Street", 1 + draw.below(199)),
            Kind::Address => format!("{} Row {index} Street, {} Town", 1 + draw.below(199), fill("#####", draw.bits())),
            Kind::Postcode => fill("#####", index),
            _ => fill("########", index),
        };
        Some(match rule.kind {
            Kind::FirstName | Kind::LastName | Kind::Name => real,
            Kind::City | Kind::Company | Kind::Username => self.masked(&format!("row {real}")),
            _ => self.masked(&real),
        })
    }

    fn masked(&mut self, real: &str) -> String {
        let mut out = String::new();
        self.maker.make(real, None, &mut out);
        out
    }

    fn person(&self, draw: &mut Draw) -> String {
        let mut out = String::new();
        if self.rule.kind != Kind::LastName {
            self.words.first.invent(draw, &mut out);
        }
        if self.rule.kind == Kind::Name {
            out.push(' ');
        }
        if self.rule.kind != Kind::FirstName {
            self.words.last.invent(draw, &mut out);
        }
        if self.rule.unique {
            out.push(' ');
            draw.token(13, &mut out);
        }
        out
    }

    fn date(&self, draw: &mut Draw) -> String {
        let day = |text: &Option<String>, default: i64| text.as_deref().and_then(time::day).unwrap_or(default);
        let (from, to) = (day(&self.rule.from, 0), day(&self.rule.to, 20_000));
        time::iso(from + draw.below((to - from).max(0) as u64 + 1) as i64)
    }

    fn number(&self, draw: &mut Draw) -> String {
        let (min, max) = (self.rule.min.unwrap_or(0.0), self.rule.max.unwrap_or(1000.0));
        if min.fract() == 0.0 && max.fract() == 0.0 {
            return (min as i64 + draw.below((max - min).max(0.0) as u64 + 1) as i64).to_string();
        }
        format!("{:.2}", min + (max - min) * draw.fraction())
    }
}

/// A pattern with its places filled by the digits of a number.
fn fill(pattern: &str, mut index: u64) -> String {
    let mut reversed: Vec<char> = Vec::with_capacity(pattern.len());
    for c in pattern.chars().rev() {
        let count = places(c);
        reversed.push(match c {
            '#' => char::from(b'0' + (index % count) as u8),
            '?' => char::from(b'A' + (index % count) as u8),
            other => other,
        });
        index /= count;
    }
    reversed.into_iter().rev().collect()
}

/// A card's number with the digit that checks it.
fn with_check(digits: &str) -> String {
    let all = (0..10).map(|check| format!("{digits}{check}"));
    all.into_iter().find(|number| crate::fakes::luhn_is_valid(number)).unwrap_or_default()
}

/// A German account with the digits that check it.
fn iban(account: &str) -> String {
    let all = (2..99).map(|check| format!("DE{check:02}{account}"));
    all.into_iter().find(|number| crate::fakes::iban_is_valid(number)).unwrap_or_default()
}

fn lorem(draw: &mut Draw) -> String {
    let count = 4 + draw.below(12);
    let mut words: Vec<&str> = Vec::new();
    for _ in 0..count {
        words.extend(draw.pick(EN::LOREM_WORD));
    }
    let mut text = words.join(" ");
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    text.push('.');
    text
}
