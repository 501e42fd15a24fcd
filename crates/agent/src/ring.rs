//! The latest bytes of an endless output.

use std::collections::VecDeque;

use sloplet_wire::{Channel, Held};

/// Bytes held of a background process.
pub(crate) const RING_BYTES: usize = 128 * 1024;

/// Changes from one channel to the other that are held.
const MAX_RUNS: usize = 4096;

/// Holds the last [`RING_BYTES`] of both channels, in the order in which they were read, and counts those that it has dropped;
/// allocates only as much as was written.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    bytes: VecDeque<u8>,
    /// Which channel they are of, and how many in a row.
    runs: VecDeque<(Channel, usize)>,
    dropped: u64,
}

impl Ring {
    /// Adds bytes, dropping the oldest.
    pub(crate) fn record(&mut self, channel: Channel, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if bytes.len() >= RING_BYTES {
            self.forget();
        }
        let kept = &bytes[bytes.len().saturating_sub(RING_BYTES)..];
        self.dropped += (bytes.len() - kept.len()) as u64;
        self.drop_oldest((self.bytes.len() + kept.len()).saturating_sub(RING_BYTES));
        self.bytes.extend(kept);
        match self.runs.back_mut() {
            Some((last, count)) if *last == channel => *count += kept.len(),
            _ => self.runs.push_back((channel, kept.len())),
        }
        if self.runs.len() > MAX_RUNS {
            self.drop_oldest(self.runs[0].1);
        }
    }

    fn drop_oldest(&mut self, count: usize) {
        self.bytes.drain(..count);
        self.dropped += count as u64;
        let mut rest = count;
        while let Some((_, run)) = self.runs.front_mut().filter(|_| rest > 0) {
            let gone = rest.min(*run);
            (*run, rest) = (*run - gone, rest - gone);
            if *run == 0 {
                self.runs.pop_front();
            }
        }
    }

    /// Drops all that is held.
    pub(crate) fn forget(&mut self) {
        self.drop_oldest(self.bytes.len());
        self.shrink();
    }

    /// How much is held, and what was before.
    pub(crate) fn held(&self) -> Held {
        Held { dropped: self.dropped, written: self.dropped + self.bytes.len() as u64 }
    }

    /// What is held, oldest first.
    pub(crate) fn parts(&mut self) -> impl Iterator<Item = (Channel, &[u8])> {
        let mut rest: &[u8] = self.bytes.make_contiguous();
        self.runs.iter().map(move |(channel, count)| {
            let (part, after) = rest.split_at(*count);
            rest = after;
            (*channel, part)
        })
    }

    /// How much is held.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Gives back unused memory once nothing more will come.
    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.runs.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_of(ring: &mut Ring) -> Vec<u8> {
        ring.parts().flat_map(|(_, part)| part.to_vec()).collect()
    }

    #[test]
    fn the_last_bytes_stay_and_those_before_are_counted() {
        let mut ring = Ring::default();
        let all: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        for chunk in all.chunks(7777) {
            ring.record(Channel::Output, chunk);
        }
        assert_eq!(all_of(&mut ring), all[all.len() - RING_BYTES..]);
        assert_eq!(ring.held(), Held { dropped: (all.len() - RING_BYTES) as u64, written: all.len() as u64 });
        ring.record(Channel::Output, &all);
        assert_eq!(all_of(&mut ring), all[all.len() - RING_BYTES..]);
        ring.record(Channel::Output, b"end");
        assert!(all_of(&mut ring).ends_with(b"end"));
        assert_eq!((ring.len(), ring.held().written), (RING_BYTES, 2 * all.len() as u64 + 3));
        ring.forget();
        assert_eq!(ring.held(), Held { dropped: 600_003, written: 600_003 });
    }

    #[test]
    fn both_channels_stay_in_their_order() {
        let mut ring = Ring::default();
        for (channel, bytes) in
            [(Channel::Output, "a"), (Channel::Output, "b"), (Channel::Error, "c"), (Channel::Output, "d")]
        {
            ring.record(channel, bytes.as_bytes());
        }
        let parts: Vec<(Channel, Vec<u8>)> = ring.parts().map(|(channel, part)| (channel, part.to_vec())).collect();
        let expected = [(Channel::Output, "ab"), (Channel::Error, "c"), (Channel::Output, "d")];
        assert_eq!(parts, expected.map(|(channel, part)| (channel, part.as_bytes().to_vec())));
        // However often they change.
        for _ in 0..50_000 {
            ring.record(Channel::Output, b"o");
            ring.record(Channel::Error, b"e");
        }
        assert!(ring.runs.len() <= MAX_RUNS && ring.held().written == 100_004, "{:?}", ring.held());
        assert_eq!(ring.parts().map(|(_, part)| part.len()).sum::<usize>(), ring.len());
    }
}
