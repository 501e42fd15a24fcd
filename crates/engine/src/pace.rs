//! How fast something may go on: a burst at once, and then so much a second.

use std::time::Instant;

/// What is left of a burst, which refills as time goes by.
#[derive(Debug)]
pub struct Pace {
    burst: f64,
    each_second: f64,
    left: f64,
    since: Instant,
}

impl Pace {
    /// A whole burst, and so much a second.
    pub fn new(burst: f64, each_second: f64) -> Self {
        Self { burst, each_second, left: burst, since: Instant::now() }
    }

    /// Whether so much may go on now; then it is spent.
    pub fn spend(&mut self, much: f64, now: Instant) -> bool {
        let gained = now.saturating_duration_since(self.since).as_secs_f64() * self.each_second;
        self.left = (self.left + gained).min(self.burst);
        self.since = now;
        let enough = self.left >= much;
        if enough {
            self.left -= much;
        }
        enough
    }

    /// Whether nothing was spent for so long that it need not be remembered.
    pub fn is_full(&self, now: Instant) -> bool {
        let gained = now.saturating_duration_since(self.since).as_secs_f64() * self.each_second;
        self.left + gained >= self.burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_burst_passes_at_once_and_the_rest_in_time() {
        let (mut pace, start) = (Pace::new(10.0, 2.0), Instant::now());
        assert!((0..10).all(|_| pace.spend(1.0, start)) && !pace.spend(1.0, start) && !pace.is_full(start));
        let later = start + Duration::from_secs(2);
        assert!(pace.spend(3.0, later) && !pace.spend(2.0, later));
        assert!(pace.is_full(later + Duration::from_secs(5)) && !pace.spend(11.0, later + Duration::from_secs(60)));
    }
}
