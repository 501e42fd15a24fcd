//! Headers that are set on a sandbox's requests, on their way out.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::secret::HostPattern;

/// Rules of one sandbox.
const MAX_RULES: usize = 1000;

/// Headers of one rule.
const MAX_HEADERS: usize = 64;

/// Bytes of a name and its value: servers take no longer ones.
const MAX_BYTES: usize = 8192;

/// Headers that say how a message is framed, or whom it is for: with another value it would be another message.
const OWN: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers that are set on requests to a host. Programs inside cannot see them, nor say something else in their place.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeaderRule {
    /// The host; at the ports 80 and 443 unless it has one of its own. It is not allowed by this alone.
    pub host: HostPattern,
    /// Names and values.
    pub headers: BTreeMap<String, String>,
}

/// A rule that makes no sense. Values are not repeated: they may be secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Too many.
    #[error("at most {MAX_RULES} hosts can have headers of their own, with {MAX_HEADERS} headers each")]
    TooMany,
    /// An address, which no name led to.
    #[error("headers are set on requests to names, and '{0}' is an address: give the name that programs inside use")]
    Address(String),
    /// Not a header's name.
    #[error("'{0}' is not the name of a header: use letters, digits and hyphens")]
    Name(String),
    /// A header that is not for others to set.
    #[error("the header '{0}' cannot be set: it belongs to the connection that a request is sent on")]
    Own(String),
    /// Not a header's value.
    #[error("the value of the header '{0}' cannot be sent: it has a control character, or more than {MAX_BYTES} bytes")]
    Value(String),
}

impl HeaderRule {
    /// Whether requests to this host are meant.
    pub fn is_for(&self, name: &str, port: u16) -> bool {
        self.host.matches(name, port, &[80, 443])
    }

    /// Refuses what cannot be sent.
    pub fn check_all(rules: &[Self]) -> Result<(), HeaderError> {
        if rules.len() > MAX_RULES || rules.iter().any(|rule| rule.headers.len() > MAX_HEADERS) {
            return Err(HeaderError::TooMany);
        }
        rules.iter().try_for_each(Self::check)
    }

    fn check(&self) -> Result<(), HeaderError> {
        if self.host.name().parse::<std::net::Ipv4Addr>().is_ok() {
            return Err(HeaderError::Address(self.host.to_string()));
        }
        for (name, value) in &self.headers {
            let shown = || name.chars().take(60).flat_map(char::escape_debug).collect::<String>();
            let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if name.is_empty() || name.len() > 256 || !name.bytes().all(token) {
                return Err(HeaderError::Name(shown()));
            }
            if OWN.iter().any(|own| name.eq_ignore_ascii_case(own)) {
                return Err(HeaderError::Own(shown()));
            }
            let printed = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
            if name.len() + value.len() > MAX_BYTES || !value.bytes().all(printed) {
                return Err(HeaderError::Value(shown()));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for HeaderRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.host, self.headers.keys())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(host: &str, name: &str, value: &str) -> HeaderRule {
        let headers = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        HeaderRule { host: host.parse().unwrap(), headers }
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        let check = |host: &str, name: &str, value: &str| HeaderRule::check_all(&[rule(host, name, value)]);
        assert_eq!(check("*.example.com:8443", "X-Token", "a \"b\" ü"), Ok(()));
        for (host, name, value, hint) in [
            ("1.2.3.4", "x-token", "a", "is an address"),
            ("h.example", "", "a", "not the name"),
            ("h.example", "x token", "a", "not the name"),
            ("h.example", "x\r\ny", "a", "not the name"),
            ("h.example", "Transfer-Encoding", "chunked", "cannot be set"),
            ("h.example", "HOST", "other.example", "cannot be set"),
            ("h.example", "x-token", "secret\r\nx: y", "cannot be sent"),
            ("h.example", "x-token", &"x".repeat(MAX_BYTES), "cannot be sent"),
        ] {
            let error = check(host, name, value).unwrap_err().to_string();
            assert!(error.contains(hint) && !error.contains("secret"), "{name}: {error}");
        }
        assert_eq!(HeaderRule::check_all(&vec![rule("h.example", "a", "b"); 1001]), Err(HeaderError::TooMany));
    }

    #[test]
    fn values_are_not_shown_by_chance() {
        let shown = format!("{:?}", rule("h.example", "authorization", "Bearer secret"));
        assert!(shown.contains("authorization") && !shown.contains("secret"), "{shown}");
    }
}
