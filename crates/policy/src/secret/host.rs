//! Hosts by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{SecretError, printable};

/// A host by name: `api.example.com`, `*.example.com` (not `example.com` itself), each with `:port` if it is not the usual.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPattern {
    name: String,
    below: bool,
    port: Option<u16>,
}

impl HostPattern {
    /// Whether it means this host and port. Without a port of its own it means `usual` ones.
    pub fn matches(&self, name: &str, port: u16, usual: &[u16]) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let named = match self.below {
            false => name == self.name,
            true => name.strip_suffix(&self.name).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
        };
        named && self.port.map_or_else(|| usual.contains(&port), |own| own == port)
    }

    /// The name, without `*.`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it means the names below it, and not the name itself.
    pub fn is_below(&self) -> bool {
        self.below
    }

    /// The port, if it has one of its own.
    pub fn port(&self) -> Option<u16> {
        self.port
    }
}

impl FromStr for HostPattern {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let error = |corrected: &str| SecretError::Host { given: printable(text), corrected: corrected.to_owned() };
        let lower = text.trim().to_ascii_lowercase();
        let bare = lower.split_once("://").map_or(lower.as_str(), |(_, rest)| rest);
        let bare = bare.split(['/', '?', '#']).next().unwrap_or("");
        let (name, port) = match bare.rsplit_once(':') {
            Some((name, port)) => match port.parse::<u16>() {
                Ok(port) if port > 0 => (name, Some(port)),
                _ if is_name(name) => return Err(error(&format!("{name}:443"))),
                _ => return Err(error("a name, like api.example.com or *.example.com:8443")),
            },
            None => (bare, None),
        };
        let (below, name) = name.strip_prefix("*.").map_or((false, name), |rest| (true, rest));
        let name = name.strip_suffix('.').unwrap_or(name);
        if !is_name(name) || (below && !name.contains('.')) {
            return Err(error("a name, like api.example.com or *.example.com; there is no secret for every host"));
        }
        let pattern = Self { name: name.to_owned(), below, port };
        match lower == bare {
            true => Ok(pattern),
            false => Err(error(&pattern.to_string())),
        }
    }
}

/// Names and IPv4 addresses: labels of letters, digits, `-` and `_`.
fn is_name(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.below { "*." } else { "" };
        write!(f, "{star}{}", self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl TryFrom<String> for HostPattern {
    type Error = SecretError;

    fn try_from(text: String) -> Result<Self, SecretError> {
        text.parse()
    }
}

impl std::convert::From<HostPattern> for String {
    fn from(pattern: HostPattern) -> Self {
        pattern.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_means_names_below_and_not_the_apex() {
        let below: HostPattern = "*.example.com".parse().unwrap();
        for (name, expected) in [("a.example.com", true), ("a.b.Example.com.", true), ("example.com", false)] {
            assert_eq!(below.matches(name, 443, &[443]), expected, "{name}");
        }
        assert!(!below.matches("evilexample.com", 443, &[443]) && !below.matches(".example.com", 443, &[443]));
        assert!(!below.matches("a.example.com", 22, &[443]));
        let ported: HostPattern = "h.example:8443".parse().unwrap();
        assert!(ported.matches("h.example", 8443, &[443]) && !ported.matches("h.example", 443, &[443]));
    }
}
