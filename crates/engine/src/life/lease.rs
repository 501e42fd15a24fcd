//! Sandboxes that somebody holds: they end when nobody has said for a while that they are still wanted.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::LifeError;
use super::sandboxes::Sandboxes;

/// Until when it is wanted, if that is said at all. It is not written down: a server that starts again waits for the next word.
#[derive(Default)]
pub(super) struct Lease(Mutex<Option<Instant>>);

impl Lease {
    fn set(&self, length: Option<Duration>) {
        let until = length.and_then(|length| Instant::now().checked_add(length));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    /// How long it still holds; zero once it is over, nothing where there is none.
    pub(super) fn rest(&self) -> Option<Duration> {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.map(|until| until.saturating_duration_since(Instant::now()))
    }
}

impl Sandboxes {
    /// Ends it, whatever state it is in, unless this is called again within `length`; `None`: nobody holds it any more,
    /// and it stays.
    pub fn hold(&self, owner: &str, id: &str, length: Option<Duration>) -> Result<(), LifeError> {
        self.slot(owner, id)?.lease.set(length);
        self.0.rescheduled.notify_one();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_runs_out_unless_it_is_renewed_or_given_up() {
        let lease = Lease::default();
        assert_eq!(lease.rest(), None);
        lease.set(Some(Duration::ZERO));
        assert_eq!(lease.rest(), Some(Duration::ZERO));
        lease.set(Some(Duration::from_secs(60)));
        assert!(lease.rest().is_some_and(|rest| rest > Duration::from_secs(50)));
        lease.set(None);
        assert_eq!(lease.rest(), None);
    }
}
