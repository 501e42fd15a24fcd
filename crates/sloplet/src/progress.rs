//! How far something is that takes long.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// One line that is overwritten; nothing where nobody looks, and nothing for what takes less than a moment.
#[derive(Debug)]
pub struct ProgressLine {
    visible: bool,
    last: Mutex<Instant>,
}

impl Default for ProgressLine {
    fn default() -> Self {
        Self::new()
    }
}

impl ProgressLine {
    /// Nothing is shown yet.
    pub fn new() -> Self {
        Self { visible: std::io::stderr().is_terminal(), last: Mutex::new(Instant::now()) }
    }

    /// Shows a text, unless another was shown just now.
    pub fn show(&self, text: impl FnOnce() -> Option<String>) {
        let Ok(mut last) = self.last.lock() else { return };
        if !self.visible || last.elapsed() < Duration::from_millis(100) {
            return;
        }
        let Some(text) = text() else { return };
        *last = Instant::now();
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
        let _ = std::io::stderr().flush();
    }

    /// Removes it.
    pub fn clear(&self) {
        if self.visible {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
