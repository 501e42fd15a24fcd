//! The latest bytes of an endless output.

use std::collections::VecDeque;

/// Bytes held for each channel of a background process.
pub(crate) const RING_BYTES: usize = 64 * 1024;

/// Holds the last [`RING_BYTES`]; allocates only as much as was written.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    bytes: VecDeque<u8>,
}

impl Ring {
    /// Adds bytes, dropping the oldest.
    pub(crate) fn record(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(RING_BYTES)..];
        let excess = (self.bytes.len() + bytes.len()).saturating_sub(RING_BYTES);
        self.bytes.drain(..excess);
        self.bytes.extend(bytes);
    }

    /// What is held, oldest first.
    pub(crate) fn parts(&self) -> [&[u8]; 2] {
        let (old, new) = self.bytes.as_slices();
        [old, new]
    }

    /// How much is held.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Gives back unused memory once nothing more will come.
    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_stay() {
        let mut ring = Ring::default();
        let all: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        for chunk in all.chunks(7777) {
            ring.record(chunk);
        }
        assert_eq!(ring.parts().concat(), all[all.len() - RING_BYTES..]);
        ring.record(&all);
        assert_eq!(ring.parts().concat(), all[all.len() - RING_BYTES..]);
        ring.record(b"end");
        assert!(ring.parts().concat().ends_with(b"end"));
        assert_eq!(ring.len(), RING_BYTES);
    }
}
