//! How far something is that takes long.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::terminal;

/// What takes less than this shows nothing.
const MOMENT: Duration = Duration::from_millis(700);

/// How often the line is drawn again: its seconds go on also where nothing is heard of the work.
const FRAME: Duration = Duration::from_millis(250);

/// One line that is overwritten, with the seconds since the work began; nothing where nobody looks, and nothing for what
/// takes less than a moment. Gone when it is dropped.
#[derive(Debug)]
pub struct ProgressLine(Option<Arc<Line>>);

#[derive(Debug)]
struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    text: String,
    since: Instant,
    /// Whether it stands on the screen.
    drawn: bool,
    /// Whether somebody draws it again and again.
    alive: bool,
    over: bool,
}

impl Default for ProgressLine {
    fn default() -> Self {
        Self::new()
    }
}

impl ProgressLine {
    /// Nothing is shown yet.
    pub fn new() -> Self {
        let since = Instant::now();
        let state = State { text: String::new(), since, drawn: false, alive: false, over: false };
        let line = || Arc::new(Line { state: Mutex::new(state), changed: Condvar::new() });
        Self(std::io::stderr().is_terminal().then(line))
    }

    /// One that shows this text until the next.
    pub fn of(text: &str) -> Self {
        let line = Self::new();
        line.step(text);
        line
    }

    /// Shows a text from now on.
    pub fn step(&self, text: &str) {
        self.show(|| Some(text.to_owned()));
    }

    /// The same; the text is made only where somebody looks. None leaves the one before.
    pub fn show(&self, text: impl FnOnce() -> Option<String>) {
        let Some(line) = &self.0 else { return };
        let Some(text) = text() else { return };
        let mut state = line.lock();
        state.text = text;
        if !state.alive {
            state.alive = true;
            let line = Arc::clone(line);
            std::thread::spawn(move || line.draw());
        }
    }

    /// Removes it, until the next text.
    pub fn clear(&self) {
        if let Some(line) = &self.0 {
            let mut state = line.lock();
            state.text.clear();
            state.erase();
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
        if let Some(line) = &self.0 {
            line.lock().over = true;
            line.changed.notify_all();
        }
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self) {
        let mut state = self.lock();
        while !state.over {
            if !state.text.is_empty() && state.since.elapsed() >= MOMENT {
                let width = terminal::size_of(std::io::stderr()).map_or(80, |size| usize::from(size.columns));
                let text = shown(&state.text, state.since.elapsed().as_secs(), width);
                let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
                let _ = std::io::stderr().flush();
                state.drawn = true;
            }
            let waited = self.changed.wait_timeout(state, FRAME);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    fn erase(&mut self) {
        if std::mem::replace(&mut self.drawn, false) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// The text as it fits: one line, which a terminal does not wrap.
fn shown(text: &str, seconds: u64, width: usize) -> String {
    let end = format!(" ({seconds} s)");
    let space = width.saturating_sub(end.len() + 1);
    let text: String = terminal::harmless(text).chars().take(space).collect();
    format!("{text}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_its_terminal_and_steers_nothing() {
        assert_eq!(shown("building base", 3, 80), "building base (3 s)");
        assert_eq!(shown(&"x".repeat(200), 12, 40).chars().count(), 39);
        assert!(!shown("\u{1b}[2J", 0, 80).contains('\u{1b}'));
        assert_eq!(shown("anything", 0, 0), " (0 s)");
    }
}
