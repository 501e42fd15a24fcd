//! The HTTP proxy inside, for programs whose proxy variables are set. It decides as the transparent way does.

use std::sync::Arc;
use std::time::Duration;

use sloplet_policy::network::is_name;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::connection::{self, Entry, Place, Stop, locate};
use crate::egress::Core;
use crate::http::{Authority, Head};
use crate::refuse::{Problem, refuse};
use crate::requests;

/// The yes that CONNECT waits for.
pub(crate) const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// How long the first request may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Fields between a client and its proxy, which go no further.
const HOP: [&str; 5] = ["host", "connection", "keep-alive", "proxy-connection", "proxy-authorization"];

/// Serves one connection to the proxy: one CONNECT, or one request to an absolute target.
pub(crate) async fn serve(core: &Arc<Core>, client: &Arc<TcpStream>) {
    let (mut seen, mut from) = (Vec::new(), 0);
    let problem = match timeout(PATIENCE, requests::read_head(client, &mut seen, &mut from)).await {
        Ok(Ok(Some((head, length)))) => {
            seen.drain(..length);
            match target(&head) {
                Ok((authority, port, entry, rewritten)) => {
                    let (place, _held) = match authority.address() {
                        Some(address) => locate(core, address.to_canonical()),
                        None => (Place::Name(authority.host), None),
                    };
                    if let Some(mut head) = rewritten {
                        head.extend_from_slice(&seen);
                        seen = head;
                    }
                    return connection::serve(core, Arc::clone(client), seen, place, port, entry).await;
                }
                Err(problem) => problem,
            }
        }
        Ok(Err(Stop::Problem(problem))) => problem,
        _ => return,
    };
    refuse(client, &mut seen, 0, Entry::Forward, "this request", &problem).await;
}

/// A host, a port, how it is served, and the request as its server should see it.
type Route = (Authority, u16, Entry, Option<Vec<u8>>);

/// Where a request wants to go, and the request as its server should see it.
fn target(head: &Head) -> Result<Route, Problem> {
    if head.method == "CONNECT" {
        let authority =
            Authority::parse(&head.target).and_then(|a| a.port.filter(|port| *port > 0).map(|port| (a, port)));
        let (authority, port) = authority.ok_or_else(|| Problem::malformed("CONNECT needs a host and a port"))?;
        if head.host.as_ref().is_some_and(|host| host.host != authority.host) {
            return Err(Problem::malformed("the request's target and its Host differ"));
        }
        return Ok((known(authority)?, port, Entry::Connect, None));
    }
    let Some(absolute) = head.absolute() else {
        return Err(Problem::malformed("this is a proxy; it takes CONNECT and absolute http:// targets"));
    };
    let (scheme, authority, path) = absolute.ok_or_else(|| Problem::malformed("the request's target is malformed"))?;
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(Problem::malformed("the proxy speaks http:// only; for https:// use CONNECT"));
    }
    if head.host.as_ref().is_some_and(|host| host.host != authority.host) {
        return Err(Problem::malformed("the request's target and its Host differ"));
    }
    let port = authority.port.unwrap_or(80);
    if port == 0 {
        return Err(Problem::malformed("there is no port 0"));
    }
    let authority = known(authority)?;
    let rewritten = rewrite(head, &authority, path);
    Ok((authority, port, Entry::Forward, Some(rewritten)))
}

/// Refuses hosts that are neither a name nor an address in the plain spelling: `0x7f.1` is an address to some.
fn known(authority: Authority) -> Result<Authority, Problem> {
    match authority.address().is_some() || is_name(&authority.host) {
        true => Ok(authority),
        false => Err(Problem { status: 403, ..Problem::malformed("the host is neither a name nor a plain address") }),
    }
}

/// One request to a server, after which the connection ends: the next one may be for another host.
fn rewrite(head: &Head, authority: &Authority, path: &str) -> Vec<u8> {
    let path = path.split('#').next().unwrap_or_default();
    let slash = if path.starts_with('/') { "" } else { "/" };
    let host = if authority.host.contains(':') { format!("[{}]", authority.host) } else { authority.host.clone() };
    let port = authority.port.filter(|port| *port != 80).map(|port| format!(":{port}")).unwrap_or_default();
    let connection = if head.upgrade { "Upgrade" } else { "close" };
    let mut out = format!(
        "{} {slash}{path} HTTP/1.{}\r\nHost: {host}{port}\r\nConnection: {connection}\r\n",
        head.method, head.minor
    )
    .into_bytes();
    for (name, value) in &head.fields {
        if !HOP.iter().any(|hop| name.eq_ignore_ascii_case(hop)) {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
    }
    out.extend_from_slice(b"\r\n");
    out
}
