//! Secrets a sandbox may use without ever holding them.
//!
//! Inside, the variable holds a placeholder. The gateway on the host puts the real value in, on the way to the hosts that
//! the rule names and to nobody else.

use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

mod host;
mod table;

pub use host::HostPattern;
pub use table::{AnyOr, From, SecretTable};

/// One secret: what it is called inside, where its value comes from, and which hosts may see it.
///
/// On the command line: `NAME@host[,host…]`, `NAME=env:VAR@host`, `NAME=file:/path@host`, `NAME=cmd:program arg…@host`,
/// each followed by any of `;header=x-api-key`, `;query=key`, `;body`, `;basic=user`, `;prefix=sk-ant-`, `;http`.
///
/// In files and JSON: a [`SecretTable`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SecretTable", into = "SecretTable")]
pub struct SecretRule {
    /// The variable inside that holds the placeholder.
    pub name: String,
    /// Who may see the value.
    pub hosts: Vec<HostPattern>,
    /// Where the value comes from, on the host.
    pub source: Source,
    /// Where in a request the placeholder is replaced.
    pub place: Place,
    /// What the placeholder begins with, for programs that look at the form of a key before they use it.
    pub prefix: Option<String>,
    /// Whether the value may also travel over plain HTTP, where everyone on the way can read it.
    pub http: bool,
}

/// Where a secret's value comes from, on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A variable of sloplet's own environment.
    Env {
        /// Its name.
        var: String,
    },
    /// A file; one line break at its end is not part of the value.
    File {
        /// Where it is.
        path: PathBuf,
    },
    /// What a command prints, without a shell; one line break at its end is not part of the value.
    Command {
        /// The program and its arguments.
        argv: Vec<String>,
    },
}

/// Where in a request a placeholder is replaced. Everywhere else it stays a placeholder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Place {
    /// In every header and in the query, not in the body: bodies are often stored and shown again by the host.
    #[default]
    Anywhere,
    /// In this header, or in any.
    Header {
        /// Its name.
        name: Option<String>,
    },
    /// In this parameter of the query, or in any.
    Query {
        /// Its name.
        name: Option<String>,
    },
    /// In the body.
    Body,
    /// Nowhere: every request gets it, as the password of basic authentication, in place of whatever authentication it had.
    /// Programs inside need not know of it.
    Basic {
        /// Whose password it is.
        user: String,
    },
}

/// The user of basic authentication if none is said: with a token, hosts of git do not look at it, or want this one.
pub const USUAL_USER: &str = "x-access-token";

/// A rule that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Not of the form.
    #[error("secret '{given}' is not of the form NAME@host: write {corrected}")]
    Form {
        /// What was given.
        given: String,
        /// What was probably meant.
        corrected: String,
    },
    /// The variable's name is none.
    #[error(
        "'{0}' is not the name of a variable: use letters, digits and '_', not beginning with a digit, like API_KEY"
    )]
    Name(String),
    /// The source is none that is known.
    #[error("'{0}' is not a source of a secret: write env:VARIABLE, file:/path or cmd:program")]
    Source(String),
    /// The source's kind and place do not fit each other.
    #[error(
        "secret {0}: write from = \"env\" with var, from = \"file\" with path, or from = \"command\" with command = [..]"
    )]
    Table(String),
    /// More than one place.
    #[error("secret {0}: give one of header, query, body and basic, or none for header and query")]
    Places(String),
    /// An option that is none.
    #[error(
        "'{0}' is not an option of a secret: there are header=NAME, query=NAME, body, basic=USER, prefix=TEXT and http"
    )]
    Setting(String),
    /// The host is no host.
    #[error("'{given}' is not a host that a secret can be for: write {corrected}")]
    Host {
        /// What was given.
        given: String,
        /// What was probably meant.
        corrected: String,
    },
}

