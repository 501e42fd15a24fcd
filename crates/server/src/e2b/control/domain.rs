//! The domain whose names `<port>-<id>.<domain>` lead to ports of sandboxes: `get_host()` of E2B's SDKs.
//!
//! An SDK that is not told a domain takes E2B's own, and would send what is meant for a sandbox of this server there. So there is
//! always one: the server's (`--domain`), or else what the caller calls this server. An address has no names below it, but
//! `localhost` has: every name that ends in it is this machine (RFC 6761).

use std::net::IpAddr;

use axum::extract::FromRequestParts;
use axum::http::header::HOST;
use axum::http::request::Parts;

use crate::app::App;
use crate::auth::OwnUser;

/// What a caller is told.
#[derive(Debug, Clone)]
pub struct Domain(pub String);

impl FromRequestParts<App> for Domain {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Self::Rejection> {
        let config = app.config();
        if let Some(domain) = &config.domain {
            return Ok(Self(domain.clone()));
        }
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let called = parts.uri.authority().map(|authority| authority.as_str());
        let called = header("x-forwarded-host").or(called).or_else(|| header(HOST.as_str()));
        // Over the Unix socket a request names nothing that others could use.
        let called = called.filter(|_| parts.extensions.get::<OwnUser>().is_none());
        let own = config.url.split_once("://").map_or(config.url.as_str(), |(_, own)| own);
        Ok(Self(called.and_then(below).or_else(|| below(own)).unwrap_or_else(|| "localhost".to_owned())))
    }
}

/// The domain of a server that is called this, `host` or `host:port`.
fn below(called: &str) -> Option<String> {
    let (host, port) = match called.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port.parse::<u16>().ok()?)),
        _ => (called, None),
    };
    let address: Option<IpAddr> = host.trim_start_matches('[').trim_end_matches(']').parse().ok();
    let plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    let name = match address {
        Some(address) if address.is_loopback() || address.is_unspecified() => "localhost",
        Some(_) => host,
        None if !host.is_empty() && plain(host) => match host.strip_prefix("api.") {
            // The SDKs put it before the domain that they were given.
            Some(domain) if domain.contains('.') => domain,
            _ => host,
        },
        None => return None,
    };
    Some(port.map_or_else(|| name.to_owned(), |port| format!("{name}:{port}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_below_what_the_server_is_called() {
        for (called, domain) in [
            ("127.0.0.1:7070", "localhost:7070"),
            ("[::1]:7070", "localhost:7070"),
            ("0.0.0.0:7070", "localhost:7070"),
            ("localhost:7070", "localhost:7070"),
            ("api.sandbox.example.com", "sandbox.example.com"),
            ("api.sandbox.example.com:8443", "sandbox.example.com:8443"),
            ("box:80", "box:80"),
            ("api.local", "api.local"),
            // No name leads there, and none to anybody else.
            ("192.0.2.7:7070", "192.0.2.7:7070"),
        ] {
            assert_eq!(below(called).as_deref(), Some(domain), "{called}");
        }
        for wrong in ["", ":80", "a b", "x:99999", "evil.example/path", "user@host"] {
            assert_eq!(below(wrong), None, "{wrong}");
        }
    }
}
