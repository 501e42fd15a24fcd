//! Splits SQL into tokens, one at a time.

use std::io::{BufRead, Read};

use super::dialect::{Dialect, unescape};
use crate::MaskError;

/// A longer token is a mistake.
const LONGEST: usize = 64 << 20;

/// A piece of SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// A word or number, as written.
    Word(String),
    /// A name in quotes, with what it was quoted by.
    Name(String, u8),
    /// A string: its prefix (`E`, `N`, `X`, `B`, nothing) and what it means.
    Text(String, Vec<u8>),
    /// `$tag$…$tag$`, as written.
    Dollar(String),
    /// A comment that MySQL executes, as written.
    Executable(String),
    /// A line for psql that begins with a backslash.
    Command(String),
    /// Anything else.
    Sign(u8),
}

/// Reads tokens.
pub struct Lexer<R> {
    reader: R,
    dialect: Dialect,
    /// The line that is read.
    pub line: u64,
    fresh_line: bool,
}

impl<R: BufRead> Lexer<R> {
    /// Of a stream.
    pub fn new(reader: R, dialect: Dialect) -> Self {
        Self { reader, dialect, line: 1, fresh_line: true }
    }

    fn wrong(&self, why: impl Into<String>) -> MaskError {
        MaskError::malformed(self.line, why)
    }

    fn peek(&mut self) -> Result<Option<u8>, MaskError> {
        let line = self.line;
        let buffer = self.reader.fill_buf().map_err(|error| MaskError::malformed(line, error.to_string()))?;
        Ok(buffer.first().copied())
    }

    fn bump(&mut self) -> Result<Option<u8>, MaskError> {
        let byte = self.peek()?;
        if let Some(byte) = byte {
            self.reader.consume(1);
            self.line += u64::from(byte == b'\n');
            self.fresh_line = byte == b'\n' || self.fresh_line && byte.is_ascii_whitespace();
        }
        Ok(byte)
    }

    /// The rest of the line, without its end; `None` at the end of the file.
    pub fn rest_of_line(&mut self) -> Result<Option<Vec<u8>>, MaskError> {
        let mut bytes = Vec::new();
        let line = self.line;
        (&mut self.reader)
            .take(LONGEST as u64)
            .read_until(b'\n', &mut bytes)
            .map_err(|error| MaskError::malformed(line, error.to_string()))?;
        if bytes.len() >= LONGEST {
            return Err(self.wrong("a line of more than 64 MiB"));
        }
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.pop_if(|byte| *byte == b'\n').is_some() {
            self.line += 1;
            bytes.pop_if(|byte| *byte == b'\r');
        }
        self.fresh_line = true;
        Ok(Some(bytes))
    }

    /// The next token; comments and space are skipped.
    pub fn next(&mut self) -> Result<Option<Token>, MaskError> {
        loop {
            let fresh = self.fresh_line;
            let Some(byte) = self.bump()? else { return Ok(None) };
            match byte {
                _ if byte.is_ascii_whitespace() => {}
                b'\\' if fresh => {
                    let rest = self.rest_of_line()?.unwrap_or_default();
                    return Ok(Some(Token::Command(format!("\\{}", self.text(rest)?))));
                }
                b'-' if self.peek()? == Some(b'-') => drop(self.rest_of_line()?),
                b'#' if self.dialect == Dialect::Mysql => drop(self.rest_of_line()?),
                b'/' if self.peek()? == Some(b'*') => {
                    if let Some(comment) = self.comment()? {
                        return Ok(Some(Token::Executable(comment)));
                    }
                }
                b'\'' => return self.string(String::new()).map(Some),
                b'"' | b'`' => return self.name(byte).map(Some),
                b'$' => return self.dollar().map(Some),
                _ if byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80 => return self.word(byte).map(Some),
                _ => return Ok(Some(Token::Sign(byte))),
            }
        }
    }

    fn text(&self, bytes: Vec<u8>) -> Result<String, MaskError> {
        String::from_utf8(bytes).map_err(|_| self.wrong("not UTF-8: dump with UTF-8 encoding"))
    }

