//! Whether anybody uses a sandbox.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// When a sandbox was last used.
#[derive(Debug)]
pub struct Activity {
    born: Instant,
    /// Milliseconds after birth.
    last: AtomicU64,
    users: AtomicUsize,
}

impl Default for Activity {
    fn default() -> Self {
        Self { born: Instant::now(), last: AtomicU64::new(0), users: AtomicUsize::new(0) }
    }
}

impl Activity {
    /// Somebody uses it until the guard is dropped.
    pub fn begin(self: &Arc<Self>) -> InUse {
        self.users.fetch_add(1, Ordering::Relaxed);
        self.touch();
        InUse(self.clone())
    }

    /// Somebody used it just now.
    pub fn touch(&self) {
        self.last.store(self.born.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// How long nobody has used it.
    pub fn idle(&self) -> Duration {
        if self.users.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        self.born.elapsed().saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }
}

/// While it exists, the sandbox is in use.
#[derive(Debug)]
pub struct InUse(Arc<Activity>);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.touch();
        self.0.users.fetch_sub(1, Ordering::Relaxed);
    }
}
