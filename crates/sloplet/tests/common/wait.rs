//! Waiting for what is bound to happen, however busy the machine is.

use std::thread;
use std::time::{Duration, Instant};

/// How long it may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Waits until something is so; fails if that takes too long.
#[track_caller]
pub fn until(what: &str, condition: impl FnMut() -> bool) {
    until_within(PATIENCE, what, condition);
}

/// The same with another patience.
#[track_caller]
pub fn until_within(patience: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < patience, "it does not happen: {what}");
        thread::sleep(LOOK);
    }
}
