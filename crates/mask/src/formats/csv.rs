//! CSV, split at ends of records and masked side by side.

use std::io::{Read, Write};

use csv::{ReaderBuilder, StringRecord, Terminator, Writer, WriterBuilder};
use memchr::memchr2_iter;

use super::pipeline::{self, Piece};
use crate::MaskError;
use crate::config::Table;
use crate::table::{Masker, Outcome};
use crate::{Key, rule::Kind};

/// Bytes of a piece; a longer record makes a longer piece.
const PIECE: usize = 1 << 20;
/// A longer record is a mistake, most likely a quote that never ends.
const LONGEST: usize = 64 << 20;

/// Splits a stream into pieces of whole records. Stricter than most readers about quotes, because a reader that is
/// lenient about them can see other records than the next one does.
pub struct Splitter<R> {
    reader: R,
    delimiter: u8,
    rest: Vec<u8>,
    line: u64,
    ended: bool,
}

impl<R: Read> Splitter<R> {
    /// Of a stream with this delimiter.
    pub fn new(reader: R, delimiter: Option<u8>) -> Result<Self, MaskError> {
        let mut splitter = Self { reader, delimiter: b',', rest: Vec::new(), line: 1, ended: false };
        splitter.fill()?;
        if splitter.rest.starts_with(b"\xef\xbb\xbf") {
            splitter.rest.drain(..3);
        }
        let header = splitter.rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let count = |wanted: u8| header.iter().filter(|byte| **byte == wanted).count();
        let likely = [b',', b';', b'\t', b'|'].into_iter().rev().max_by_key(|one| count(*one)).unwrap_or(b',');
        splitter.delimiter = delimiter.unwrap_or(likely);
        Ok(splitter)
    }

    /// What is between fields.
    pub fn delimiter(&self) -> u8 {
        self.delimiter
    }

    fn fill(&mut self) -> Result<(), MaskError> {
        let wanted = self.rest.len() + PIECE;
        let line = self.line;
        let mut taken = (&mut self.reader).take(PIECE as u64);
        self.rest.reserve(PIECE);
        taken.read_to_end(&mut self.rest).map_err(|error| MaskError::malformed(line, error.to_string()))?;
        self.ended = self.rest.len() < wanted;
        Ok(())
    }

    /// The first record.
    pub fn header(&mut self) -> Result<Vec<u8>, MaskError> {
        loop {
            let (first, _) = self.ends()?;
            if let Some(end) = first {
                return Ok(self.cut(end).bytes);
            }
            if self.ended {
                let end = self.rest.len();
                return Ok(self.cut(end).bytes);
            }
            self.grow()?;
        }
    }

    /// The next piece.
    pub fn piece(&mut self) -> Result<Option<Piece>, MaskError> {
        loop {
            if self.ended {
                self.ends()?;
                let end = self.rest.len();
                return Ok((end > 0).then(|| self.cut(end)));
            }
            if self.rest.len() >= PIECE
                && let (_, Some(end)) = self.ends()?
            {
                return Ok(Some(self.cut(end)));
            }
            self.grow()?;
        }
    }

    fn grow(&mut self) -> Result<(), MaskError> {
        if self.rest.len() > LONGEST {
            return Err(MaskError::malformed(self.line, "a record of more than 64 MiB: is a quote never closed?"));
        }
        self.fill()
    }

    fn cut(&mut self, end: usize) -> Piece {
        let rest = self.rest.split_off(end);
        let bytes = std::mem::replace(&mut self.rest, rest);
        let line = self.line;
        self.line += memchr::memchr_iter(b'\n', &bytes).count() as u64;
        Piece { bytes, line }
    }

