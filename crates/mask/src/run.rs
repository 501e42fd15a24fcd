//! A file in, a file out.

use std::path::Path;
use std::thread;

use crate::check::Check;
use crate::config::{Config, Table};
use crate::formats::{Format, csv, json, sql, sqlite};
use crate::output::{self, Output};
use crate::report::Report;
use crate::table::Masker;
use crate::{Key, MaskError};

/// What is not in the rules.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The format, if the file's name does not say it.
    pub format: Option<Format>,
    /// The table whose rules are for this file, if its name does not say it.
    pub table: Option<String>,
    /// Fail if a fake is the real value of another row, where that is no matter of chance.
    pub strict: bool,
    /// Threads that mask [default: one for each processor].
    pub threads: Option<usize>,
}

/// Masks `source` into `out`, in the same format. Either all of it is there afterwards, or nothing.
pub fn mask_file(source: &Path, config: &Config, key: &Key, out: &Path) -> Result<Report, MaskError> {
    mask_file_with(source, config, key, out, &Options::default())
}

/// The same, with options.
pub fn mask_file_with(
    source: &Path,
    config: &Config,
    key: &Key,
    out: &Path,
    options: &Options,
) -> Result<Report, MaskError> {
    let format = options.format.map_or_else(|| Format::of(source), Ok)?;
    let threads = options.threads.or_else(|| thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    let output = Output::create(out, Some(source))?;
    let mut report = Report {
        rules_digest: config.digest().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Report::default()
    };
    let read = |error| MaskError::file("read", source)(error);
    let wrote = |error| MaskError::file("write", out)(error);
    let maskers = if format == Format::Sqlite {
        let database = sqlite::open(source)?;
        let (maskers, warnings) = sqlite::mask(&database, output.temporary(), config, key)?;
        report.warnings = warnings;
        (report.source_digest, report.source_bytes) = output::drain(output::open(source)?).map_err(read)?;
        report.output_digest = output::drain(output::open(output.temporary())?).map_err(read)?.0;
        maskers
    } else {
        let mut input = output::open(source)?;
        let mut sink = output.writer()?;
        let maskers = match format {
            Format::Sql => sql::mask(&mut input, &mut sink, config, key)?,
            _ => {
                let table = table(config, source, options)?;
                vec![match format {
                    Format::Json => json::mask(&mut input, &mut sink, table, key)?,
                    Format::Jsonl => json::mask_lines(&mut input, &mut sink, table, key, threads)?,
                    Format::Tsv => csv::mask(&mut input, &mut sink, table, key, Some(b'\t'), threads)?,
                    _ => csv::mask(&mut input, &mut sink, table, key, None, threads)?,
                }]
            }
        };
        (report.source_digest, report.source_bytes) = output::drain(input).map_err(read)?;
        report.output_digest = output::flush(sink).map_err(wrote)?;
        maskers
    };
    finish(&mut report, maskers);
    if options.strict && report.coincidences() > 0 {
        let met = report.check.iter().filter(|one| !one.by_chance && one.coincidences > 0);
        let columns = met.map(|one| one.rule.name().to_owned()).collect();
        return Err(MaskError::Coincidence { count: report.coincidences(), columns });
    }
    output.keep()?;
    Ok(report)
}

/// Puts together what maskers counted.
pub(crate) fn finish(report: &mut Report, maskers: Vec<Masker>) {
    let mut check = Check::default();
    for masker in maskers {
        let (table, seen) = masker.finish();
        check.absorb(seen);
        report.tables.push(table);
    }
    report.check = check.results();
    report.warn();
}

/// The rules for a file of one table: those named, those of its name, or the only ones.
fn table<'a>(config: &'a Config, source: &Path, options: &Options) -> Result<&'a Table, MaskError> {
    if let Some(name) = &options.table {
        return config.table(name).ok_or_else(|| MaskError::NoRule { names: vec![name.clone()] });
    }
    let stem = source.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    config.table(&stem).or_else(|| config.only_table()).ok_or_else(|| {
        MaskError::Rules(format!("there is no [table.{stem}], and more than one other: say which with --table"))
    })
}
