//! A connection's bytes, cut anywhere: the same frames, and every payload is read or refused.

use sloplet_wire::message::from_bytes;
use sloplet_wire::{Decoder, Event, Fatal, Header, Hello, Kind, Request, WireError};

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &[], longest: 4096 };

fn cut<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<(Header, Vec<u8>)>, Option<WireError>) {
    let mut decoder = Decoder::new();
    let mut frames = Vec::new();
    for piece in pieces {
        decoder.extend(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push((frame.header, frame.payload.to_vec())),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
        decoder.shrink();
    }
    (frames, None)
}

fn run(bytes: &[u8]) {
    let Some((size, stream)) = support::pieces(bytes) else { return };
    let pieces = cut(stream.chunks(size));
    assert_eq!(pieces, cut(std::iter::once(stream)));
    for (header, payload) in pieces.0 {
        match header.kind {
            Kind::Hello => drop(from_bytes::<Hello>(&payload, "hello")),
            Kind::Fatal => drop(from_bytes::<Fatal>(&payload, "fatal")),
            Kind::Request => drop(from_bytes::<Request>(&payload, "request")),
            Kind::Event => drop(from_bytes::<Event>(&payload, "event")),
            _ => {}
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let frames = support::wire_frames();
    support::in_pieces([frames.clone(), vec![frames.concat()]].concat())
}
