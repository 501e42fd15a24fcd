//! Goes through a dump statement by statement.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, Write};

use super::dialect::Dialect;
use super::lexer::{Lexer, Token};
use crate::config::{Config, Table};
use crate::table::Masker;
use crate::{Key, MaskError};

/// A longer statement without data is a mistake.
const LONGEST: usize = 1 << 20;

/// Statements that describe, and hold no rows.
const PASS: &[&str] = &[
    "CREATE", "ALTER", "DROP", "SET", "BEGIN", "START", "COMMIT", "LOCK", "UNLOCK", "COMMENT", "GRANT", "REVOKE",
    "USE", "PRAGMA", "ANALYZE", "TRUNCATE",
];

/// What is known of a dump so far.
pub struct Dump<'a, R, W> {
    pub lexer: Lexer<R>,
    pub sink: &'a mut W,
    pub dialect: Dialect,
    config: &'a Config,
    key: &'a Key,
    /// Columns by table, from CREATE TABLE.
    columns: HashMap<String, Vec<String>>,
    /// By table and columns; none for what has no rule.
    maskers: BTreeMap<(String, Vec<String>), Option<Masker>>,
    missing: Vec<String>,
    /// Looks at rows; then nothing is masked or written.
    pub observer: Option<Observer<'a>>,
}

/// Is told table, columns and values of a row.
pub type Observer<'a> = &'a mut dyn FnMut(&str, &[String], &[(usize, Option<&str>)]);

/// Shows the rows of a dump to somebody.
pub fn observe(source: impl BufRead, observer: Observer<'_>) -> Result<(), MaskError> {
    let (config, key) = (Config::parse("")?, Key::from_seed(0));
    through(source, &mut std::io::sink(), &config, &key, Some(observer)).map(drop)
}

/// Masks a dump.
pub fn mask(source: impl BufRead, sink: &mut impl Write, config: &Config, key: &Key) -> Result<Vec<Masker>, MaskError> {
    through(source, sink, config, key, None)
}

fn through<'a>(
    mut source: impl BufRead,
    sink: &'a mut impl Write,
    config: &'a Config,
    key: &'a Key,
    observer: Option<Observer<'a>>,
) -> Result<Vec<Masker>, MaskError> {
    let beginning = source.fill_buf().map_err(|error| MaskError::malformed(1, error.to_string()))?;
    let dialect = Dialect::of(beginning);
    let mut dump = Dump {
        lexer: Lexer::new(source, dialect),
        sink,
        dialect,
        config,
        key,
        columns: HashMap::new(),
        maskers: BTreeMap::new(),
        missing: Vec::new(),
        observer,
    };
    while let Some(token) = dump.lexer.next()? {
        dump.statement(token)?;
    }
    if !dump.missing.is_empty() {
        return Err(MaskError::NoRule { names: dump.missing });
    }
    Ok(dump.maskers.into_values().flatten().collect())
}

