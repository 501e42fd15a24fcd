//! The first rows of a file.

use std::io::BufRead;
use std::path::Path;

use super::column::{Column, ROWS};
use crate::MaskError;
use crate::formats::{Format, csv, json, sql, sqlite};
use crate::output;

/// Columns by table, in the order in which they were seen.
type Tables = Vec<(String, Vec<Column>)>;

pub fn read(source: &Path, format: Format) -> Result<Tables, MaskError> {
    let stem = source.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    match format {
        Format::Csv => Ok(vec![(stem, rows(source, None)?)]),
        Format::Tsv => Ok(vec![(stem, rows(source, Some(b'\t'))?)]),
        Format::Json => {
            let mut columns = Vec::new();
            let mut left = ROWS;
            json::each(output::open(source)?, |record, _| {
                json::leaves(&record, &mut String::new(), &mut |path, value| saw(&mut columns, path, value.as_deref()));
                left = left.saturating_sub(1);
                Ok(left > 0)
            })?;
            Ok(vec![(stem, columns)])
        }
        Format::Jsonl => {
            let mut columns = Vec::new();
            for (number, line) in (1..).zip(output::open(source)?.lines().take(ROWS as usize)) {
                let line = line.map_err(|error| MaskError::malformed(number, error.to_string()))?;
                if line.trim().is_empty() {
                    continue;
                }
                let record: json::Node =
                    serde_json::from_str(&line).map_err(|_| MaskError::malformed(number, "this line is not JSON"))?;
                json::leaves(&record, &mut String::new(), &mut |path, value| saw(&mut columns, path, value.as_deref()));
            }
            Ok(vec![(stem, columns)])
        }
        Format::Sqlite => database(source),
        Format::Sql => dump(source),
    }
}

fn saw(columns: &mut Vec<Column>, name: &str, value: Option<&str>) {
    let place = columns.iter().position(|column| column.name == name).unwrap_or_else(|| {
        columns.push(Column::new(name));
        columns.len() - 1
    });
    if let Some(value) = value {
        columns[place].saw(value);
    }
}

fn rows(source: &Path, delimiter: Option<u8>) -> Result<Vec<Column>, MaskError> {
    let mut splitter = csv::Splitter::new(output::open(source)?, delimiter)?;
    let header = splitter.header()?;
    let delimiter = splitter.delimiter();
    let names = csv::columns(&header, delimiter)?;
    let mut columns: Vec<Column> = names.iter().map(|name| Column::new(name)).collect();
    let Some(piece) = splitter.piece()? else { return Ok(columns) };
    let mut reader = ::csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .delimiter(delimiter)
        .from_reader(&piece.bytes[..]);
    for (number, record) in (piece.line..).zip(reader.records().take(ROWS as usize)) {
        let record = record.map_err(|error| MaskError::malformed(number, error.to_string()))?;
        columns.iter_mut().zip(&record).for_each(|(column, value)| column.saw(value));
    }
    Ok(columns)
}

fn database(source: &Path) -> Result<Tables, MaskError> {
    let connection = sqlite::open(source)?;
    let mut tables = Vec::new();
    for (table, names) in sqlite::tables(&connection)? {
        let mut columns: Vec<Column> = names.iter().map(|name| Column::new(name)).collect();
        sqlite::sample(&connection, &table, &names, ROWS, |at, value| columns[at].saw(value))?;
        tables.push((table, columns));
    }
    Ok(tables)
}

fn dump(source: &Path) -> Result<Tables, MaskError> {
    let mut tables: Tables = Vec::new();
    let mut observer = |table: &str, names: &[String], row: &[(usize, Option<&str>)]| {
        let place = tables.iter().position(|(name, _)| name == table).unwrap_or_else(|| {
            tables.push((table.to_owned(), names.iter().map(|name| Column::new(name)).collect()));
            tables.len() - 1
        });
        for (column, (_, value)) in names.iter().zip(row) {
            saw(&mut tables[place].1, column, *value);
        }
    };
    sql::observe(output::open(source)?, &mut observer)?;
    Ok(tables)
}
