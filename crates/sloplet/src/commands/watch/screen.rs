//! The terminal as a screen: drawn over as a whole, and as it was when it is dropped.

use std::io::Write;

use super::scene::{Scene, Tone};
use crate::terminal;

/// Another screen than the one with the shell's lines, no cursor, and lines that end at the edge.
const OPEN: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";

const CLOSE: &str = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The terminal as a screen.
pub struct Screen;

impl Screen {
    /// Takes the terminal over.
    pub fn open() -> Self {
        write(OPEN);
        Self
    }

    /// Shows this.
    pub fn draw(&mut self, scene: &Scene) {
        let size = terminal::size();
        let (width, height) = (usize::from(size.columns), usize::from(size.rows));
        let coloured = terminal::colours();
        let mut out = String::from("\x1b[H");
        for (index, (tone, text)) in scene.rows(height).into_iter().take(height).enumerate() {
            let colour = match tone {
                Tone::Head => "\x1b[1;7m",
                Tone::Usual => "",
                Tone::Good | Tone::Bad if !coloured => "",
                Tone::Good => "\x1b[32m",
                Tone::Bad => "\x1b[31m",
                Tone::Faint => "\x1b[2m",
            };
            let text: String = text.chars().take(width).collect();
            let line_end = if index == 0 { "" } else { "\r\n" };
            out.push_str(&format!("{line_end}{colour}{text}\x1b[0m\x1b[K"));
        }
        out.push_str("\x1b[J");
        write(&out);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        write(CLOSE);
    }
}

fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    // A terminal that is gone is noticed by its input.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
