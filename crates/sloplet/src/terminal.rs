//! The host's terminal.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use sloplet_wire::TerminalSize;

/// The terminal in raw mode: every key goes to the command inside. Restored when dropped.
pub struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Switches standard input to raw mode, if it is a terminal.
    pub fn enter() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Drain, &raw)?;
        Ok(Some(Self { before }))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}

/// The size of the terminal on `fd`.
pub fn size_of(fd: impl AsFd) -> Option<TerminalSize> {
    let size = tcgetwinsize(fd).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some(TerminalSize { columns: size.ws_col, rows: size.ws_row })
}

/// The size of our own terminal, or what most have.
pub fn size() -> TerminalSize {
    size_of(io::stdout()).unwrap_or(TerminalSize { columns: 80, rows: 24 })
}

/// Text that may come from inside, with everything replaced that could steer a terminal.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Whether colours are shown: on a terminal, unless NO_COLOR says otherwise.
pub fn colours() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Text about what is well.
pub fn green(text: &str) -> String {
    painted(text, 32)
}

/// Text about what is not.
pub fn red(text: &str) -> String {
    painted(text, 31)
}

fn painted(text: &str, colour: u8) -> String {
    if colours() { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
}