impl SecretRule {
    /// Refuses what cannot be meant: no host, a name that is no variable's, an empty source.
    pub fn check(&self) -> Result<(), SecretError> {
        if !is_variable(&self.name) {
            return Err(SecretError::Name(printable(&self.name)));
        }
        if self.hosts.is_empty() {
            let corrected = format!("{}@api.example.com", self.name);
            return Err(SecretError::Form { given: self.name.clone(), corrected });
        }
        let usable = match &self.source {
            Source::Env { var } => is_variable(var),
            Source::File { path } => !path.as_os_str().is_empty(),
            Source::Command { argv } => argv.first().is_some_and(|program| !program.is_empty()),
        };
        if !usable {
            return Err(SecretError::Source(String::new()));
        }
        let plain =
            |text: &String| text.len() <= 64 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        let named = match &self.place {
            Place::Header { name } | Place::Query { name } => name.as_ref(),
            Place::Anywhere | Place::Body => None,
            Place::Basic { user } => {
                let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.@+".contains(&b);
                if user.is_empty() || user.len() > 128 || !user.bytes().all(plain) {
                    return Err(SecretError::Setting(printable(user)));
                }
                None
            }
        };
        match named.into_iter().chain(&self.prefix).find(|text| !plain(text)) {
            Some(text) => Err(SecretError::Setting(printable(text))),
            None => Ok(()),
        }
    }

    /// Whether this host may see the value.
    pub fn is_for(&self, name: &str, port: u16) -> bool {
        let usual: &[u16] = if self.http { &[443, 80] } else { &[443] };
        self.hosts.iter().any(|host| host.matches(name, port, usual))
    }
}

impl FromStr for SecretRule {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let mut parts = text.split(';');
        let main = parts.next().unwrap_or("");
        let form = |corrected: String| SecretError::Form { given: shown(main), corrected };
        // A command may hold an '@', a host cannot.
        let Some((left, hosts)) = main.rsplit_once('@') else {
            let name = main.split('=').next().unwrap_or("");
            let name = if is_variable(name) { name } else { "API_KEY" };
            return Err(form(format!("{name}@api.example.com")));
        };
        let (name, source) = match left.split_once('=') {
            None => (left, Source::Env { var: left.to_owned() }),
            Some((name, source)) => (
                name,
                source_of(source).ok_or_else(|| {
                    // What follows may be the secret itself, given by mistake: it is not repeated.
                    form(format!("{0}=env:{0}@{hosts}; the value itself is never given here", name))
                })?,
            ),
        };
        let hosts = hosts.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let mut rule = Self { name: name.to_owned(), hosts, source, place: Place::Anywhere, prefix: None, http: false };
        for part in parts {
            let owned = |value: &str| Some(value.to_owned());
            match part.split_once('=').map_or((part, None), |(key, value)| (key, Some(value))) {
                ("header", value) => rule.place = Place::Header { name: value.and_then(owned) },
                ("query", value) => rule.place = Place::Query { name: value.and_then(owned) },
                ("body", None) => rule.place = Place::Body,
                ("basic", user) => rule.place = Place::Basic { user: user.unwrap_or(USUAL_USER).to_owned() },
                ("prefix", Some(value)) => rule.prefix = owned(value),
                ("http", None) => rule.http = true,
                _ => return Err(SecretError::Setting(printable(part))),
            }
        }
        rule.check()?;
        Ok(rule)
    }
}

fn source_of(text: &str) -> Option<Source> {
    let (kind, value) = text.split_once(':')?;
    match kind {
        "env" => Some(Source::Env { var: value.to_owned() }),
        "file" => Some(Source::File { path: value.into() }),
        "cmd" => Some(Source::Command { argv: value.split_whitespace().map(str::to_owned).collect() }),
        _ => None,
    }
}

fn is_variable(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.starts_with(|first: char| first.is_ascii_digit())
}

/// What was given, without what follows a `=`, which may be a secret.
fn shown(text: &str) -> String {
    text.split_once('=').map_or_else(|| printable(text), |(name, _)| format!("{}=…", printable(name)))
}

