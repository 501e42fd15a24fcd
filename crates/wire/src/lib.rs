//! Messages and framing between the host and the agent inside a sandbox.
//!
//! One byte stream carries many *streams*. The host opens a stream with a [`Request`]; the agent answers with
//! [`Event`]s on it; bulk bytes travel as `Data` frames on numbered [`Channel`]s under credit-based flow control, so
//! that a flooding process can never stall a file read.
//!
//! - [`frame`]: the 12-byte header and an incremental decoder.
//! - [`flow`]: the credit windows of both ends.
//! - [`message`]: what is asked and answered (CBOR).
//!
//! # Versions
//! Messages are CBOR arrays with numbered fields: a reader skips fields it does not know and takes an absent optional
//! field for `None`, so a newer host talks to an older agent as long as [`VERSION`] is equal. A request of an unknown
//! kind is answered with [`ErrorCode::Unsupported`]. Field and variant numbers are never reused.
//!
//! # Trust
//! Everything the agent says is hostile input to the host. Decoding never panics, allocates no more than a fixed multiple of
//! a frame (itself at most [`frame::MAX_PAYLOAD`]), and every violation is an error that ends the connection.
//! `tests/hostile.rs` feeds both directions arbitrary and mutated bytes.

pub mod flow;
pub mod frame;
pub mod message;

pub use flow::{ReceiveWindow, SendWindow};
pub use frame::{Decoder, Frame, HEADER_LEN, Header, Kind, MAX_PAYLOAD, MAX_REQUEST};
pub use message::*;
pub use minicbor::bytes::ByteVec;

/// Protocol version; unequal versions refuse each other in the first message.
pub const VERSION: u16 = 1;

/// A peer broke the protocol; the connection must end.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// A header names a kind that does not exist.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// A header announces more bytes than a frame of its kind carries.
    #[error("frame of {0} bytes exceeds the limit of its kind ({MAX_PAYLOAD}; {MAX_REQUEST} for requests)")]
    TooLong(u32),
    /// A payload is not the message its kind promises.
    #[error("malformed {0} message")]
    Malformed(&'static str),
    /// More data was sent than was granted.
    #[error("peer overran its window by {0} bytes")]
    WindowOverrun(u64),
    /// Credit beyond what a window can hold was granted.
    #[error("peer granted an impossible window")]
    WindowOverflow,
}
