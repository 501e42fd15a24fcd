//! Saying no so that it is heard: at once, and in the words of whoever asked.

use std::net::IpAddr;
use std::time::Duration;

use sloplet_policy::network::{Denial, Refusal, Wanted};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::connection::Entry;
use crate::first::{self, Kind};
use crate::hello;
use crate::relay;

/// How long to wait for a program's first words on ports where programs speak first: they are on their way.
const WEB_PATIENCE: Duration = Duration::from_secs(1);

/// The same on other ports, where the server may have to speak first.
const PATIENCE: Duration = Duration::from_millis(30);

/// Ports where programs speak HTTP or TLS.
const WEB_PORTS: [u16; 9] = [80, 443, 3000, 5000, 8000, 8008, 8080, 8443, 8888];

/// How long and how much to listen on, so that the answer is not lost to a reset.
const DRAIN: (Duration, usize) = (Duration::from_millis(500), 256 << 10);

/// Why a connection does not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// For those who speak HTTP.
    pub(crate) status: u16,
    /// What happened, for events.
    pub(crate) reason: String,
    /// The flag that would change it.
    pub(crate) hint: Option<String>,
    /// Whether it is a decision, not a failure.
    pub(crate) denied: bool,
}

impl Problem {
    /// The rules say no.
    pub(crate) fn rules(denial: &Denial, wanted: Wanted<'_>, port: u16) -> Self {
        Self { status: 403, reason: denial.to_string(), hint: denial.hint(wanted, port), denied: true }
    }

    /// Only addresses that may not be dialed.
    pub(crate) fn vetted(refusal: &Refusal, port: u16) -> Self {
        let hint = match refusal.address {
            _ if refusal.reason == "denied by a rule" => None,
            IpAddr::V4(v4) => Some(format!("--allow {v4}:{port}")),
            IpAddr::V6(v6) => Some(format!("--allow '[{v6}]:{port}'")),
        };
        Self { status: 403, reason: refusal.to_string(), hint, denied: true }
    }

    /// Another decision against it.
    pub(crate) fn denied(reason: impl Into<String>) -> Self {
        Self { status: 403, reason: reason.into(), hint: None, denied: true }
    }

    /// It does not say one clear thing.
    pub(crate) fn malformed(reason: impl Into<String>) -> Self {
        Self { status: 400, reason: reason.into(), hint: None, denied: true }
    }

    /// A line that is no request, and that a lenient server could take for one.
    pub(crate) fn unclear(wanted: Wanted<'_>, port: u16) -> Self {
        let hint = match wanted {
            Wanted::Name(name) => format!("--allow {name}:{port}/tcp"),
            Wanted::Address(IpAddr::V4(v4)) => format!("--allow {v4}:{port}/tcp"),
            Wanted::Address(IpAddr::V6(v6)) => format!("--allow '[{v6}]:{port}/tcp'"),
        };
        let reason = "its first line could be taken for an HTTP request and cannot be checked as one";
        Self { hint: Some(hint), ..Self::malformed(reason) }
    }

    /// The other end cannot be reached.
    pub(crate) fn failed(status: u16, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), hint: None, denied: false }
    }

    /// An HTTP response that says so.
    pub(crate) fn response(&self, place: &str) -> String {
        let phrase = match self.status {
            400 => "Bad Request",
            403 => "Forbidden",
            429 => "Too Many Requests",
            504 => "Gateway Timeout",
            _ => "Bad Gateway",
        };
        let verb = if self.denied { "may not be reached from this sandbox" } else { "could not be reached" };
        let mut body = format!("sloplet: {place} {verb}: {}.\n", self.reason);
        if let Some(hint) = &self.hint {
            body += &format!("Who started the sandbox can allow it with: {hint}\n");
        }
        let (status, length) = (self.status, body.len());
        format!(
            "HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\n\
             Cache-Control: no-store\r\nConnection: close\r\n\r\n{body}"
        )
    }
}

/// Tells a program that its connection does not go on: HTTP in HTTP, TLS with an alert, others by a reset.
pub(crate) async fn refuse(
    client: &TcpStream,
    seen: &mut Vec<u8>,
    port: u16,
    entry: Entry,
    place: &str,
    problem: &Problem,
) {
    let patience = if WEB_PORTS.contains(&port) { WEB_PATIENCE } else { PATIENCE };
    if seen.is_empty() && entry == Entry::Direct {
        let _ = timeout(patience, relay::read_more(client, seen)).await;
    }
    let response = problem.response(place);
    let text = matches!(first::classify(seen), Kind::Http | Kind::Text);
    let answer: &[u8] = if entry != Entry::Direct || text || first::common_http(seen) {
        response.as_bytes()
    } else if hello::begins(seen) {
        // A fatal alert: access denied.
        &[21, 3, 3, 0, 2, 2, 49]
    } else {
        return relay::reset(client);
    };
    let told = async {
        if relay::write_all(client, answer).await.is_ok() {
            relay::finish(client);
            let mut left = DRAIN.1;
            seen.clear();
            while let Ok(count @ 1..) = relay::read_more(client, seen).await {
                left = left.saturating_sub(count);
                seen.clear();
                if left == 0 {
                    break;
                }
            }
        }
    };
    let _ = timeout(DRAIN.0, told).await;
}
