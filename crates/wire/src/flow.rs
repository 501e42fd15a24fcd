//! Credit-based flow control, one pair of windows for each channel of each stream.

use crate::WireError;

/// Credit a channel starts with, granted implicitly when its stream opens. Enough to keep a pipe busy across a
/// scheduling delay; also the most the receiver may have to hold for one channel.
pub const INITIAL_WINDOW: u32 = 1024 * 1024;

/// The sender's end: how much may still be sent.
#[derive(Debug)]
pub struct SendWindow {
    credit: u32,
}

impl Default for SendWindow {
    fn default() -> Self {
        Self { credit: INITIAL_WINDOW }
    }
}

impl SendWindow {
    /// Bytes that may be sent now.
    pub fn available(&self) -> usize {
        self.credit as usize
    }

    /// Accounts for `sent` bytes; the caller never sends more than [`Self::available`].
    pub fn consume(&mut self, sent: usize) {
        debug_assert!(sent <= self.credit as usize);
        self.credit = self.credit.saturating_sub(sent as u32);
    }

    /// Adds credit from a `Window` frame.
    pub fn grant(&mut self, more: u32) -> Result<(), WireError> {
        self.credit = self.credit.checked_add(more).ok_or(WireError::WindowOverflow)?;
        Ok(())
    }
}

/// The receiver's end: polices what arrives and says when to grant more.
#[derive(Debug)]
pub struct ReceiveWindow {
    outstanding: u32,
    consumed: u32,
}

impl Default for ReceiveWindow {
    fn default() -> Self {
        Self { outstanding: INITIAL_WINDOW, consumed: 0 }
    }
}

impl ReceiveWindow {
    /// Accounts for bytes that arrived; more than was granted is a violation.
    pub fn receive(&mut self, len: usize) -> Result<(), WireError> {
        match self.outstanding.checked_sub(len as u32) {
            Some(rest) => {
                self.outstanding = rest;
                Ok(())
            }
            None => Err(WireError::WindowOverrun(len as u64 - u64::from(self.outstanding))),
        }
    }

    /// Accounts for bytes handed on; returns credit to grant once it is worth a frame.
    pub fn release(&mut self, len: usize) -> Option<u32> {
        self.consumed += len as u32;
        if self.consumed < INITIAL_WINDOW / 4 {
            return None;
        }
        let grant = std::mem::take(&mut self.consumed);
        self.outstanding += grant;
        Some(grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_that_ignores_its_window_is_caught() {
        let mut window = ReceiveWindow::default();
        window.receive(INITIAL_WINDOW as usize).unwrap();
        assert_eq!(window.receive(1), Err(WireError::WindowOverrun(1)));
    }

    #[test]
    fn released_bytes_come_back_as_credit() {
        let (mut send, mut receive) = (SendWindow::default(), ReceiveWindow::default());
        let mut total = 0usize;
        while total < 10 * INITIAL_WINDOW as usize {
            let chunk = send.available().min(64 * 1024);
            assert!(chunk > 0, "stalled at {total}");
            send.consume(chunk);
            receive.receive(chunk).unwrap();
            if let Some(more) = receive.release(chunk) {
                send.grant(more).unwrap();
            }
            total += chunk;
        }
    }
}
