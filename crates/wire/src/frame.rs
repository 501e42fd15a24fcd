//! The frame: a 12-byte header and up to [`MAX_PAYLOAD`] bytes, or [`MAX_REQUEST`] of a request.
//!
//! Little-endian: `u32 payload length · u32 stream · u8 kind · u8 channel · u16 zero`.

use crate::WireError;

/// Bytes of a header.
pub const HEADER_LEN: usize = 12;

/// Largest payload of one frame: large enough that headers cost nothing, small enough that a hostile peer cannot make
/// the other side allocate much.
pub const MAX_PAYLOAD: usize = 256 * 1024;

/// Largest payload of a [`Kind::Request`]: a mebibyte of arguments, and an environment. Only the host sends these, which the agent
/// trusts; an agent says in its [`crate::Hello`] that it takes them.
pub const MAX_REQUEST: usize = 2 * 1024 * 1024;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Agent → host, first frame, stream 0: a [`crate::Hello`].
    Hello = 0,
    /// Agent → host, stream 0: a [`crate::Fatal`]; bring-up failed and nothing follows.
    Fatal = 1,
    /// Host → agent: opens a stream with a [`crate::Request`].
    Request = 2,
    /// Agent → host: a [`crate::Event`] on an open stream.
    Event = 3,
    /// Either way: bytes on a channel of a stream.
    Data = 4,
    /// Either way: a `u32` of additional credit for a channel of a stream.
    Window = 5,
    /// Either way: no more data on this channel.
    End = 6,
    /// Either way: the stream is over at once; the receiver forgets it and frees what belongs to it.
    Reset = 7,
    /// Either way, stream 0: answer with the same payload (at most 8 bytes) as `Pong`.
    Ping = 8,
    /// The answer to `Ping`.
    Pong = 9,
}

impl Kind {
    /// Most bytes that a frame of this kind carries.
    pub const fn max_payload(self) -> usize {
        match self {
            Self::Request => MAX_REQUEST,
            _ => MAX_PAYLOAD,
        }
    }
}

impl TryFrom<u8> for Kind {
    type Error = WireError;

    fn try_from(byte: u8) -> Result<Self, WireError> {
        Ok(match byte {
            0 => Self::Hello,
            1 => Self::Fatal,
            2 => Self::Request,
            3 => Self::Event,
            4 => Self::Data,
            5 => Self::Window,
            6 => Self::End,
            7 => Self::Reset,
            8 => Self::Ping,
            9 => Self::Pong,
            other => return Err(WireError::UnknownKind(other)),
        })
    }
}

/// A parsed frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Payload length; at most [`Kind::max_payload`].
    pub len: u32,
    /// The stream; 0 is the connection itself.
    pub stream: u32,
    /// What the frame is.
    pub kind: Kind,
    /// The channel of `Data`, `Window` and `End` frames; 0 otherwise.
    pub channel: u8,
}

impl Header {
    /// A header for `len` payload bytes. `len` must not exceed [`Kind::max_payload`]; writers chunk.
    pub fn new(kind: Kind, stream: u32, channel: u8, len: usize) -> Self {
        debug_assert!(len <= kind.max_payload());
        Self { len: len as u32, stream, kind, channel }
    }

    /// The header as bytes.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[..4].copy_from_slice(&self.len.to_le_bytes());
        out[4..8].copy_from_slice(&self.stream.to_le_bytes());
        out[8] = self.kind as u8;
        out[9] = self.channel;
        out
    }

    /// Reads a header, refusing unknown kinds and oversized payloads.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, WireError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (len, kind) = (word(0), Kind::try_from(bytes[8]));
        if len as usize > kind.as_ref().map_or(MAX_PAYLOAD, |kind| kind.max_payload()) {
            return Err(WireError::TooLong(len));
        }
        Ok(Self { len, stream: word(4), kind: kind?, channel: bytes[9] })
    }
}

/// A whole frame, borrowed from a [`Decoder`].
#[derive(Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its header.
    pub header: Header,
    /// Its payload, `header.len` bytes.
    pub payload: &'a [u8],
}

/// Cuts a byte stream into frames. Holds at most one incomplete frame plus what was read with it.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
}

impl Decoder {
    /// An empty decoder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends bytes as they were read.
    pub fn extend(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, `None` when more bytes are needed.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, WireError> {
        let pending = &self.buffer[self.start..];
        let Some(head) = pending.first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let header = Header::parse(head)?;
        let end = HEADER_LEN + header.len as usize;
        if pending.len() < end {
            return Ok(None);
        }
        let from = self.start;
        self.start += end;
        Ok(Some(Frame { header, payload: &self.buffer[from + HEADER_LEN..from + end] }))
    }

    /// Frees the buffer when nothing is pending, so that an idle agent stays small.
    pub fn shrink(&mut self) {
        if self.start == self.buffer.len() {
            self.buffer = Vec::new();
            self.start = 0;
        }
    }
}

/// Appends a whole frame to `out`.
pub fn encode(out: &mut Vec<u8>, kind: Kind, stream: u32, channel: u8, payload: &[u8]) {
    out.extend_from_slice(&Header::new(kind, stream, channel, payload.len()).to_bytes());
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_being_cut_anywhere() {
        let mut bytes = Vec::new();
        encode(&mut bytes, Kind::Data, 7, 1, b"hello");
        encode(&mut bytes, Kind::End, 7, 1, b"");
        for cut in 0..=bytes.len() {
            let mut decoder = Decoder::new();
            let mut seen = Vec::new();
            for part in [&bytes[..cut], &bytes[cut..]] {
                decoder.extend(part);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    seen.push((frame.header.kind, frame.payload.to_vec()));
                }
            }
            assert_eq!(seen, [(Kind::Data, b"hello".to_vec()), (Kind::End, vec![])]);
        }
    }

    #[test]
    fn an_oversized_frame_is_refused_before_it_is_buffered() {
        let mut decoder = Decoder::new();
        let mut head = Header::new(Kind::Data, 1, 0, 0).to_bytes();
        head[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        decoder.extend(&head);
        assert_eq!(decoder.next_frame(), Err(WireError::TooLong(u32::MAX)));
    }
}
