//! INSERT and COPY: the statements with data.

use std::io::{BufRead, Write};

use super::dialect::unescape;
use super::dump::{Dump, is_word};
use super::lexer::Token;
use crate::MaskError;
use crate::key::hex;
use crate::rule::Kind;
use crate::table::Outcome;

/// A value of an INSERT.
enum Value {
    Null,
    /// A number, `TRUE` or `FALSE`, as written.
    Plain(String),
    Text(String),
    Blob(Vec<u8>),
}

impl<R: BufRead, W: Write> Dump<'_, R, W> {
    pub(super) fn insert(&mut self, verb: &str) -> Result<(), MaskError> {
        let mut head = verb.to_owned();
        loop {
            match self.token()? {
                Token::Word(word) => {
                    head = format!("{head} {word}");
                    if word.eq_ignore_ascii_case("INTO") {
                        break;
                    }
                }
                _ => return Err(self.wrong("INSERT without INTO")),
            }
        }
        let (name, mut next) = self.name()?;
        let mut columns = None;
        if next == Token::Sign(b'(') {
            columns = Some(self.column_list()?);
            next = self.token()?;
        }
        let mut between = Vec::new();
        while !is_word(Some(&next), "VALUES") {
            match next {
                Token::Word(word)
                    if ["OVERRIDING", "SYSTEM", "USER", "VALUE"].contains(&word.to_uppercase().as_str()) =>
                {
                    between.push(word);
                }
                _ => return Err(self.wrong("an INSERT of something other than VALUES")),
            }
            next = self.token()?;
        }
        let place = self.masker(&name, columns)?;
        let stays = self.stays(&place);
        let list = self.names(&place.1, &stays);
        head = format!("{head} {} ({list}) {} VALUES\n", self.table_name(&name), between.join(" "));
        let mut first = true;
        loop {
            match self.token()? {
                Token::Sign(b'(') => {}
                _ => return Err(self.wrong("VALUES without a row")),
            }
            let row = self.row(place.1.len())?;
            if let Some(row) = self.masked(&place, &stays, &row) {
                let before = if std::mem::take(&mut first) { head.as_str() } else { ",\n" };
                self.write(before)?;
                self.write(&row)?;
            }
            match self.token()? {
                Token::Sign(b',') => {}
                Token::Sign(b';') => break,
                Token::Word(word) if word.eq_ignore_ascii_case("ON") => {
                    let mut rest = vec![Token::Word(word)];
                    while rest.last() != Some(&Token::Sign(b';')) {
                        rest.push(self.token()?);
                        if !matches!(rest.last(), Some(Token::Word(_) | Token::Sign(b';'))) || rest.len() > 8 {
                            return Err(self.wrong("only ON CONFLICT DO NOTHING is understood"));
                        }
                    }
                    if !first {
                        let text = format!(" {}", self.render(&rest)?);
                        self.write(&text)?;
                    }
                    return Ok(());
                }
                _ => return Err(self.wrong("something other than ',' or ';' follows a row")),
            }
        }
        if first { Ok(()) } else { self.write(";\n") }
    }

    fn column_list(&mut self) -> Result<Vec<String>, MaskError> {
        let mut columns = Vec::new();
        loop {
            match self.token()? {
                Token::Word(name) | Token::Name(name, _) => columns.push(name),
                _ => return Err(self.wrong("a list of columns is not understood")),
            }
            match self.token()? {
                Token::Sign(b',') => {}
                Token::Sign(b')') => return Ok(columns),
                _ => return Err(self.wrong("a list of columns is not understood")),
            }
        }
    }

    /// The columns that are not dropped.
    fn stays(&mut self, place: &(String, Vec<String>)) -> Vec<usize> {
        let count = place.1.len();
        self.found(place)
            .map_or_else(Vec::new, |masker| (0..count).filter(|at| masker.kind(*at) != Kind::Drop).collect())
    }

    fn quote_name(&self, name: &str) -> String {
        let quote = if self.dialect == super::dialect::Dialect::Mysql { '`' } else { '"' };
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if self.dialect != super::dialect::Dialect::Mysql
            && name.chars().all(plain)
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && !RESERVED.contains(&name)
        {
            return name.to_owned();
        }
        format!("{quote}{}{quote}", name.replace(quote, &format!("{quote}{quote}")))
    }

    fn table_name(&self, name: &str) -> String {
        name.split('.').map(|part| self.quote_name(part)).collect::<Vec<_>>().join(".")
    }

    fn names(&self, columns: &[String], stays: &[usize]) -> String {
        stays.iter().map(|at| self.quote_name(&columns[*at])).collect::<Vec<_>>().join(", ")
    }

    /// The values up to the closing parenthesis.
    fn row(&mut self, count: usize) -> Result<Vec<Value>, MaskError> {
        let mut row = Vec::with_capacity(count);
        loop {
            let (value, end) = self.value()?;
            row.push(value);
            match end {
                Token::Sign(b',') if row.len() < count => {}
                Token::Sign(b')') if row.len() == count => return Ok(row),
                Token::Sign(b',' | b')') => return Err(self.wrong(format!("a row has not {count} values"))),
                _ => return Err(self.wrong("a value is an expression: only literals are understood")),
            }
        }
    }

    /// A literal, and the token behind it.
    fn value(&mut self) -> Result<(Value, Token), MaskError> {
        let mut token = self.token()?;
        let mut sign = String::new();
        if let Token::Sign(one @ (b'-' | b'+')) = token {
            sign.push(char::from(one));
            token = self.token()?;
        }
        if matches!(&token, Token::Word(word) if word.starts_with('_')) {
            token = self.token()?; // an introducer: _binary, _utf8mb4
        }
        let value = match token {
            Token::Text(prefix, bytes) if prefix == "X" => Value::Blob(self.unhex(&bytes)?),
            Token::Text(prefix, _) if prefix == "B" => return Err(self.wrong("a bit string is not understood")),
            Token::Text(_, bytes) => {
                String::from_utf8(bytes).map_or_else(|error| Value::Blob(error.into_bytes()), Value::Text)
            }
            Token::Word(word) => match word.to_uppercase().as_str() {
                "NULL" => Value::Null,
                "TRUE" | "FALSE" => Value::Plain(word),
                upper if upper.starts_with("0X") => Value::Blob(self.unhex(&word.as_bytes()[2..])?),
                _ if word.starts_with(|c: char| c.is_ascii_digit()) => Value::Plain(format!("{sign}{word}")),
                _ => return Err(self.wrong("a value is an expression: only literals are understood")),
            },
            _ => return Err(self.wrong("a value is missing")),
        };
        let mut next = self.token()?;
        // A cast says what the column's type says already.
        while next == Token::Sign(b':') {
            next = self.token()?;
            while matches!(next, Token::Word(_) | Token::Name(..) | Token::Sign(b':' | b'.' | b'[' | b']')) {
                next = self.token()?;
            }
        }
        Ok((value, next))
    }

    fn unhex(&self, digits: &[u8]) -> Result<Vec<u8>, MaskError> {
        let wrong = || self.wrong("a binary value is not hexadecimal");
        let text = std::str::from_utf8(digits).map_err(|_| wrong())?;
        if !text.is_ascii() || text.len() % 2 != 0 {
            return Err(wrong());
        }
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong())).collect()
    }

    /// The row as it is to be written; `None` if nothing of it is left.
    fn masked(&mut self, place: &(String, Vec<String>), stays: &[usize], row: &[Value]) -> Option<String> {
        let dialect = self.dialect;
        let cells: Vec<(usize, Option<&str>)> = row
            .iter()
            .map(|value| match value {
                Value::Null | Value::Blob(_) => None,
                Value::Plain(text) | Value::Text(text) => Some(text.as_str()),
            })
            .enumerate()
            .collect();
        if let Some(observer) = &mut self.observer {
            observer(&place.0, &place.1, &cells);
        }
        let masker = self.found(place)?;
        masker.mask(&cells);
        if stays.is_empty() {
            return None;
        }
        let binary = |bytes: &[u8]| format!("X'{}'", hex(bytes));
        let mut written = Vec::with_capacity(stays.len());
        for at in stays {
            written.push(match (&row[*at], masker.outcome(*at), masker.kind(*at)) {
                (Value::Blob(bytes), _, Kind::Keep) => binary(bytes),
                (Value::Blob(bytes), _, kind) if kind != Kind::Null => {
                    masker.count_misfit(*at);
                    binary(&masker.fake_bytes(*at, bytes))
                }
                (_, Outcome::Null | Outcome::Dropped, _) | (Value::Null, Outcome::Kept, _) => "NULL".to_owned(),
                (Value::Plain(text), Outcome::Kept, _) => text.clone(),
                (Value::Text(text), Outcome::Kept, _) => dialect.quote(text),
                (Value::Plain(_), Outcome::Masked, _) if is_number(masker.fake(*at)) => masker.fake(*at).to_owned(),
                _ => dialect.quote(masker.fake(*at)),
            });
        }
        Some(format!("({})", written.join(",")))
    }

    pub(super) fn copy(&mut self) -> Result<(), MaskError> {
        let (name, next) = self.name()?;
        if next != Token::Sign(b'(') {
            return Err(self.wrong("a COPY without columns is not understood"));
        }
        let columns = self.column_list()?;
        let words = [self.token()?, self.token()?, self.token()?];
        if !is_word(words.first(), "FROM") || !is_word(words.get(1), "stdin") || words[2] != Token::Sign(b';') {
            return Err(self.wrong("only COPY … FROM stdin in text form is understood"));
        }
        self.lexer.rest_of_line()?;
        let place = self.masker(&name, Some(columns))?;
        let stays = self.stays(&place);
        let list = self.names(&place.1, &stays);
        let head = format!("COPY {} ({list}) FROM stdin;\n", self.table_name(&name));
        self.write(&head)?;
        loop {
            let line = self.lexer.rest_of_line()?.ok_or_else(|| self.wrong("the data of a COPY never end"))?;
            if line == b"\\." {
                return self.write("\\.\n\n");
            }
            let line = String::from_utf8(line).map_err(|_| self.wrong("not UTF-8: dump with --encoding=UTF8"))?;
            let fields = line.split('\t').map(|field| self.field(field)).collect::<Result<Vec<_>, _>>()?;
            if fields.len() != place.1.len() {
                return Err(self.wrong(format!("{} fields, but COPY names {}", fields.len(), place.1.len())));
            }
            let cells: Vec<_> = fields.iter().enumerate().map(|(at, field)| (at, field.as_deref())).collect();
            if let Some(observer) = &mut self.observer {
                observer(&place.0, &place.1, &cells);
            }
            let Some(masker) = self.found(&place) else { continue };
            masker.mask(&cells);
            let written: Vec<String> = stays
                .iter()
                .map(|at| match masker.outcome(*at) {
                    Outcome::Null | Outcome::Dropped => "\\N".to_owned(),
                    Outcome::Kept => fields[*at].as_deref().map_or_else(|| "\\N".to_owned(), escape),
                    Outcome::Masked => escape(masker.fake(*at)),
                })
                .collect();
            if !written.is_empty() {
                self.write(&format!("{}\n", written.join("\t")))?;
            }
        }
    }

    /// What a field of a COPY means.
    fn field(&self, field: &str) -> Result<Option<String>, MaskError> {
        if field == "\\N" {
            return Ok(None);
        }
        let mut text = String::with_capacity(field.len());
        let mut all = field.chars();
        while let Some(c) = all.next() {
            match c {
                '\\' => match all.next() {
                    Some('v') => text.push('\u{b}'),
                    Some('x' | '0'..='7') | None => return Err(self.wrong("an escape by number in a COPY")),
                    Some(next) if next.is_ascii() => text.push(char::from(unescape(next as u8))),
                    Some(next) => text.push(next),
                },
                _ => text.push(c),
            }
        }
        Ok(Some(text))
    }
}

