//! Requests that were refused at the door, for want of the right key, token or link. Whoever can reach the server can make any
//! number of them, so of those that are alike only the first is written down at once; the others are counted, and the
//! count is written down later.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sloplet_ledger::event::ApiCall;
use sloplet_ledger::{Event, Ledger};

/// How often something is written down about those that are alike.
const EVERY: Duration = Duration::from_secs(60);

/// Kinds that are told apart. The rest is one more.
const KINDS: usize = 32;

/// Bytes of a path that are written down: it can be anything.
const PATH: usize = 200;

/// Who acts, where nobody knows.
const UNKNOWN: &str = "unknown";

/// Marks a response that refuses whoever asks.
#[derive(Debug, Clone, Default)]
pub struct Refused {
    /// The key they showed, if there is such a key.
    pub key: Option<String>,
}

/// Where a request came from; absent for the Unix socket.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub IpAddr);

/// A request that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Where it came from.
    pub from: Option<IpAddr>,
    /// The key that was shown, if there is such a key.
    pub key: Option<String>,
    /// The sandbox that it was for.
    pub sandbox: Option<String>,
    /// What was asked.
    pub method: String,
    /// Of what.
    pub path: String,
    /// What was answered.
    pub status: u16,
}

/// What makes refusals alike. None of it: those for which there is no more room.
type Kind = Option<(Option<IpAddr>, Option<String>, u16)>;

/// What was refused of late.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<HashMap<Kind, Lately>>);

/// What was refused since it was last written down.
#[derive(Debug)]
struct Lately {
    told: Instant,
    more: u64,
    latest: Refusal,
}

/// What is to be done about one.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// To write it down.
    Tell(Refusal),
    /// To look again later, because this is the first that is only counted.
    Later(Kind),
    /// Nothing.
    Wait,
}

impl Refusals {
    /// Writes one down, now or with others later. Within a runtime.
    pub fn note(self: &Arc<Self>, ledger: &Ledger, refusal: Refusal) {
        match self.add(refusal, Instant::now()) {
            Next::Tell(refusal) => write(ledger, refusal, 1),
            Next::Later(kind) => {
                let (this, ledger) = (Arc::clone(self), ledger.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(EVERY).await;
                    if let Some((refusal, count)) = this.take(&kind, Instant::now()) {
                        write(&ledger, refusal, count);
                    }
                });
            }
            Next::Wait => {}
        }
    }

    /// Writes down all that was only counted so far.
    pub fn flush(&self, ledger: &Ledger) {
        let kinds: Vec<Kind> = self.lock().keys().cloned().collect();
        for kind in kinds {
            if let Some((refusal, count)) = self.take(&kind, Instant::now()) {
                write(ledger, refusal, count);
            }
        }
    }

    fn add(&self, mut refusal: Refusal, now: Instant) -> Next {
        refusal.path.truncate(refusal.path.floor_char_boundary(PATH));
        let mut kinds = self.lock();
        let mut kind = Some((refusal.from.map(network), refusal.key.clone(), refusal.status));
        if !kinds.contains_key(&kind) && kinds.len() >= KINDS {
            kinds.retain(|_, lately| lately.more > 0 || now.saturating_duration_since(lately.told) < EVERY);
            if kinds.len() >= KINDS {
                kind = None;
            }
        }
        match kinds.get_mut(&kind) {
            Some(lately) if lately.more > 0 || now.saturating_duration_since(lately.told) < EVERY => {
                lately.more += 1;
                lately.latest = refusal;
                if lately.more == 1 { Next::Later(kind) } else { Next::Wait }
            }
            _ => {
                kinds.insert(kind, Lately { told: now, more: 0, latest: refusal.clone() });
                Next::Tell(refusal)
            }
        }
    }

    /// The latest of a kind, and how many there were.
    fn take(&self, kind: &Kind, now: Instant) -> Option<(Refusal, u64)> {
        let mut kinds = self.lock();
        let lately = kinds.get_mut(kind).filter(|lately| lately.more > 0)?;
        lately.told = now;
        Some((lately.latest.clone(), std::mem::take(&mut lately.more)))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Kind, Lately>> {
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

fn write(ledger: &Ledger, refusal: Refusal, count: u64) {
    let actor = refusal.key.as_ref().map_or_else(|| UNKNOWN.to_owned(), |key| format!("key:{key}"));
    let event = Event::ApiCall(ApiCall {
        method: refusal.method.into(),
        path: refusal.path.into(),
        status: refusal.status,
        key: refusal.key.map(Into::into),
        from: refusal.from.map(|from| from.to_string().into()),
        count: (count > 1).then_some(count),
        via: None,
        duration_ms: 0,
    });
    if let Err(error) = ledger.record(refusal.sandbox.as_deref(), &actor, event) {
        tracing::error!(%error, "cannot write to the ledger");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(from: &str, key: Option<&str>) -> Refusal {
        Refusal {
            from: Some(from.parse().unwrap()),
            key: key.map(Into::into),
            sandbox: None,
            method: "GET".into(),
            path: "/v1/sandboxes".into(),
            status: 401,
        }
    }

    #[test]
    fn of_those_that_are_alike_the_first_is_told_and_the_others_counted() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let (one, other) = (refusal("10.0.0.1", None), refusal("10.0.0.1", Some("k")));
        assert_eq!(refusals.add(one.clone(), start), Next::Tell(one.clone()));
        assert_eq!(refusals.add(other.clone(), start), Next::Tell(other));
        let Next::Later(kind) = refusals.add(one.clone(), start) else { panic!("it is not looked at again") };
        for _ in 0..1000 {
            assert_eq!(refusals.add(one.clone(), start), Next::Wait);
        }
        let later = start + EVERY;
        assert_eq!(refusals.take(&kind, later), Some((one.clone(), 1001)));
        assert_eq!(refusals.take(&kind, later), None);
        assert_eq!(refusals.add(one.clone(), later), Next::Later(kind.clone()), "too early to tell the next at once");
        assert_eq!(refusals.take(&kind, later + EVERY), Some((one.clone(), 1)));
        assert_eq!(refusals.add(one.clone(), later + 2 * EVERY), Next::Tell(one));
    }

    #[test]
    fn a_flood_from_everywhere_is_told_seldom() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let mut told = 0;
        for number in 0..100_000u32 {
            let from = Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(number) << 64 | u128::from(number));
            let path = format!("/{number}{}", "é".repeat(4000));
            let refusal = Refusal { from: Some(from.into()), path, ..refusal("::1", None) };
            if let Next::Tell(refusal) = refusals.add(refusal, start) {
                assert!(refusal.path.len() <= PATH);
                told += 1;
            }
        }
        assert_eq!((told, refusals.lock().len()), (KINDS + 1, KINDS + 1));
        // All of one network are alike, and room is made once there is nothing to say.
        let half = Refusals::default();
        assert!(matches!(half.add(refusal("2001:db8::1", None), start), Next::Tell(_)));
        assert!(matches!(half.add(refusal("2001:db8::2", None), start), Next::Later(_)));
        let kinds: Vec<Kind> = refusals.lock().keys().cloned().collect();
        kinds.iter().for_each(|kind| drop(refusals.take(kind, start)));
        assert!(matches!(refusals.add(refusal("10.0.0.9", None), start + EVERY), Next::Tell(_)));
        assert_eq!(refusals.lock().len(), 1);
    }
}
