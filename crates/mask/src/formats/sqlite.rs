//! SQLite: a new database with the same schema, filled row by row. Changing the old one would leave real values in its
//! free pages.

use std::path::Path;

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OpenFlags, params_from_iter};

use crate::config::{Config, Table};
use crate::rule::Kind;
use crate::table::{Masker, Outcome};
use crate::{Key, MaskError};

/// One entry of the schema.
struct Thing {
    kind: String,
    name: String,
    sql: String,
}

/// Opens a database to read.
pub fn open(path: &Path) -> Result<Connection, MaskError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(path, flags).map_err(MaskError::database(format!("opening '{}'", path.display())))
}

/// The tables of a database, with their columns.
pub fn tables(source: &Connection) -> Result<Vec<(String, Vec<String>)>, MaskError> {
    let things = schema(source)?;
    let tables = things.iter().filter(|thing| thing.kind == "table");
    tables.map(|thing| Ok((thing.name.clone(), columns(source, &thing.name)?))).collect()
}

fn schema(source: &Connection) -> Result<Vec<Thing>, MaskError> {
    let failed = || MaskError::database("reading the schema");
    // By rowid: in the order in which things were made, so that what others refer to is there.
    let query = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY rowid";
    let mut statement = source.prepare(query).map_err(failed())?;
    let rows = statement
        .query_map([], |row| Ok(Thing { kind: row.get(0)?, name: row.get(1)?, sql: row.get(2)? }))
        .map_err(failed())?;
    rows.collect::<Result<_, _>>().map_err(failed())
}

/// Columns that hold something themselves: generated ones follow from others.
fn columns(source: &Connection, table: &str) -> Result<Vec<String>, MaskError> {
    let failed = || MaskError::database(format!("reading the columns of {table}"));
    let mut statement = source.prepare("SELECT name FROM pragma_table_xinfo(?1) WHERE hidden = 0").map_err(failed())?;
    let rows = statement.query_map([table], |row| row.get(0)).map_err(failed())?;
    rows.collect::<Result<_, _>>().map_err(failed())
}

/// Shows values of the first rows of a table to somebody.
pub fn sample(
    source: &Connection,
    table: &str,
    names: &[String],
    limit: u64,
    mut saw: impl FnMut(usize, &str),
) -> Result<(), MaskError> {
    let failed = || MaskError::database(format!("reading {table}"));
    let list = names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
    let query = format!("SELECT {list} FROM {} LIMIT {limit}", quoted(table));
    let mut statement = source.prepare(&query).map_err(failed())?;
    let mut rows = statement.query([]).map_err(failed())?;
    while let Some(row) = rows.next().map_err(failed())? {
        for at in 0..names.len() {
            if let Ok(Some(value)) = text(row.get_ref(at).map_err(failed())?) {
                saw(at, &value);
            }
        }
    }
    Ok(())
}

/// Masks a database into a new one at `path`. Also tells what to warn of.
pub fn mask(
    source: &Connection,
    path: &Path,
    config: &Config,
    key: &Key,
) -> Result<(Vec<Masker>, Vec<String>), MaskError> {
    let things = schema(source)?;
    if let Some(thing) = things.iter().find(|thing| thing.sql.to_uppercase().starts_with("CREATE VIRTUAL")) {
        return Err(MaskError::Rules(format!(
            "'{}' is a virtual table, whose contents cannot be masked: remove it from a copy of the database first",
            thing.name
        )));
    }
    // Nothing is written before every table is known to have its rules.
    let (mut plans, mut missing) = (Vec::new(), Vec::new());
    for thing in things.iter().filter(|thing| thing.kind == "table") {
        let names = columns(source, &thing.name)?;
        match config
            .table(&thing.name)
            .map(|table| Masker::for_columns(&Table { name: thing.name.clone(), ..table.clone() }, &names, key))
        {
            Some(Ok(masker)) => plans.push((thing, names, masker)),
            Some(Err(MaskError::NoRule { names })) => missing.extend(names),
            Some(Err(other)) => return Err(other),
            None => missing.push(thing.name.clone()),
        }
    }
    if !missing.is_empty() {
        return Err(MaskError::NoRule { names: missing });
    }
    let target = Connection::open(path).map_err(MaskError::database("making the new database"))?;
    prepare(source, &target)?;
    let run = |sql: &str, what: &str| target.execute_batch(sql).map_err(MaskError::database(what.to_owned()));
    run("BEGIN", "beginning")?;
    for (thing, ..) in &plans {
        run(&thing.sql, &format!("making the table {}", thing.name))?;
    }
    let mut maskers = Vec::new();
    for (thing, names, mut masker) in plans {
        copy(source, &target, &thing.name, &names, &mut masker)?;
        maskers.push(masker);
    }
    for thing in things.iter().filter(|thing| thing.kind != "table") {
        run(&thing.sql, &format!("making the {} {}", thing.kind, thing.name))?;
    }
    run("COMMIT", "finishing")?;
    let broken: i64 = target
        .query_row("SELECT count(*) FROM pragma_foreign_key_check", [], |row| row.get(0))
        .map_err(MaskError::database("checking foreign keys"))?;
    let warnings = (broken > 0)
        .then(|| format!("{broken} foreign keys lead nowhere: give both columns the same domain, or write same_as"));
    target.close().map_err(|(_, error)| MaskError::database("finishing")(error))?;
    Ok((maskers, warnings.into_iter().collect()))
}

