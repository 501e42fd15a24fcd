//! A secret's rule as files and JSON have it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{HostPattern, Place, SecretError, SecretRule, Source, USUAL_USER};

/// A rule as files and JSON have it: `{ from = "env", hosts = ["api.example.com"], header = "x-api-key" }`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretTable {
    /// The variable inside; where the table has a key, the key is it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Who may see the value.
    pub hosts: Vec<HostPattern>,
    /// What kind of source it has.
    #[serde(default)]
    pub from: From,
    /// The variable on the host, if its name is not the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub var: Option<String>,
    /// The file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// The program and its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Only in this header; `true` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<AnyOr>,
    /// Only in this parameter of the query; `true` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<AnyOr>,
    /// Only in the body.
    #[serde(default, skip_serializing_if = "is_false")]
    pub body: bool,
    /// In every request, as the password of this user; `true` for the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic: Option<AnyOr>,
    /// What the placeholder begins with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Whether the value may travel over plain HTTP.
    #[serde(default, skip_serializing_if = "is_false")]
    pub http: bool,
}

/// A kind of source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum From {
    /// See [`Source::Env`].
    #[default]
    Env,
    /// See [`Source::File`].
    File,
    /// See [`Source::Command`].
    Command,
}

/// Any, or the one of this name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AnyOr {
    /// Any.
    Any(bool),
    /// This one.
    Name(String),
}

fn is_false(value: &bool) -> bool {
    !value
}

impl SecretTable {
    /// The rule, under this name if the table has none of its own.
    pub fn rule(self, name: &str) -> Result<SecretRule, SecretError> {
        let name = self.name.unwrap_or_else(|| name.to_owned());
        let source = match (self.from, self.var, self.path, self.command) {
            (From::Env, var, None, None) => Source::Env { var: var.unwrap_or_else(|| name.clone()) },
            (From::File, None, Some(path), None) => Source::File { path },
            (From::Command, None, None, Some(argv)) => Source::Command { argv },
            _ => return Err(SecretError::Table(name)),
        };
        let named = |choice: AnyOr| match choice {
            AnyOr::Any(any) => any.then_some(None),
            AnyOr::Name(name) => Some(Some(name)),
        };
        let header = self.header.and_then(named).map(|name| Place::Header { name });
        let query = self.query.and_then(named).map(|name| Place::Query { name });
        let basic =
            self.basic.and_then(named).map(|user| Place::Basic { user: user.unwrap_or_else(|| USUAL_USER.into()) });
        let mut places = [header, query, self.body.then_some(Place::Body), basic].into_iter().flatten();
        let place = match (places.next(), places.next()) {
            (place, None) => place.unwrap_or_default(),
            _ => return Err(SecretError::Places(name)),
        };
        let rule = SecretRule { name, hosts: self.hosts, source, place, prefix: self.prefix, http: self.http };
        rule.check()?;
        Ok(rule)
    }
}

impl TryFrom<SecretTable> for SecretRule {
    type Error = SecretError;

    fn try_from(table: SecretTable) -> Result<Self, SecretError> {
        table.rule("")
    }
}

impl std::convert::From<SecretRule> for SecretTable {
    fn from(rule: SecretRule) -> Self {
        let (from, var, path, command) = match rule.source {
            Source::Env { var } => (From::Env, Some(var).filter(|var| *var != rule.name), None, None),
            Source::File { path } => (From::File, None, Some(path), None),
            Source::Command { argv } => (From::Command, None, None, Some(argv)),
        };
        let any = |name: Option<String>| Some(name.map_or(AnyOr::Any(true), AnyOr::Name));
        let (header, query, body, basic) = match rule.place {
            Place::Anywhere => (None, None, false, None),
            Place::Header { name } => (any(name), None, false, None),
            Place::Query { name } => (None, any(name), false, None),
            Place::Body => (None, None, true, None),
            Place::Basic { user } => (None, None, false, Some(AnyOr::Name(user))),
        };
        let (hosts, prefix, http) = (rule.hosts, rule.prefix, rule.http);
        Self { name: Some(rule.name), hosts, from, var, path, command, header, query, body, basic, prefix, http }
    }
}