fn printable(text: &str) -> String {
    text.chars().take(60).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> SecretRule {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn rules_are_read_as_people_write_them() {
        let short = rule("ANTHROPIC_API_KEY@api.anthropic.com");
        assert_eq!(short.source, Source::Env { var: "ANTHROPIC_API_KEY".into() });
        assert_eq!(short.place, Place::Anywhere);
        let long = rule("KEY=env:WORK_KEY@API.example.com,*.example.org:8443;header=x-api-key;prefix=sk-ant-;http");
        assert_eq!(
            long.hosts.iter().map(HostPattern::to_string).collect::<Vec<_>>(),
            ["api.example.com", "*.example.org:8443"]
        );
        assert_eq!(long.place, Place::Header { name: Some("x-api-key".into()) });
        assert!(long.http && long.prefix.as_deref() == Some("sk-ant-"));
        assert_eq!(rule("K=file:/run/key@h.example").source, Source::File { path: "/run/key".into() });
        let command = rule("K=cmd:pass show me@work@h.example;query").source;
        assert_eq!(command, Source::Command { argv: ["pass", "show", "me@work"].map(String::from).into() });
    }

    #[test]
    fn bad_rules_are_refused_with_the_corrected_form() {
        for (text, hint) in [
            ("TOKEN", "write TOKEN@api.example.com"),
            ("", "write API_KEY@api.example.com"),
            ("TOKEN=sk-123@h.example", "TOKEN=env:TOKEN@h.example"),
            ("1TOKEN@h.example", "not the name of a variable"),
            ("TOKEN@*", "like api.example.com"),
            ("TOKEN@*.com", "like api.example.com"),
            ("TOKEN@", "like api.example.com"),
            ("TOKEN@https://h.example/v1", "write h.example"),
            ("TOKEN@h.example:0", "write h.example:443"),
            ("TOKEN@a..b", "like api.example.com"),
            ("TOKEN@h.example;heder=x", "header=NAME"),
            ("TOKEN@h.example;header=a b", "'a b' is not an option"),
            ("TOKEN@h.example;basic=a:b", "'a:b' is not an option"),
            ("TOKEN=env:@h.example", "env:VARIABLE"),
            ("TOKEN=cmd: @h.example", "cmd:program"),
        ] {
            let error = text.parse::<SecretRule>().unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
            assert!(!error.contains("sk-123"), "a value was repeated: {error}");
        }
    }

    #[test]
    fn plain_http_is_for_rules_that_say_so() {
        assert!(rule("K@h.example;http").is_for("h.example", 80) && !rule("K@h.example").is_for("h.example", 80));
    }

    #[test]
    fn json_reads_back() {
        for text in [
            "K@h.example",
            "K@h.example;basic=me@work",
            "K=file:/k@h.example;query=key",
            "K=cmd:a b@*.h.example:1;body;http",
        ] {
            let json = serde_json::to_string(&rule(text)).unwrap();
            assert_eq!(serde_json::from_str::<SecretRule>(&json).unwrap(), rule(text), "{json}");
        }
        let table = r#"{"from":"env","hosts":["api.anthropic.com"],"header":"x-api-key"}"#;
        let table: SecretTable = serde_json::from_str(table).unwrap();
        assert_eq!(table.rule("KEY").unwrap(), rule("KEY@api.anthropic.com;header=x-api-key"));
    }

    #[test]
    fn tables_are_checked_as_text_is() {
        for (json, hint) in [
            (r#"{"name":"K","hosts":["*"]}"#, "like api.example.com"),
            (r#"{"name":"K","hosts":[]}"#, "K@api.example.com"),
            (r#"{"hosts":["h.example"]}"#, "not the name of a variable"),
            (r#"{"name":"K","hosts":["h.example"],"from":"file"}"#, "with path"),
            (r#"{"name":"K","hosts":["h.example"],"header":true,"body":true}"#, "one of header"),
            (r#"{"name":"K","hosts":["h.example"],"value":"sk"}"#, "unknown field"),
        ] {
            let error = serde_json::from_str::<SecretRule>(json).unwrap_err().to_string();
            assert!(error.contains(hint), "{json}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in ".*") {
            let _ = text.parse::<SecretRule>();
            let _ = text.parse::<HostPattern>();
        }
    }
}