/// The settings that are part of the file. No journal: the file is thrown away if anything fails.
fn prepare(source: &Connection, target: &Connection) -> Result<(), MaskError> {
    for pragma in ["page_size", "encoding", "auto_vacuum", "user_version", "application_id"] {
        let failed = || MaskError::database(format!("copying {pragma}"));
        let value: Value = source.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0)).map_err(failed())?;
        let value = match value {
            Value::Integer(number) => number.to_string(),
            Value::Text(text) => format!("'{}'", text.replace('\'', "''")),
            _ => continue,
        };
        target.execute_batch(&format!("PRAGMA {pragma} = {value}")).map_err(failed())?;
    }
    target
        .execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA foreign_keys = OFF;")
        .map_err(MaskError::database("preparing the new database"))
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn copy(
    source: &Connection,
    target: &Connection,
    table: &str,
    names: &[String],
    masker: &mut Masker,
) -> Result<(), MaskError> {
    let stays: Vec<usize> = (0..names.len()).filter(|at| masker.kind(*at) != Kind::Drop).collect();
    if stays.is_empty() {
        return Ok(());
    }
    let list =
        |places: &mut dyn Iterator<Item = usize>| places.map(|at| quoted(&names[at])).collect::<Vec<_>>().join(", ");
    let select = format!("SELECT {} FROM {}", list(&mut (0..names.len())), quoted(table));
    let insert = format!(
        "INSERT INTO {} ({}) VALUES ({})",
        quoted(table),
        list(&mut stays.iter().copied()),
        vec!["?"; stays.len()].join(", ")
    );
    let failed = || MaskError::database(format!("reading {table}"));
    let mut read = source.prepare(&select).map_err(failed())?;
    let mut write = target.prepare(&insert).map_err(MaskError::database(format!("writing {table}")))?;
    let mut rows = read.query([]).map_err(failed())?;
    let mut number = 0;
    while let Some(row) = rows.next().map_err(failed())? {
        number += 1;
        let mut values = Vec::with_capacity(names.len());
        for at in 0..names.len() {
            values.push(row.get_ref(at).map_err(failed())?);
        }
        let texts = values.iter().map(|value| text(*value)).collect::<Result<Vec<_>, _>>();
        let texts = texts.map_err(|why| MaskError::malformed(number, format!("{table}: {why}")))?;
        let cells: Vec<_> = texts.iter().enumerate().map(|(at, text)| (at, text.as_deref())).collect();
        masker.mask(&cells);
        let masked: Vec<Value> = stays.iter().map(|at| masked(masker, *at, values[*at])).collect();
        write.execute(params_from_iter(masked)).map_err(MaskError::database(format!(
            "writing row {number} of {table} (a UNIQUE column needs unique = true, a CHECK a rule that suits it)"
        )))?;
    }
    Ok(())
}

fn text(value: ValueRef<'_>) -> Result<Option<String>, &'static str> {
    Ok(match value {
        ValueRef::Null | ValueRef::Blob(_) => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(bytes) => Some(std::str::from_utf8(bytes).map_err(|_| "text that is not UTF-8")?.to_owned()),
    })
}

fn masked(masker: &mut Masker, at: usize, value: ValueRef<'_>) -> Value {
    if let ValueRef::Blob(bytes) = value {
        return match masker.kind(at) {
            Kind::Keep => Value::Blob(bytes.to_vec()),
            Kind::Null => Value::Null,
            _ => {
                masker.count_misfit(at);
                Value::Blob(masker.fake_bytes(at, bytes))
            }
        };
    }
    match masker.outcome(at) {
        Outcome::Kept => value.into(),
        Outcome::Null | Outcome::Dropped => Value::Null,
        Outcome::Masked => {
            let fake = masker.fake(at);
            let typed = match value {
                ValueRef::Integer(_) => fake.parse().ok().map(Value::Integer),
                ValueRef::Real(_) => fake.parse().ok().map(Value::Real),
                _ => None,
            };
            typed.unwrap_or_else(|| Value::Text(fake.to_owned()))
        }
    }
}
