//! Time as it is written down.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// From now until then; nothing if that is past.
pub fn until_ms(then: u64) -> Duration {
    Duration::from_millis(then.saturating_sub(now_ms()))
}
