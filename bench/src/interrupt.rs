//! Ctrl-C: measuring stops at the next step, and everything is cleaned up on the way out.

use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);

/// Starts to listen.
pub fn watch() {
    std::thread::spawn(|| {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            ASKED.store(true, Ordering::Relaxed);
        }
    });
}

/// Fails once Ctrl-C was pressed.
pub fn check() -> anyhow::Result<()> {
    anyhow::ensure!(!ASKED.load(Ordering::Relaxed), "interrupted");
    Ok(())
}
