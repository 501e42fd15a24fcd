//! Signatures of addresses that do not name their sandbox: to check one costs a look at every sandbox, so nobody may be wrong
//! for long.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::refusals::network;

/// Wrong ones in a [`PERIOD`]: from one address, and in all.
const WRONG: (u32, u32) = (30, 600);

/// After so long they are forgotten.
const PERIOD: Duration = Duration::from_secs(60);

/// Who was wrong of late, and how often.
#[derive(Debug, Default)]
pub struct Guesses(Mutex<Lately>);

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

    fn lock(&self) -> MutexGuard<'_, Lately> {
        let mut lately = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
        guesses.0.lock().unwrap().since = Instant::now().checked_sub(PERIOD * 2);
        assert!(guesses.may_try(one));
    }
}
