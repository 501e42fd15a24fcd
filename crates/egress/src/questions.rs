//! Answering DNS questions. Nothing is ever asked of anybody else: names are looked up when they are dialed.
//!
//! A name that no rule allows does not exist (NXDOMAIN): glibc, musl, curl, Python and node give up at once with "not
//! known". With REFUSED glibc speaks of a temporary failure, which programs try again, and musl takes five seconds. Records other than addresses of allowed names are empty.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sloplet_policy::network::{Denial, Wanted, is_name};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::dns::{Code, Query, Record, kind, reverse};
use crate::egress::Core;
use crate::event::Event;
use crate::names;
use crate::relay;

/// How long a TCP connection to the resolver may be quiet.
const QUIET: Duration = Duration::from_secs(10);

/// The longest question over TCP.
const MAX_QUESTION: usize = 1232;

impl Core {
    /// The answer to a message, if it gets one.
    pub(crate) fn answer(&self, message: &[u8]) -> Option<Vec<u8>> {
        self.sums.lookups.fetch_add(1, Relaxed);
        let query = match Query::parse(message) {
            Ok(query) => query,
            Err(answer) => return answer,
        };
        if !self.may_ask() {
            return Some(query.answer(Code::Refused, None, Some("too many questions per second")));
        }
        if !query.internet {
            return Some(query.answer(Code::Refused, None, None));
        }
        Some(match self.find(&query) {
            Ok(record) => query.answer(Code::NoError, record.as_ref(), None),
            Err((code, reason)) => query.answer(code, None, Some(&reason)),
        })
    }

    /// What careless resolvers do, and this one does only where a test takes that away from it: it asks on.
    pub(crate) fn leak(self: &Arc<Self>, message: &[u8]) {
        if let (true, Ok(query)) = (self.options.lacks("egress-questions"), Query::parse(message)) {
            let core = Arc::clone(self);
            tokio::spawn(async move { core.options.resolver.resolve(&query.name.unwrap_or_default()).await });
        }
    }

    fn find(&self, query: &Query) -> Result<Option<Record>, (Code, String)> {
        let name = query.name.as_deref().unwrap_or_default();
        if name == "localhost" || name.ends_with(".localhost") {
            return Ok(match query.kind {
                kind::A | kind::ANY => Some(Record::A(Ipv4Addr::LOCALHOST)),
                kind::AAAA => Some(Record::Aaaa(Ipv6Addr::LOCALHOST)),
                _ => None,
            });
        }
        if let Some(found) = reverse(name).and_then(|address| self.name_of(address)) {
            return Ok(matches!(query.kind, kind::PTR | kind::ANY).then_some(Record::Ptr(found)));
        }
        let network = self.network();
        if !is_name(name) || !network.resolves(name) {
            return Err((Code::NoSuchName, self.deny(query, name)));
        }
        let number =
            || self.names.lock().number(name).ok_or((Code::ServerFailure, "too many names are in use".to_owned()));
        Ok(match query.kind {
            kind::A | kind::ANY => Some(Record::A(names::v4(number()?))),
            kind::AAAA if network.ipv6 => Some(Record::Aaaa(names::v6(number()?))),
            _ => None,
        })
    }

    fn deny(&self, query: &Query, name: &str) -> String {
        self.sums.lookups_denied.fetch_add(1, Relaxed);
        let hint = Denial::Unlisted.hint(Wanted::Name(name), 443).unwrap_or_default();
        let (name, record) = (query.shown.clone(), query.kind_name());
        self.tell(Event::Lookup { name, record, reason: Denial::Unlisted.to_string() });
        format!("{}: {hint}", Denial::Unlisted)
    }

    fn name_of(&self, address: IpAddr) -> Option<String> {
        self.names.lock().name(names::number(address)?).map(str::to_owned)
    }
}

/// Questions over TCP: each with its length before it.
pub(crate) async fn over_tcp(core: &Core, client: &TcpStream) {
    let mut buffer = Vec::new();
    loop {
        while let Some((length, rest)) = buffer.split_first_chunk::<2>() {
            let length = usize::from(u16::from_be_bytes(*length));
            if length > MAX_QUESTION {
                return relay::reset(client);
            }
            let Some(message) = rest.get(..length) else { break };
            let Some(answer) = core.answer(message) else { return relay::reset(client) };
            let framed = [&(answer.len() as u16).to_be_bytes()[..], &answer].concat();
            if !matches!(timeout(QUIET, relay::write_all(client, &framed)).await, Ok(Ok(()))) {
                return relay::reset(client);
            }
            buffer.drain(..2 + length);
        }
        match timeout(QUIET, relay::read_more(client, &mut buffer)).await {
            Ok(Ok(1..)) => {}
            _ => return,
        }
    }
}
