//! Addresses of hosts that no sandbox may reach, by whatever name or without one.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::time::timeout;

use crate::egress::Core;

/// How long what was found is used again.
const REMEMBER: Duration = Duration::from_secs(30);

/// How long the names may take: every connection waits for them.
const LOOKUP: Duration = Duration::from_secs(5);

/// Addresses that are kept, at most.
const MOST: usize = 4096;

/// What is known of them.
#[derive(Debug, Default)]
pub(crate) struct Known {
    since: Option<Instant>,
    addresses: BTreeSet<IpAddr>,
}

impl Core {
    /// The addresses that protected hosts have now, and those that they have had since the egress started: a host with many
    /// tells a few at a time. A name that is not found has none.
    pub(crate) async fn protected(&self) -> BTreeSet<IpAddr> {
        if self.options.protected.is_empty() {
            return BTreeSet::new();
        }
        // One asks, the others wait for the answer.
        let mut known = self.protected.lock().await;
        if known.since.is_none_or(|since| since.elapsed() >= REMEMBER) {
            let find = async |name: &String| timeout(LOOKUP, self.options.resolver.resolve(name)).await;
            let found = join_all(self.options.protected.iter().map(find)).await;
            let found = found.into_iter().flatten().flatten().flatten();
            let room = MOST.saturating_sub(known.addresses.len());
            known.addresses.extend(found.take(room).map(|address| address.to_canonical()));
            known.since = Some(Instant::now());
        }
        known.addresses.clone()
    }
}
