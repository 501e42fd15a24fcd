//! CSV, split at ends of records and masked side by side.

mod splitter;

pub use splitter::Splitter;

use std::io::{Read, Write};

use csv::{ReaderBuilder, StringRecord, Terminator, Writer, WriterBuilder};
use memchr::memchr2_iter;

use super::pipeline::{self, Piece};
use crate::MaskError;
use crate::column::Fakes;
use crate::config::Table;
use crate::table::{Masker, Outcome};
use crate::{Key, rule::Kind};

/// Rows that are masked together: so few that they stay in the processor's cache.
const BATCH: usize = 256;

/// Masks a stream.
pub fn mask(
    source: impl Read + Send,
    sink: &mut impl Write,
    table: &Table,
    key: &Key,
    delimiter: Option<u8>,
    threads: usize,
) -> Result<Masker, MaskError> {
    let mut splitter = Splitter::new(source, delimiter)?;
    let header = splitter.header()?;
    let delimiter = splitter.delimiter();
    let names = columns(&header, delimiter)?;
    let mut masker = Masker::for_columns(table, &names, key)?;
    let kept: Vec<&String> =
        names.iter().enumerate().filter(|(at, _)| masker.kind(*at) != Kind::Drop).map(|(_, name)| name).collect();
    if kept.is_empty() {
        return Err(MaskError::Rules(format!("every column of {} is dropped: nothing would be left", table.name)));
    }
    let windows = header.ends_with(b"\r\n");
    let failed = |error: std::io::Error| MaskError::malformed(0, format!("cannot write: {error}"));
    let mut first = writer(delimiter, windows, 256);
    first.write_record(&kept).map_err(|error| MaskError::malformed(1, error.to_string()))?;
    sink.write_all(&first.into_inner().map_err(|error| MaskError::malformed(1, error.to_string()))?).map_err(failed)?;
    let workers = vec![masker.clone(); threads.max(1)];
    let work = |masker: &mut Masker, piece: Piece| work(masker, &piece, delimiter, names.len(), windows);
    let done = pipeline::run(workers, || splitter.piece(), work, |bytes| sink.write_all(bytes).map_err(failed))?;
    done.into_iter().for_each(|one| masker.absorb(one));
    Ok(masker)
}

/// The names in a header.
pub fn columns(header: &[u8], delimiter: u8) -> Result<Vec<String>, MaskError> {
    let mut record = StringRecord::new();
    let mut reader = ReaderBuilder::new().has_headers(false).delimiter(delimiter).from_reader(header);
    reader.read_record(&mut record).map_err(|error| MaskError::malformed(1, error.to_string()))?;
    if record.is_empty() {
        return Err(MaskError::malformed(1, "the file is empty: the first line must name the columns"));
    }
    Ok(record.iter().map(str::to_owned).collect())
}

fn writer(delimiter: u8, windows: bool, size: usize) -> Writer<Vec<u8>> {
    let end = if windows { Terminator::CRLF } else { Terminator::Any(b'\n') };
    WriterBuilder::new().delimiter(delimiter).terminator(end).flexible(true).from_writer(Vec::with_capacity(size))
}

fn work(masker: &mut Masker, piece: &Piece, delimiter: u8, count: usize, windows: bool) -> Result<Vec<u8>, MaskError> {
    match plain(&piece.bytes) {
        true => work_plain(masker, piece, delimiter, count, windows),
        false => work_quoted(masker, piece, delimiter, count, windows),
    }
}

/// Whether there is nothing in it that only a parser understands: no quote, and no CR but before LF.
fn plain(bytes: &[u8]) -> bool {
    memchr2_iter(b'"', b'\r', bytes).all(|at| bytes[at] == b'\r' && bytes.get(at + 1) == Some(&b'\n'))
}

/// Records of a piece without quotes: as good as the parser's, at a fraction of its price.
fn work_plain(
    masker: &mut Masker,
    piece: &Piece,
    delimiter: u8,
    count: usize,
    windows: bool,
) -> Result<Vec<u8>, MaskError> {
    let text = std::str::from_utf8(&piece.bytes).map_err(|error| {
        let before = &piece.bytes[..error.valid_up_to()];
        let line = piece.line + memchr::memchr_iter(b'\n', before).count() as u64;
        MaskError::malformed(line, "not UTF-8: convert the file first")
    })?;
    let mut out = Vec::with_capacity(text.len() + text.len() / 4);
    let mut cells: Vec<&str> = Vec::with_capacity(count * BATCH);
    let (mut line, mut start) = (piece.line, 0);
    while start < text.len() {
        let end = memchr::memchr(b'\n', &text.as_bytes()[start..]).map_or(text.len(), |end| start + end);
        let record = &text[start..end];
        let record = record.strip_suffix('\r').unwrap_or(record);
        start = end + 1;
        if !record.is_empty() {
            let (before, mut from) = (cells.len(), 0);
            for at in memchr::memchr_iter(delimiter, record.as_bytes()).chain([record.len()]) {
                cells.push(&record[from..at]);
                from = at + 1;
            }
            if cells.len() - before != count {
                let why = format!("{} fields, but the header has {count}", cells.len() - before);
                return Err(MaskError::malformed(line, why));
            }
            if cells.len() >= count * BATCH {
                write_batch(masker, &cells, count, delimiter, windows, &mut out);
                cells.clear();
            }
        }
        line += 1;
    }
    write_batch(masker, &cells, count, delimiter, windows, &mut out);
    Ok(out)
}

