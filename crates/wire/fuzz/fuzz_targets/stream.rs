//! Bytes of a connection, cut at arbitrary places: same frames however they are cut, and every payload decodes or is
//! refused. The first byte is the length of the pieces.
//!
//! `cargo +nightly fuzz run stream -- -max_len=4096`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sloplet_wire::message::from_bytes;
use sloplet_wire::{Decoder, Event, Fatal, Header, Hello, Kind, Request, WireError};

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

fuzz_target!(|bytes: &[u8]| {
    let Some((length, stream)) = bytes.split_first() else {
        return;
    };
    let pieces = cut(stream.chunks(usize::from(*length) + 1));
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
});