impl<R: BufRead, W: Write> Dump<'_, R, W> {
    pub fn wrong(&self, why: impl Into<String>) -> MaskError {
        MaskError::malformed(self.lexer.line, why)
    }

    pub fn write(&mut self, text: &str) -> Result<(), MaskError> {
        if !self.missing.is_empty() {
            return Ok(()); // it will be refused; only the list is still of use
        }
        self.sink.write_all(text.as_bytes()).map_err(|error| self.wrong(format!("cannot write: {error}")))
    }

    /// The next token, which must be there.
    pub fn token(&mut self) -> Result<Token, MaskError> {
        self.lexer.next()?.ok_or_else(|| self.wrong("the dump ends in the middle of a statement"))
    }

    fn statement(&mut self, first: Token) -> Result<(), MaskError> {
        match first {
            Token::Sign(b';') => self.write(";\n"),
            Token::Executable(comment) => {
                let upper = comment.to_uppercase();
                if ["INSERT", "REPLACE", "UPDATE", "VALUES", "LOAD "].iter().any(|word| upper.contains(word)) {
                    return Err(self.wrong("a comment that MySQL executes and that may hold data"));
                }
                self.write(&comment)
            }
            Token::Command(line) if line.starts_with("\\restrict") || line.starts_with("\\unrestrict") => {
                self.write(&format!("{line}\n"))
            }
            Token::Word(word) => match word.to_uppercase().as_str() {
                "INSERT" | "REPLACE" => self.insert(&word),
                "COPY" => self.copy(),
                "DELIMITER" => Err(self.wrong("triggers and routines: dump with --skip-triggers, without --routines")),
                upper if PASS.contains(&upper) => self.pass(word),
                "SELECT" | "DELETE" => self.pass(word),
                _ => Err(self.wrong(format!("'{word}': only schema, INSERT and COPY are understood"))),
            },
            Token::Command(line) => Err(self.wrong(format!("psql's '{line}' is not understood"))),
            _ => Err(self.wrong("this is not the beginning of a statement")),
        }
    }

    /// Copies a statement that holds no rows.
    fn pass(&mut self, first: String) -> Result<(), MaskError> {
        let mut tokens = vec![Token::Word(first)];
        let (mut size, mut inside_trigger) = (0, false);
        loop {
            let token = self.token()?;
            size += 8 + weight(&token);
            if size > LONGEST {
                return Err(self.wrong("a statement of more than 1 MiB without rows"));
            }
            let ended = token == Token::Sign(b';') && (!inside_trigger || is_word(tokens.last(), "END"));
            if is_word(Some(&token), "BEGIN") && tokens.iter().take(4).any(|word| is_word(Some(word), "TRIGGER")) {
                inside_trigger = true;
            }
            tokens.push(token);
            if ended {
                break;
            }
        }
        let has = |wanted: &str| tokens.iter().any(|token| is_word(Some(token), wanted));
        match tokens.first() {
            Some(token) if is_word(Some(token), "SELECT") && !has("setval") && !has("set_config") => {
                return Err(self.wrong("a SELECT: only setval and set_config are understood"));
            }
            Some(token) if is_word(Some(token), "DELETE") => {
                return if has("sqlite_sequence") { Ok(()) } else { Err(self.wrong("a DELETE is not understood")) };
            }
            _ => {}
        }
        if has("TABLE") && is_word(tokens.first(), "CREATE") {
            let data = |pair: &[Token]| {
                is_word(pair.first(), "AS") && (is_word(pair.get(1), "SELECT") || is_word(pair.get(1), "VALUES"))
            };
            if tokens.windows(2).any(data) {
                return Err(self.wrong("a CREATE TABLE that holds rows"));
            }
            if let Some((name, columns)) = table(&tokens) {
                self.columns.insert(name, columns);
            }
        }
        let text = self.render(&tokens)?;
        self.write(&text)
    }

    /// The masker of a table with these columns, or those it was made with; `None` if there are no rules.
    pub fn masker(&mut self, name: &str, columns: Option<Vec<String>>) -> Result<(String, Vec<String>), MaskError> {
        let known = || self.columns.get(name).cloned();
        let columns = columns.or_else(known).ok_or_else(|| {
            self.wrong(format!("the columns of {name} are not known: dump the schema too, or with --complete-insert"))
        })?;
        let place = (name.to_owned(), columns.clone());
        if self.observer.is_none() && !self.maskers.contains_key(&place) {
            let masker = match self.config.table(name) {
                Some(table) => {
                    match Masker::for_columns(&Table { name: name.to_owned(), ..table.clone() }, &columns, self.key) {
                        Err(MaskError::NoRule { names }) => {
                            self.missing.extend(names);
                            None
                        }
                        other => Some(other?),
                    }
                }
                None => {
                    self.missing.push(name.to_owned());
                    None
                }
            };
            self.maskers.insert(place.clone(), masker);
        }
        Ok(place)
    }

    /// The masker that [`Dump::masker`] found.
    pub fn found(&mut self, place: &(String, Vec<String>)) -> Option<&mut Masker> {
        self.maskers.get_mut(place)?.as_mut()
    }

    /// A name of one or several parts, and the token behind it.
    pub fn name(&mut self) -> Result<(String, Token), MaskError> {
        let mut name = String::new();
        loop {
            match self.token()? {
                Token::Word(part) | Token::Name(part, _) => name.push_str(&part),
                _ => return Err(self.wrong("a name is missing")),
            }
            match self.token()? {
                Token::Sign(b'.') => name.push('.'),
                next => return Ok((name, next)),
            }
        }
    }

    /// Tokens as text again.
    pub fn render(&self, tokens: &[Token]) -> Result<String, MaskError> {
        let mut out = String::new();
        let mut before: Option<&Token> = None;
        for token in tokens {
            let wordy = |token: &Token| !matches!(token, Token::Sign(_));
            let space = match (before, token) {
                (Some(one), other) if wordy(one) && wordy(other) => true,
                (Some(one), Token::Sign(b'@' | b'*' | b'(')) => wordy(one),
                (Some(Token::Sign(b')' | b',' | b'-')), other) => wordy(other) || *other == Token::Sign(b'-'),
                _ => false,
            };
            if space && before != Some(&Token::Sign(b'-')) || before == Some(&Token::Sign(b'-')) && !wordy(token) {
                out.push(' ');
            }
            match token {
                Token::Word(word) | Token::Dollar(word) | Token::Executable(word) | Token::Command(word) => {
                    out.push_str(word);
                }
                Token::Name(name, quote) => {
                    let quote = char::from(*quote);
                    out.push(quote);
                    out.push_str(&name.replace(quote, &format!("{quote}{quote}")));
                    out.push(quote);
                }
                Token::Text(prefix, bytes) => {
                    let text = std::str::from_utf8(bytes).map_err(|_| self.wrong("text that is not UTF-8"))?;
                    out.push_str(prefix.strip_prefix('E').unwrap_or(prefix));
                    out.push_str(&self.dialect.quote(text));
                }
                Token::Sign(b';') => out.push_str(";\n"),
                Token::Sign(sign) => out.push(char::from(*sign)),
            }
            before = Some(token);
        }
        Ok(out)
    }
}

