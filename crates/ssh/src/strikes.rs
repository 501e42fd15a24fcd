//! Who failed to log in too often of late.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Failures within [`WITHIN`] after which nobody of that network is listened to.
const MOST: u32 = 30;

/// How long a failure counts.
const WITHIN: Duration = Duration::from_secs(60);

/// Networks that are remembered. When there are more, the oldest count starts again.
const NETWORKS: usize = 4096;

/// Failures of late, by network.
#[derive(Debug, Default)]
pub(crate) struct Strikes(Mutex<HashMap<IpAddr, (u32, Instant)>>);

impl Strikes {
    /// Whether somebody may try.
    pub(crate) fn may_try(&self, from: IpAddr, now: Instant) -> bool {
        let counts = self.lock();
        counts
            .get(&network(from))
            .is_none_or(|(count, since)| *count < MOST || now.saturating_duration_since(*since) > WITHIN)
    }

    /// Somebody failed.
    pub(crate) fn add(&self, from: IpAddr, now: Instant) {
        let mut counts = self.lock();
        if counts.len() >= NETWORKS {
            counts.retain(|_, (_, since)| now.saturating_duration_since(*since) <= WITHIN);
            if counts.len() >= NETWORKS {
                counts.clear();
            }
        }
        let (count, since) = counts.entry(network(from)).or_insert((0, now));
        if now.saturating_duration_since(*since) > WITHIN {
            (*count, *since) = (0, now);
        }
        *count += 1;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, (u32, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one client can have many of counts as one: in IPv6, the first half of an address.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_many_failures_a_network_waits_and_others_do_not() {
        let (strikes, start) = (Strikes::default(), Instant::now());
        let (one, other): (IpAddr, IpAddr) = ("2001:db8::1".parse().unwrap(), "10.0.0.1".parse().unwrap());
        for _ in 0..MOST {
            assert!(strikes.may_try(one, start));
            strikes.add(one, start);
        }
        assert!(!strikes.may_try("2001:db8::2".parse().unwrap(), start));
        assert!(strikes.may_try(other, start));
        assert!(strikes.may_try(one, start + WITHIN + Duration::from_secs(1)));
        for number in 0..100_000u32 {
            strikes.add(IpAddr::from(number.to_be_bytes()), start);
        }
        assert!(strikes.lock().len() <= NETWORKS);
    }
}
