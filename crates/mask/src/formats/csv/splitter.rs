//! Where records end.

use std::io::Read;

use memchr::memchr2_iter;

use crate::MaskError;
use crate::formats::pipeline::Piece;

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