/// Masks rows and writes them.
fn write_batch(masker: &mut Masker, cells: &[&str], count: usize, delimiter: u8, windows: bool, out: &mut Vec<u8>) {
    masker.mask_rows(cells);
    // Few columns have anything that needs quotes, and that is seen sooner in all of it.
    let special =
        |text: &[u8]| memchr::memchr3(b'"', b'\n', b'\r', text).is_some() || memchr::memchr(delimiter, text).is_some();
    let columns: Vec<(&Fakes, bool)> =
        masker.batch().iter().map(|fakes| (fakes, special(fakes.text().as_bytes()))).collect();
    for (row, cells) in cells.chunks_exact(count).enumerate() {
        let begin = out.len();
        let mut written = 0;
        for (field, (fakes, special)) in cells.iter().zip(&columns) {
            let (outcome, fake) = fakes.get(row);
            if outcome == Outcome::Dropped {
                continue;
            }
            if written > 0 {
                out.push(delimiter);
            }
            written += 1;
            match outcome {
                Outcome::Masked if *special => push_field(fake, delimiter, out),
                Outcome::Masked => out.extend_from_slice(fake),
                // It needed no quotes before.
                Outcome::Kept => out.extend_from_slice(field.as_bytes()),
                Outcome::Null | Outcome::Dropped => {}
            }
        }
        if written == 1 && out.len() == begin {
            out.extend_from_slice(b"\"\""); // else it would be no record
        }
        out.extend_from_slice(if windows { b"\r\n" } else { b"\n" });
    }
}

/// A field, in quotes if it needs them.
fn push_field(bytes: &[u8], delimiter: u8, out: &mut Vec<u8>) {
    // All of them at once rather than one until one is special: hardly any is.
    let special = |byte: u8| byte == delimiter || byte == b'"' || byte == b'\n' || byte == b'\r';
    if !bytes.iter().fold(false, |any, byte| any | special(*byte)) {
        return out.extend_from_slice(bytes);
    }
    out.push(b'"');
    for byte in bytes {
        if *byte == b'"' {
            out.push(b'"');
        }
        out.push(*byte);
    }
    out.push(b'"');
}