/// Words that cannot be names without quotes.
const RESERVED: &[&str] = &[
    "user",
    "order",
    "group",
    "table",
    "select",
    "from",
    "where",
    "to",
    "end",
    "default",
    "check",
    "primary",
    "references",
    "column",
    "desc",
    "asc",
    "limit",
    "offset",
    "case",
    "when",
    "then",
    "else",
    "all",
    "and",
    "or",
    "not",
    "null",
    "true",
    "false",
    "in",
    "is",
    "as",
    "on",
    "using",
    "with",
    "grant",
    "unique",
    "foreign",
    "constraint",
    "analyse",
    "analyze",
    "index",
    "values",
    "key",
    "between",
    "like",
    "window",
    "both",
    "leading",
    "trailing",
    "current_date",
    "array",
    "any",
    "some",
    "only",
    "into",
    "union",
    "having",
    "create",
    "distinct",
    "do",
    "for",
    "fetch",
    "initially",
    "deferrable",
    "localtime",
    "placing",
    "returning",
    "session_user",
    "symmetric",
    "variadic",
    "join",
    "left",
    "right",
    "inner",
    "outer",
    "cross",
    "full",
    "natural",
    "set",
    "update",
    "delete",
    "insert",
    "drop",
    "alter",
    "transaction",
    "commit",
];

fn is_number(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(f64::is_finite) && !text.starts_with(|c: char| c.is_ascii_alphabetic())
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\u{b}' => out.push_str("\\v"),
            _ => out.push(c),
        }
    }
    out
}
