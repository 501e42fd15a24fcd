//! Output, on its way out.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Outcome, exit_code};

/// What `--json` collects; at most this much of each stream is held.
const CAPTURE_LIMIT: usize = 64 << 20;

/// Output that was captured.
#[derive(Default)]
pub struct Captured {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// Where output goes, and how much more of it may.
pub struct Sink {
    left: u64,
    /// Whether some was dropped.
    pub truncated: bool,
    /// The captured output, if it is captured.
    pub captured: Option<Captured>,
}

impl Sink {
    pub fn new(limit: u64, capture: bool) -> Self {
        Self { left: limit, truncated: false, captured: capture.then(Captured::default) }
    }

    pub fn stdout(&mut self, bytes: &[u8]) -> io::Result<()> {
        let bytes = self.take(bytes);
        match &mut self.captured {
            Some(captured) => {
                self.truncated |= append(&mut captured.stdout, bytes);
                Ok(())
            }
            None => write_through(io::stdout(), bytes),
        }
    }

    pub fn stderr(&mut self, bytes: &[u8]) -> io::Result<()> {
        let bytes = self.take(bytes);
        match &mut self.captured {
            Some(captured) => {
                self.truncated |= append(&mut captured.stderr, bytes);
                Ok(())
            }
            None => write_through(io::stderr(), bytes),
        }
    }

    fn take<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let allowed = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= allowed as u64;
        self.truncated |= allowed < bytes.len();
        &bytes[..allowed]
    }
}

/// Straight to the descriptor: the standard library would look for line ends in every byte.
fn write_through(to: impl std::os::fd::AsFd + Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(to.as_fd(), bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                // Somebody made our output non-blocking: wait until it takes more.
                let mut wait = [rustix::event::PollFd::new(&to, rustix::event::PollFlags::OUT)];
                let _ = rustix::event::poll(&mut wait, None);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Appends up to the limit; true if something was dropped.
fn append(to: &mut Vec<u8>, bytes: &[u8]) -> bool {
    let allowed = bytes.len().min(CAPTURE_LIMIT - to.len());
    to.extend_from_slice(&bytes[..allowed]);
    allowed < bytes.len()
}

/// The one object of `--json`. Bytes that are not UTF-8 become replacement characters.
pub fn json(id: &str, outcome: &Outcome, captured: &Captured) -> Value {
    let exit = outcome.exit.clone().unwrap_or_default();
    json!({
        "id": id,
        "exit_code": exit_code(outcome),
        "signal": exit.signal,
        "timed_out": outcome.end.timed_out,
        "oom_kills": outcome.end.oom_kills,
        "over_disk": outcome.end.over_disk,
        "stdout": String::from_utf8_lossy(&captured.stdout),
        "stderr": String::from_utf8_lossy(&captured.stderr),
        "truncated": outcome.truncated,
        "duration_ms": outcome.duration.as_millis() as u64,
        "cpu_ms": exit.cpu_us / 1000,
        "max_rss_kib": exit.max_rss_kib,
    })
}