    /// Where the first and the last complete record of what was read end.
    fn ends(&self) -> Result<(Option<usize>, Option<usize>), MaskError> {
        if memchr::memchr(b'"', &self.rest).is_none() {
            let after = |at: usize| at + 1;
            return Ok((memchr::memchr(b'\n', &self.rest).map(after), memchr::memrchr(b'\n', &self.rest).map(after)));
        }
        let (mut quoted, mut skip, mut first, mut last) = (false, usize::MAX, None, None);
        let wrong = |at: usize, why: &str| {
            let line = self.line + memchr::memchr_iter(b'\n', &self.rest[..at]).count() as u64;
            Err(MaskError::malformed(line, why))
        };
        for at in memchr2_iter(b'"', b'\n', &self.rest) {
            if self.rest[at] == b'\n' {
                if !quoted {
                    first.get_or_insert(at + 1);
                    last = Some(at + 1);
                }
                continue;
            }
            if at == skip {
                continue;
            }
            if !quoted {
                let before = at.checked_sub(1).map_or(b'\n', |before| self.rest[before]);
                if before != b'\n' && before != self.delimiter {
                    return wrong(
                        at,
                        "a quote in the middle of a field: such a field must be in quotes, and quotes doubled",
                    );
                }
                quoted = true;
                continue;
            }
            match self.rest.get(at + 1) {
                Some(b'"') => skip = at + 1,
                Some(b'\n' | b'\r') => quoted = false,
                Some(next) if *next == self.delimiter => quoted = false,
                None if self.ended => quoted = false,
                None => break, // more is to come
                Some(_) => return wrong(at, "something follows the closing quote of a field"),
            }
        }
        if quoted && self.ended {
            return wrong(self.rest.len(), "a quote is never closed");
        }
        Ok((first, last))
    }
}

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
    let delimiter = splitter.delimiter;
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
    let mut cells: Vec<(usize, Option<&str>)> = Vec::with_capacity(count);
    let (mut line, mut start) = (piece.line, 0);
    while start < text.len() {
        let end = memchr::memchr(b'\n', &text.as_bytes()[start..]).map_or(text.len(), |end| start + end);
        let record = &text[start..end];
        let record = record.strip_suffix('\r').unwrap_or(record);
        start = end + 1;
        if !record.is_empty() {
            cells.clear();
            let mut from = 0;
            for at in memchr::memchr_iter(delimiter, record.as_bytes()).chain([record.len()]) {
                cells.push((cells.len(), Some(&record[from..at])));
                from = at + 1;
            }
            if cells.len() != count {
                let why = format!("{} fields, but the header has {count}", cells.len());
                return Err(MaskError::malformed(line, why));
            }
            masker.mask(&cells);
            let begin = out.len();
            let mut written = 0;
            for (at, (_, field)) in cells.iter().enumerate() {
                let outcome = masker.outcome(at);
                if outcome == Outcome::Dropped {
                    continue;
                }
                if written > 0 {
                    out.push(delimiter);
                }
                written += 1;
                match outcome {
                    Outcome::Masked => push_field(masker.fake(at), delimiter, &mut out),
                    // It needed no quotes before.
                    Outcome::Kept => out.extend_from_slice(field.unwrap_or_default().as_bytes()),
                    Outcome::Null | Outcome::Dropped => {}
                }
            }
            if written == 1 && out.len() == begin {
                out.extend_from_slice(b"\"\""); // else it would be no record
            }
            out.extend_from_slice(if windows { b"\r\n" } else { b"\n" });
        }
        line += 1;
    }
    Ok(out)
}

/// A field, in quotes if it needs them.
fn push_field(field: &str, delimiter: u8, out: &mut Vec<u8>) {
    let bytes = field.as_bytes();
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

    fn pieces(text: &str) -> Result<usize, MaskError> {
        let mut splitter = Splitter::new(text.as_bytes(), None)?;
        splitter.header()?;
        let mut count = 0;
        while splitter.piece()?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    #[test]
    fn quotes_that_readers_disagree_about_are_refused_with_their_line() {
        for (text, line, why) in [
            ("a,b\n1,x\"y\n", 2, "middle of a field"),
            ("a,b\n1,\"x\ny", 3, "never closed"),
            ("a,b\n1,\"x\ny\"z\n", 3, "closing quote"),
        ] {
            let error = pieces(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("line {line}: ")) && error.contains(why), "{error}");
        }
        assert_eq!(pieces("a,b\r\n\"1\r\n\",\"x\"\"y\"\r\n").unwrap(), 1);
    }

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
    fn pieces_are_cut_between_records() {
        let row = format!("\"{}\n,\",2\n", "x".repeat(1000));
        let text = format!("a,b\n{}", row.repeat(5000));
        let mut splitter = Splitter::new(text.as_bytes(), None).unwrap();
        splitter.header().unwrap();
        let (mut total, mut line) = (0, 2);
        while let Some(piece) = splitter.piece().unwrap() {
            assert_eq!(piece.bytes.len() % row.len(), 0);
            assert_eq!(piece.line, line);
            line += 2 * (piece.bytes.len() / row.len()) as u64;
            total += piece.bytes.len();
        }
        assert_eq!(total, row.len() * 5000);
    }
}
