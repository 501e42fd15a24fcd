//! Signatures of addresses that do not name their sandbox. E2B's SDKs make such addresses where `E2B_SANDBOX_URL` is set: a
//! signature is all that tells whose they are, so a check compares it with the tokens of many sandboxes. What that costs is
//! bounded: [`CANDIDATES`] in one request, once for a signature that was right, and wrong ones only so often.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::refusals::network;

/// Wrong ones in a [`PERIOD`]: from one address, and in all.
const WRONG: (u32, u32) = (30, 600);

/// Sandboxes whose tokens one request is compared with. On a server with more, links need a name: see `--domain`.
pub const CANDIDATES: usize = 4096;

/// Signatures that were right and are remembered, with their sandboxes.
const REMEMBERED: usize = 1024;

/// After so long they are forgotten.
const PERIOD: Duration = Duration::from_secs(60);

/// Who was wrong of late, and how often.
#[derive(Debug, Default)]
pub struct Guesses {
    wrong: Mutex<Lately>,
    right: Mutex<HashMap<String, String>>,
}

#[derive(Debug, Default)]
struct Lately {
    since: Option<Instant>,
    all: u32,
    each: HashMap<IpAddr, u32>,
}

impl Guesses {
    /// Whether somebody from there may try one; without an address, it is somebody on this machine.
    pub fn may_try(&self, from: Option<IpAddr>) -> bool {
        let lately = self.lock();
        lately.all < WRONG.1 && lately.each.get(&of(from)).is_none_or(|count| *count < WRONG.0)
    }

    /// Counts a wrong one.
    pub fn was_wrong(&self, from: Option<IpAddr>) {
        let mut lately = self.lock();
        lately.since.get_or_insert_with(Instant::now);
        lately.all += 1;
        *lately.each.entry(of(from)).or_default() += 1;
    }

    /// The sandbox for which a signature was right before. It may be gone, or the signature be used for something else now:
    /// whoever asks must check that one.
    pub fn sandbox_of(&self, signature: &str) -> Option<String> {
        self.right.lock().unwrap_or_else(PoisonError::into_inner).get(signature).cloned()
    }

    /// Remembers for which sandbox a signature was right.
    pub fn was_right(&self, signature: &str, sandbox: &str) {
        let mut right = self.right.lock().unwrap_or_else(PoisonError::into_inner);
        if right.len() >= REMEMBERED {
            right.clear();
        }
        right.insert(signature.to_owned(), sandbox.to_owned());
    }

    fn lock(&self) -> MutexGuard<'_, Lately> {
        let mut lately = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if lately.since.is_some_and(|since| since.elapsed() > PERIOD) {
            *lately = Lately::default();
        }
        lately
    }
}

fn of(from: Option<IpAddr>) -> IpAddr {
    from.map_or(Ipv4Addr::UNSPECIFIED.into(), network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_wrong_too_often_is_not_listened_to_for_a_while() {
        let (guesses, one) = (Guesses::default(), "10.0.0.1".parse().ok());
        for _ in 0..WRONG.0 {
            assert!(guesses.may_try(one));
            guesses.was_wrong(one);
        }
        assert!(!guesses.may_try(one) && guesses.may_try("10.0.0.2".parse().ok()) && guesses.may_try(None));
        // However many addresses they come from.
        for number in WRONG.0..WRONG.1 {
            guesses.was_wrong(Some(Ipv4Addr::from(number).into()));
        }
        assert!(!guesses.may_try(None));
        guesses.wrong.lock().unwrap().since = Instant::now().checked_sub(PERIOD * 2);
        assert!(guesses.may_try(one));
    }
}
