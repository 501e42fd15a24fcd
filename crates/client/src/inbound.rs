//! Bytes received on one channel and not taken yet.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use sloplet_wire::{ReceiveWindow, WireError};

/// Payloads below this are copied. A slice keeps the whole read buffer alive, so without this an agent could pin a
/// buffer with every single byte it sends.
pub(crate) const COPY_BELOW: usize = 32 * 1024;

/// A copied run grows to about this before a new one begins.
const RUN: usize = 64 * 1024;

/// Beyond this many chunks the order relative to other channels is given up for bounded overhead: one-byte frames
/// that alternate between channels would otherwise cost a hundred times their size.
const ORDERED_CHUNKS: usize = 1024;

/// One payload as it lies in the read buffer.
pub(crate) enum Payload<'a> {
    /// Small: still in the read buffer.
    Borrowed(&'a [u8]),
    /// Large: split off the read buffer without copying.
    Owned(Bytes),
}

impl Payload<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Borrowed(bytes) => bytes.len(),
            Self::Owned(bytes) => bytes.len(),
        }
    }
}

/// The receive queue of a channel; never longer than its window.
#[derive(Default)]
pub(crate) struct Inbound {
    window: ReceiveWindow,
    /// Finished chunks, each with the turn in which it came.
    chunks: VecDeque<(u64, Bytes)>,
    /// The run being copied, newer than all of `chunks`.
    tail: BytesMut,
    tail_turn: u64,
    /// `End` has been received.
    pub(crate) ended: bool,
}

impl Inbound {
    /// Takes a payload. `turn` rises whenever the stream's data switches channels.
    pub(crate) fn push(&mut self, payload: Payload<'_>, turn: u64) -> Result<(), WireError> {
        self.window.receive(payload.len())?;
        match payload {
            Payload::Borrowed([]) => {}
            Payload::Borrowed(bytes) => {
                let joins = self.tail_turn == turn || self.chunks.len() >= ORDERED_CHUNKS;
                if self.tail.len() >= RUN || !joins {
                    self.finish_tail();
                }
                if self.tail.is_empty() {
                    self.tail_turn = turn;
                }
                self.tail.extend_from_slice(bytes);
            }
            Payload::Owned(bytes) => {
                self.finish_tail();
                self.chunks.push_back((turn, bytes));
            }
        }
        Ok(())
    }

    /// The turn of the oldest chunk.
    pub(crate) fn head(&self) -> Option<u64> {
        let tail = (!self.tail.is_empty()).then_some(self.tail_turn);
        self.chunks.front().map(|(turn, _)| *turn).or(tail)
    }

    /// The oldest chunk, and credit to grant if it is time.
    pub(crate) fn pop(&mut self) -> Option<(Bytes, Option<u32>)> {
        let bytes = match self.chunks.pop_front() {
            Some((_, bytes)) => bytes,
            None if self.tail.is_empty() => return None,
            None => std::mem::take(&mut self.tail).freeze(),
        };
        let grant = self.window.release(bytes.len()).filter(|_| !self.ended);
        Some((bytes, grant))
    }

    fn finish_tail(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back((self.tail_turn, std::mem::take(&mut self.tail).freeze()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_bytes_are_joined() {
        let mut inbound = Inbound::default();
        for _ in 0..1000 {
            inbound.push(Payload::Borrowed(b"x"), 0).unwrap();
        }
        assert_eq!(inbound.pop().unwrap().0.len(), 1000);
        assert!(inbound.pop().is_none());
    }

    #[test]
    fn alternating_channels_keep_their_turns_until_there_are_too_many() {
        let mut inbound = Inbound::default();
        for turn in 0..100_000 {
            inbound.push(Payload::Borrowed(b"x"), turn).unwrap();
        }
        assert_eq!(inbound.head(), Some(0));
        assert!(inbound.chunks.len() <= ORDERED_CHUNKS + 100_000 / RUN + 1);
        let mut total = 0;
        while let Some((bytes, _)) = inbound.pop() {
            total += bytes.len();
        }
        assert_eq!(total, 100_000);
    }

    #[test]
    fn order_within_a_channel_survives_mixed_sizes() {
        let mut inbound = Inbound::default();
        inbound.push(Payload::Borrowed(b"a"), 0).unwrap();
        inbound.push(Payload::Owned(Bytes::from_static(b"bc")), 0).unwrap();
        inbound.push(Payload::Borrowed(b"d"), 2).unwrap();
        let all: Vec<u8> = std::iter::from_fn(|| inbound.pop()).flat_map(|(bytes, _)| bytes).collect();
        assert_eq!(all, b"abcd");
    }
}
