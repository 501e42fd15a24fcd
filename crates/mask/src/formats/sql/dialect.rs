//! How strings are written: a backslash is an escape for MySQL and a backslash for everybody else.

/// Whose dump it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// PostgreSQL, SQLite: the standard.
    Standard,
    /// MySQL, MariaDB.
    Mysql,
}

impl Dialect {
    /// By how a dump begins.
    pub fn of(beginning: &[u8]) -> Self {
        let text = String::from_utf8_lossy(beginning);
        let mysql = ["MySQL dump", "MariaDB dump", "/*!40", "ENGINE=InnoDB", "ENGINE=MyISAM"];
        if mysql.iter().any(|sign| text.contains(sign)) || text.contains("INSERT INTO `") {
            Self::Mysql
        } else {
            Self::Standard
        }
    }

    /// A string literal.
    pub fn quote(self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 2);
        out.push('\'');
        for c in text.chars() {
            match (self, c) {
                (_, '\'') => out.push_str("''"),
                (Self::Mysql, '\\') => out.push_str("\\\\"),
                (Self::Mysql, '\n') => out.push_str("\\n"),
                (Self::Mysql, '\r') => out.push_str("\\r"),
                (Self::Mysql, '\0') => out.push_str("\\0"),
                (Self::Mysql, '\u{1a}') => out.push_str("\\Z"),
                _ => out.push(c),
            }
        }
        out.push('\'');
        out
    }
}

/// What a backslash and the next character mean in a MySQL string or an `E''` string.
pub fn unescape(next: u8) -> u8 {
    match next {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'f' => 12,
        b'0' => 0,
        b'Z' => 0x1a,
        other => other,
    }
}