fn work_quoted(
    masker: &mut Masker,
    piece: &Piece,
    delimiter: u8,
    count: usize,
    windows: bool,
) -> Result<Vec<u8>, MaskError> {
    let mut reader =
        ReaderBuilder::new().has_headers(false).flexible(true).delimiter(delimiter).from_reader(&piece.bytes[..]);
    let mut writer = writer(delimiter, windows, piece.bytes.len() + piece.bytes.len() / 4);
    let mut record = StringRecord::new();
    loop {
        let line = piece.line + reader.position().line() - 1;
        let wrong = |why: String| MaskError::malformed(line, why);
        match reader.read_record(&mut record) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                return Err(wrong(match error.kind() {
                    csv::ErrorKind::Utf8 { .. } => "not UTF-8: convert the file first".to_owned(),
                    _ => error.to_string(),
                }));
            }
        }
        if record.len() != count {
            return Err(wrong(format!("{} fields, but the header has {count}", record.len())));
        }
        let cells: Vec<_> = record.iter().enumerate().map(|(at, field)| (at, Some(field))).collect();
        masker.mask(&cells);
        for at in 0..count {
            let written = match masker.outcome(at) {
                Outcome::Dropped => continue,
                Outcome::Null => writer.write_field(""),
                Outcome::Kept => writer.write_field(&record[at]),
                Outcome::Masked => writer.write_field(masker.fake(at)),
            };
            written.map_err(|error| wrong(error.to_string()))?;
        }
        writer.write_record(None::<&[u8]>).map_err(|error| wrong(error.to_string()))?;
    }
    writer.into_inner().map_err(|error| MaskError::malformed(piece.line, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_without_quotes_are_read_as_the_parser_reads_them() {
        let rules =
            "[table.t]\na = \"keep\"\nb = \"email\"\nc = { rule = \"constant\", value = \"x;\\\"y\" }\nd = \"drop\"\n";
        let config = crate::Config::parse(rules).unwrap();
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        let masker = Masker::for_columns(config.table("t").unwrap(), &names, &Key::from_seed(3)).unwrap();
        for (text, windows) in [
            ("1;x@y.test;2;3\n;;;\n\n4;plain;5;6", false),
            ("ü;a@b.test;2;3\r\n\r\n\r\n;;;\r\n", true),
            ("1;2;3\n", false),
            ("1;x;2;3\n1;2;3;4;5\n", false),
            ("", false),
        ] {
            let piece = Piece { bytes: text.as_bytes().to_vec(), line: 2 };
            assert!(plain(&piece.bytes));
            let one = work_plain(&mut masker.clone(), &piece, b';', 4, windows).map_err(|error| error.to_string());
            let two = work_quoted(&mut masker.clone(), &piece, b';', 4, windows).map_err(|error| error.to_string());
            assert_eq!(one, two, "{text:?}");
        }
        assert!(!plain(b"a,\"b\"\n") && !plain(b"a\rb\n") && !plain(b"a\r"));
        let one = Masker::for_columns(config.table("t").unwrap(), &names[..1], &Key::from_seed(3)).unwrap();
        let piece = Piece { bytes: b"x\n\ny\n".to_vec(), line: 2 };
        let (mut first, mut second) = (one.clone(), one);
        assert_eq!(
            work_plain(&mut first, &piece, b';', 1, false).unwrap(),
            work_quoted(&mut second, &piece, b';', 1, false).unwrap()
        );
    }

    #[test]
    fn rows_that_are_masked_together_are_masked_as_one_by_one() {
        let kinds = "id first_name last_name name email phone card iban street city postcode address company date number uuid ip \
                     url username hash null keep constant";
        let (mut rules, mut names) = ("[table.t]\n".to_owned(), Vec::new());
        for kind in kinds.split_whitespace() {
            for (suffix, options) in [("", ""), ("_u", ", unique = true"), ("_k", ", keep_null = false")] {
                let more = match (kind, suffix) {
                    ("constant", _) => ", value = \"a;\\\"b\"",
                    ("date", "_k") => ", key = \"id\"",
                    ("number", "_k") => ", jitter = 0.3",
                    _ => "",
                };
                let options = if matches!(kind, "null" | "keep" | "constant") { "" } else { options };
                let domain = if options.is_empty() { String::new() } else { format!(", domain = \"{kind}{suffix}\"") };
                rules.push_str(&format!("{kind}{suffix} = {{ rule = \"{kind}\"{options}{domain}{more} }}\n"));
                names.push(format!("{kind}{suffix}"));
            }
        }
        let values = [
            "4111 1111 1111 1111",
            "DE89 3704 0044 0532 0130 00",
            "a@b.test",
            "Ann",
            "Ann Lee",
            "ÄNN",
            "12 Elm Road",
            "Ulm",
            "12345",
            "",
            "2001-02-03",
            "+49 30 2345678",
            "003304567890",
            "12.50",
            "1e5",
            "10.0.0.1",
            "https://x.test/a",
            "7",
            "x;y",
            "\u{fc}1",
            "---",
            "1234567890123456789012345678901234567890",
            "0",
            "00",
            "-5",
            "AB-123456",
        ];
        let mut text = String::new();
        for row in 0..3 * BATCH + 1 {
            let value = |at: usize| match (row * 31 + at * 7) % 40 {
                at if at < values.len() => values[at].replace(';', "_"),
                _ => format!("{}", (row * 7 + at) % 1000),
            };
            text.push_str(&(0..names.len()).map(value).collect::<Vec<_>>().join(";"));
            text.push('\n');
        }
        let config = crate::Config::parse(&rules).unwrap();
        let masker = Masker::for_columns(config.table("t").unwrap(), &names, &Key::from_seed(3)).unwrap();
        let piece = Piece { bytes: text.into_bytes(), line: 2 };
        let (mut together, mut single) = (masker.clone(), masker);
        let one = work_plain(&mut together, &piece, b';', names.len(), false).unwrap();
        let two = work_quoted(&mut single, &piece, b';', names.len(), false).unwrap();
        for (one, two) in one.split(|byte| *byte == b'\n').zip(two.split(|byte| *byte == b'\n')) {
            assert_eq!(String::from_utf8_lossy(one), String::from_utf8_lossy(two));
        }
        assert_eq!(one.len(), two.len());
        let ((one, checked), (two, expected)) = (together.finish(), single.finish());
        assert_eq!(format!("{one:?}"), format!("{two:?}"));
        assert_eq!(checked.results(), expected.results());
    }
}
