//! Whether a connection's bytes say what its address said.

use std::sync::Arc;

use sloplet_policy::network::{Network, Wanted};

use crate::egress::Core;
use crate::http::{Authority, Head};
use crate::refuse::Problem;

/// What the names that a connection shows are held against.
#[derive(Debug, Clone)]
pub(crate) enum Check {
    /// They must all be this name, at this port.
    Name(String, u16),
    /// None of them may be denied, by the rules of that moment: the connection is to an address.
    NotDenied(Arc<Core>, u16),
    /// They do not matter.
    Nothing,
}

impl Check {
    /// The server name of a ClientHello.
    pub(crate) fn server_name(&self, shown: Option<&str>) -> Result<(), Problem> {
        match (self, shown) {
            (Self::Name(name, _), Some(shown)) if shown != name => {
                Err(Problem::denied(format!("the TLS server name is {shown:?}, not the name that was resolved")))
            }
            (Self::Name(..), None) => Err(Problem::denied("the TLS handshake does not say a server name")),
            (Self::NotDenied(core, port), Some(shown)) => not_denied(&core.network(), shown, *port),
            _ => Ok(()),
        }
    }

    /// A request's Host and target.
    pub(crate) fn request(&self, head: &Head) -> Result<(), Problem> {
        let absolute = match head.absolute() {
            Some(None) => return Err(Problem::malformed("the request's target is malformed")),
            Some(Some((_, authority, _))) => Some(authority),
            None => None,
        };
        if let (Some(target), Some(host)) = (&absolute, &head.host)
            && target.host != host.host
        {
            return Err(Problem::malformed("the request's target and its Host differ"));
        }
        match self {
            Self::Name(name, port) => {
                if head.method == "CONNECT" {
                    return Err(Problem::malformed("CONNECT asks a proxy for another host"));
                }
                if absolute.is_none() && !head.target.starts_with('/') && head.target != "*" {
                    return Err(Problem::malformed("the request's target is malformed"));
                }
                let Some(host) = &head.host else { return Err(Problem::malformed("the request has no Host")) };
                for said in absolute.iter().chain([host]) {
                    same(said, name, *port)?;
                }
                Ok(())
            }
            Self::NotDenied(core, port) => {
                let network = core.network();
                absolute.iter().chain(&head.host).try_for_each(|said| not_denied(&network, &said.host, *port))
            }
            Self::Nothing => Ok(()),
        }
    }
}

fn same(said: &Authority, name: &str, port: u16) -> Result<(), Problem> {
    if said.host != name {
        let host = &said.host;
        return Err(Problem::malformed(format!("the request is for {host:?}, not for the name that was resolved")));
    }
    match said.port {
        Some(other) if other != port => {
            Err(Problem::malformed(format!("the request is for port {other}, the connection to port {port}")))
        }
        _ => Ok(()),
    }
}

fn not_denied(network: &Network, name: &str, port: u16) -> Result<(), Problem> {
    match network.denied_by(Wanted::Name(name), port) {
        Some(rule) => Err(Problem::denied(format!("it shows the name {name:?}, which the rule '{rule}' denies"))),
        None if network.ask.iter().any(|rule| rule.host.matches(Wanted::Name(name))) => {
            Err(Problem::denied(format!("it shows the name {name:?}, which must be resolved to be asked about")))
        }
        None => Ok(()),
    }
}