    fn word(&mut self, first: u8) -> Result<Token, MaskError> {
        let mut bytes = vec![first];
        let number = first.is_ascii_digit();
        while let Some(byte) = self.peek()? {
            let exponent = number
                && (byte == b'+' || byte == b'-')
                && matches!(bytes.last(), Some(b'e' | b'E'))
                && bytes.get(1) != Some(&b'x');
            let part = byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80;
            if !(part || exponent || number && byte == b'.') {
                break;
            }
            if bytes.len() >= LONGEST {
                return Err(self.wrong("a word of more than 64 MiB"));
            }
            bytes.push(byte);
            self.bump()?;
        }
        let word = self.text(bytes)?;
        if self.peek()? == Some(b'\'') && matches!(word.as_str(), "E" | "e" | "N" | "n" | "X" | "x" | "B" | "b") {
            self.bump()?;
            return self.string(word.to_uppercase());
        }
        Ok(Token::Word(word))
    }

    fn string(&mut self, prefix: String) -> Result<Token, MaskError> {
        let escapes = self.dialect == Dialect::Mysql || prefix == "E";
        let begin = self.line;
        let mut bytes = Vec::new();
        loop {
            let Some(byte) = self.bump()? else {
                return Err(MaskError::malformed(begin, "a string is never closed"));
            };
            match byte {
                b'\'' if self.peek()? == Some(b'\'') => {
                    self.bump()?;
                    bytes.push(b'\'');
                }
                b'\'' => return Ok(Token::Text(prefix, bytes)),
                b'\\' if escapes => {
                    let next = self.bump()?.ok_or_else(|| MaskError::malformed(begin, "a string is never closed"))?;
                    if prefix == "E" && matches!(next, b'x' | b'u' | b'U' | b'0'..=b'7') {
                        return Err(self.wrong("an escape by number in an E'' string: dump without it"));
                    }
                    bytes.push(unescape(next));
                }
                _ => bytes.push(byte),
            }
            if bytes.len() > LONGEST {
                return Err(MaskError::malformed(begin, "a string of more than 64 MiB"));
            }
        }
    }

    fn name(&mut self, quote: u8) -> Result<Token, MaskError> {
        let begin = self.line;
        let mut bytes = Vec::new();
        while let Some(byte) = self.bump()? {
            if byte == quote {
                if self.peek()? != Some(quote) {
                    return Ok(Token::Name(self.text(bytes)?, quote));
                }
                self.bump()?;
            }
            bytes.push(byte);
            if bytes.len() > 1024 {
                break;
            }
        }
        Err(MaskError::malformed(begin, "a name is never closed"))
    }

    fn dollar(&mut self) -> Result<Token, MaskError> {
        let mut tag = vec![b'$'];
        while let Some(byte) = self.bump()? {
            tag.push(byte);
            if byte == b'$' {
                break;
            }
            if !(byte.is_ascii_alphanumeric() || byte == b'_') {
                return Err(self.wrong("a $ that begins nothing"));
            }
        }
        let mut bytes = tag.clone();
        while let Some(byte) = self.bump()? {
            bytes.push(byte);
            if bytes.len() >= tag.len() * 2 && bytes.ends_with(&tag) {
                return Ok(Token::Dollar(self.text(bytes)?));
            }
            if bytes.len() > LONGEST {
                break;
            }
        }
        Err(self.wrong("a $…$ string is never closed"))
    }

    /// A comment; only what MySQL executes is returned.
    fn comment(&mut self) -> Result<Option<String>, MaskError> {
        let begin = self.line;
        let mut bytes = vec![b'/'];
        while let Some(byte) = self.bump()? {
            bytes.push(byte);
            if bytes.len() >= 4 && bytes.ends_with(b"*/") {
                let executable = bytes.starts_with(b"/*!") || bytes.starts_with(b"/*M!");
                return if executable { self.text(bytes).map(Some) } else { Ok(None) };
            }
            if bytes.len() > LONGEST {
                break;
            }
        }
        Err(MaskError::malformed(begin, "a comment is never closed"))
    }
}
