//! How often something may happen.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So many per second; twice as many at once after a quiet time.
#[derive(Debug, Default)]
pub(crate) struct Bucket(Mutex<Option<(f64, Instant)>>);

impl Bucket {
    /// Whether one more may happen now.
    pub(crate) fn take(&self, per_second: u32, now: Instant) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let most = f64::from(per_second) * 2.0;
        let (left, since) = state.unwrap_or((most, now));
        let gained = now.saturating_duration_since(since).as_secs_f64() * f64::from(per_second);
        let left = (left + gained).min(most);
        let enough = left >= 1.0;
        *state = Some((if enough { left - 1.0 } else { left }, now));
        enough
    }
}

/// Says something at most once a second, with how often it happened.
#[derive(Debug, Default)]
pub(crate) struct Seldom(Mutex<(u64, Option<Instant>)>);

impl Seldom {
    /// Counts one more; the count, if it is time to say it.
    pub(crate) fn count(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, last) = &mut *state;
        *count += 1;
        if last.is_some_and(|last| now.saturating_duration_since(last) < Duration::from_secs(1)) {
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_fills_with_time() {
        let (bucket, start) = (Bucket::default(), Instant::now());
        assert_eq!((0..100).filter(|_| bucket.take(10, start)).count(), 20);
        let later = start + Duration::from_millis(500);
        assert_eq!((0..100).filter(|_| bucket.take(10, later)).count(), 5);
        assert_eq!((0..100).filter(|_| bucket.take(10, later + Duration::from_secs(3600))).count(), 20);
    }

    #[test]
    fn what_is_said_seldom_is_counted() {
        let (seldom, start) = (Seldom::default(), Instant::now());
        assert_eq!(seldom.count(start), Some(1));
        assert_eq!(seldom.count(start), None);
        assert_eq!(seldom.count(start + Duration::from_secs(2)), Some(2));
    }
}
