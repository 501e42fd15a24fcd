//! Bytes on their way to the host.

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::SendFlags;
use sloplet_wire::{Event, HEADER_LEN, Header, Kind, MAX_PAYLOAD, to_bytes};

/// Producers of bulk data hold back while this much waits; what a frame may add to it is [`MAX_PAYLOAD`].
const HIGH_WATER: usize = 256 * 1024;

/// Allocated at once when bulk data flows. The kernel backs it with memory only as far as it is touched.
const BULK_BUFFER: usize = HIGH_WATER + MAX_PAYLOAD + 64 * 1024;

/// A connection's outgoing frames. Bulk data is read from its source straight into here, behind its header.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// Initialised throughout; `start..end` waits to be sent.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Outgoing {
    /// Whether bulk data may be added.
    pub(crate) fn has_room(&self) -> bool {
        self.end - self.start < HIGH_WATER
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Adds a frame whatever the room; for small ones.
    pub(crate) fn frame(&mut self, kind: Kind, stream: u32, channel: u8, payload: &[u8]) {
        self.reserve(HEADER_LEN + payload.len());
        let header = Header::new(kind, stream, channel, payload.len()).to_bytes();
        self.buffer[self.end..self.end + HEADER_LEN].copy_from_slice(&header);
        self.end += HEADER_LEN;
        self.buffer[self.end..self.end + payload.len()].copy_from_slice(payload);
        self.end += payload.len();
    }

    /// Adds an event; its writer keeps it below [`MAX_PAYLOAD`].
    pub(crate) fn event(&mut self, stream: u32, event: &Event) {
        self.frame(Kind::Event, stream, 0, &to_bytes(event));
    }

    /// Adds a data frame of at most `max` bytes that `fill` puts in place; none if it fails or fills nothing. Returns
    /// the bytes filled in.
    pub(crate) fn data(
        &mut self,
        stream: u32,
        channel: u8,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<&[u8], Errno> {
        let max = max.min(MAX_PAYLOAD);
        self.reserve(HEADER_LEN + max);
        let at = self.end + HEADER_LEN;
        let filled = fill(&mut self.buffer[at..at + max])?.min(max);
        if filled > 0 {
            let header = Header::new(Kind::Data, stream, channel, filled).to_bytes();
            self.buffer[self.end..at].copy_from_slice(&header);
            self.end = at + filled;
        }
        Ok(&self.buffer[at..at + filled])
    }

    /// Sends as much as the socket, or what is none, takes. `Ok(false)` when some remains.
    pub(crate) fn flush(&mut self, socket: impl AsFd, file: bool) -> Result<bool, Errno> {
        while self.start < self.end {
            let pending = &self.buffer[self.start..self.end];
            let sent = match file {
                true => rustix::io::write(&socket, pending),
                false => rustix::net::send(&socket, pending, SendFlags::NOSIGNAL | SendFlags::DONTWAIT),
            };
            match sent {
                Ok(sent) => self.start += sent,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        (self.start, self.end) = (0, 0);
        Ok(true)
    }

    /// Gives the buffer back when nothing waits, so that an idle agent stays small.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    fn reserve(&mut self, more: usize) {
        if self.buffer.len() - self.end >= more {
            return;
        }
        let pending = self.end - self.start;
        if self.buffer.len() >= pending + more {
            self.buffer.copy_within(self.start..self.end, 0);
        } else {
            let wanted = (pending + more).next_multiple_of(4096);
            let size = if wanted > 16 * 1024 { wanted.max(BULK_BUFFER) } else { wanted };
            // Zeroed memory comes from the kernel untouched; growing the old one would touch all of it.
            let mut buffer = vec![0; size];
            buffer[..pending].copy_from_slice(&self.buffer[self.start..self.end]);
            self.buffer = buffer;
        }
        (self.start, self.end) = (0, pending);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sloplet_wire::Decoder;

    #[test]
    fn frames_arrive_in_order_whatever_their_size() {
        let mut out = Outgoing::default();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut decoder = Decoder::new();
        let mut expected = Vec::new();
        let mut seen = Vec::new();
        for size in [0usize, 1, 5000, 100_000, MAX_PAYLOAD, 3, 70_000, MAX_PAYLOAD, 9] {
            let byte = size as u8;
            if size > 0 {
                out.data(1, 1, size, |place| {
                    place.fill(byte);
                    Ok(place.len())
                })
                .unwrap();
                expected.push(vec![byte; size]);
            }
            out.frame(Kind::End, 1, 1, b"");
            expected.push(Vec::new());
            assert_eq!(out.data(1, 1, 10, |_| Err(Errno::AGAIN)), Err(Errno::AGAIN));
            loop {
                let done = out.flush(&ours, false).unwrap();
                let mut some = vec![0; 1 << 20];
                if let Ok((n, _)) = rustix::net::recv(&theirs, &mut some, rustix::net::RecvFlags::DONTWAIT) {
                    decoder.extend(&some[..n]);
                }
                while let Some(frame) = decoder.next_frame().unwrap() {
                    seen.push(frame.payload.to_vec());
                }
                if done && seen.len() == expected.len() {
                    break;
                }
            }
        }
        assert!(seen == expected);
    }
}
