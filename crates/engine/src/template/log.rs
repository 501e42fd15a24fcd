//! The log of a running build.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::record::{Level, LogEntry};
use crate::life::clock::now_ms;

/// Lines that are kept.
const MAX_LINES: usize = 20_000;

/// Bytes that are kept.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Longer lines are cut into several.
pub(super) const MAX_LINE: usize = 4096;

/// The log of a running build; bounded.
#[derive(Debug, Default)]
pub(super) struct Log(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    entries: Vec<LogEntry>,
    bytes: usize,
    full: bool,
}

impl Log {
    /// Adds what was said in a step.
    pub fn say(&self, level: Level, step: &str, message: &str) {
        let mut lines = self.lock();
        for line in message.split('\n') {
            lines.add(level, step, line);
        }
    }

    /// What there is from an offset on, at most so many.
    pub fn read(&self, offset: usize, limit: usize) -> Vec<LogEntry> {
        self.lock().entries.iter().skip(offset).take(limit).cloned().collect()
    }

    /// The last lines of a step.
    pub fn tail(&self, step: &str, count: usize) -> Vec<LogEntry> {
        let lines = self.lock();
        let of_step = lines.entries.iter().rev().filter(|entry| entry.step.as_deref() == Some(step));
        let mut tail: Vec<LogEntry> = of_step.take(count).cloned().collect();
        tail.reverse();
        tail
    }

    /// All of it; nothing is left.
    pub fn take(&self) -> Vec<LogEntry> {
        std::mem::take(&mut self.lock().entries)
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn add(&mut self, level: Level, step: &str, message: &str) {
        // An error is the one line that matters most.
        let fits = self.entries.len() < MAX_LINES && self.bytes + message.len() <= MAX_BYTES;
        let (level, message) = match (fits || level == Level::Error, self.full) {
            (true, _) => (level, message.to_owned()),
            (false, true) => return,
            (false, false) => {
                self.full = true;
                (Level::Warn, "the log is full: what follows is not kept".to_owned())
            }
        };
        self.bytes += message.len();
        self.entries.push(LogEntry { at_ms: now_ms(), level, message, step: Some(step.to_owned()) });
    }
}

/// Turns bytes as they come into lines of text.
#[derive(Debug, Default)]
pub(super) struct Splitter(Vec<u8>);

impl Splitter {
    /// The lines that are complete with these bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for &byte in bytes {
            if byte == b'\n' {
                lines.push(self.rest());
            } else {
                self.0.push(byte);
                if self.0.len() >= MAX_LINE {
                    lines.push(self.rest());
                }
            }
        }
        lines
    }

    /// The last line, which has no end.
    pub fn finish(mut self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.rest())
    }

    fn rest(&mut self) -> String {
        let bytes = std::mem::take(&mut self.0);
        // Of a line that was written over, what stood there last.
        let line = bytes.strip_suffix(b"\r").unwrap_or(&bytes);
        let line = line.rsplit(|byte| *byte == b'\r').next().unwrap_or(line);
        String::from_utf8_lossy(line).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_lines_wherever_they_are_cut() {
        let mut splitter = Splitter::default();
        assert_eq!(splitter.push(b"a\nb"), ["a"]);
        assert_eq!(splitter.push(b"c\r\n10%\r20%\nrest"), ["bc", "20%"]);
        assert_eq!(splitter.finish().as_deref(), Some("rest"));
        assert_eq!(Splitter::default().push(&[b'x'; MAX_LINE + 1]).len(), 1);
    }

    #[test]
    fn a_flood_is_cut_but_not_the_error_after_it() {
        let log = Log::default();
        for _ in 0..MAX_LINES + 10 {
            log.say(Level::Info, "1", "x");
        }
        log.say(Level::Error, "1", "failed");
        let entries = log.read(0, usize::MAX);
        assert_eq!(entries.len(), MAX_LINES + 2);
        assert!(entries[MAX_LINES].message.contains("full"));
        assert_eq!(entries[MAX_LINES + 1].message, "failed");
        assert_eq!(log.tail("1", 1)[0].message, "failed");
        assert!(log.tail("2", 1).is_empty());
    }
}