fn weight(token: &Token) -> usize {
    match token {
        Token::Word(text) | Token::Name(text, _) | Token::Dollar(text) | Token::Executable(text) => text.len(),
        Token::Command(text) => text.len(),
        Token::Text(_, bytes) => bytes.len(),
        Token::Sign(_) => 1,
    }
}

/// Whether a token is this word, in any case.
pub fn is_word(token: Option<&Token>, wanted: &str) -> bool {
    matches!(token, Some(Token::Word(word) | Token::Name(word, _)) if word.eq_ignore_ascii_case(wanted))
}

/// Name and columns of a CREATE TABLE.
fn table(tokens: &[Token]) -> Option<(String, Vec<String>)> {
    const NOT_COLUMNS: &[&str] = &[
        "PRIMARY",
        "KEY",
        "UNIQUE",
        "CONSTRAINT",
        "FOREIGN",
        "CHECK",
        "INDEX",
        "FULLTEXT",
        "SPATIAL",
        "EXCLUDE",
        "LIKE",
        "PERIOD",
    ];
    let open = tokens.iter().position(|token| *token == Token::Sign(b'('))?;
    let mut name = String::new();
    for token in tokens[..open].iter().rev() {
        match token {
            Token::Word(part) | Token::Name(part, _) if name.is_empty() || name.starts_with('.') => {
                name.insert_str(0, part);
            }
            Token::Sign(b'.') => name.insert(0, '.'),
            _ => break,
        }
    }
    let (mut depth, mut begins, mut columns) = (0, false, Vec::new());
    for token in &tokens[open..] {
        match token {
            Token::Sign(b'(') => {
                depth += 1;
                begins = depth == 1;
            }
            Token::Sign(b')') => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            Token::Sign(b',') => begins = depth == 1,
            _ if !std::mem::take(&mut begins) => {}
            Token::Name(column, _) => columns.push(column.clone()),
            Token::Word(word) if !NOT_COLUMNS.contains(&word.to_uppercase().as_str()) => columns.push(word.clone()),
            _ => {}
        }
    }
    Some((name, columns))
}
