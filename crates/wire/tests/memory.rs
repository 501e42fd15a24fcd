//! How much memory hostile bytes can make a decoder use. Alone in its process, since it measures the whole process.

#![allow(clippy::unwrap_used)]

use std::hint::black_box;

use peak_alloc::PeakAlloc;
use sloplet_wire::frame::encode;
use sloplet_wire::message::{from_bytes, to_bytes};
use sloplet_wire::*;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// What an argument (24 bytes in memory) or an entry (some 190) costs when it is written in 1 or 8 bytes, with the vector
/// that holds them there twice while it grows.
const MOST: usize = 48 * MAX_PAYLOAD;

/// Bytes held at the worst moment of `work`, beyond what was held before.
fn peak(work: impl FnOnce()) -> usize {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    work();
    MEMORY.peak_usage() - before
}

fn decode_all(payload: &[u8]) {
    let _ = black_box(from_bytes::<Hello>(payload, "hello"));
    let _ = black_box(from_bytes::<Fatal>(payload, "fatal"));
    let _ = black_box(from_bytes::<Request>(payload, "request"));
    let _ = black_box(from_bytes::<Event>(payload, "event"));
}

/// `start`, then as many `item`s as fit into a frame.
fn filled(start: &[u8], item: &[u8]) -> Vec<u8> {
    let mut payload = start.to_vec();
    while payload.len() + item.len() <= MAX_PAYLOAD {
        payload.extend_from_slice(item);
    }
    payload
}

#[test]
fn memory_stays_in_proportion_to_what_was_sent() {
    // Lengths that promise what does not come cost nothing.
    let promises: [&[u8]; 6] = [
        // Entries, processes, argv: arrays of 2^64 - 1 and of 2^32 - 1 items.
        &[0x82, 0x06, 0x81, 0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[0x82, 0x04, 0x81, 0x9a, 0xff, 0xff, 0xff, 0xff],
        &[0x82, 0x00, 0x81, 0x89, 0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        // A path and a text of 2^63 bytes.
        &[0x82, 0x06, 0x81, 0x82, 0x5b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[0x82, 0x01, 0x7b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        // An unknown field: a map of 2^63 pairs.
        &[0x83, 0x01, 0x60, 0xbb, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    ];
    for promise in promises {
        let used = peak(|| decode_all(promise));
        assert!(used < 4096, "{used} bytes for {promise:02x?}");
    }

    // Whole frames of the smallest items that become the largest things.
    let entry = [0x87, 0x40, 0, 0, 0, 0, 0, 0];
    let rare = [0x8b, 0x40, 0, 0, 0, 0, 0, 0, 0xf6, 0xf6, 0xf6, 0x82, 0xf6, 0x80];
    let process = [0x89, 0, 0, 0x40, 0, 0xf4, 0xf6, 0, 0, 0xf4];
    let floods = [
        ("entries", filled(&[0x82, 0x06, 0x81, 0x9f], &entry)),
        ("rare entries", filled(&[0x82, 0x06, 0x81, 0x9f], &rare)),
        ("attributes", filled(&[0x82, 0x0d, 0x84, 0x81, 0x40, 0, 0xf4, 0x9f], &[0x82, 0x40, 0x40])),
        ("processes", filled(&[0x82, 0x04, 0x81, 0x9f], &process)),
        ("arguments", filled(&[0x82, 0x00, 0x81, 0x89, 0x9f], &[0x40])),
        ("nested unknown fields", filled(&[0x83, 0x01, 0x60], &[0x81])),
        ("nested endless unknown fields", filled(&[0x83, 0x01, 0x60], &[0x9f])),
        ("nested maps", filled(&[0x83, 0x01, 0x60], &[0xa1, 0x01])),
        ("pieces of text", filled(&[0x82, 0x01, 0x7f], &[0x61, 0x78])),
        ("pieces of bytes", filled(&[0x82, 0x06, 0x81, 0x81, 0x5f], &[0x41, 0x78])),
    ];
    let mut entries_cost = 0;
    for (what, payload) in floods {
        let used = peak(|| decode_all(&payload));
        println!("{what}: {:.1} times the frame", used as f64 / MAX_PAYLOAD as f64);
        assert!(used <= MOST, "{what}: {used} bytes");
        if what == "entries" {
            entries_cost = used;
        }
    }
    // The measure itself works: these are really decoded.
    assert!(entries_cost > MAX_PAYLOAD, "{entries_cost}");

    // A decoder that is drained holds one frame and what was read with it, however much passes through.
    let mut stream = Vec::new();
    encode(&mut stream, Kind::Data, 1, 1, &vec![0; MAX_PAYLOAD]);
    encode(&mut stream, Kind::Event, 1, 0, &to_bytes(&Event::Done));
    let mut decoder = Decoder::new();
    let mut frames = 0;
    let used = peak(|| {
        for _ in 0..200 {
            for piece in stream.chunks(64 * 1024) {
                decoder.extend(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    frames += 1;
                    black_box(frame);
                }
            }
        }
    });
    assert_eq!(frames, 400);
    assert!(used <= 4 * MAX_PAYLOAD, "{used} bytes in a decoder");
    let busy = MEMORY.current_usage();
    decoder.shrink();
    let freed = busy - MEMORY.current_usage();
    assert!(freed >= MAX_PAYLOAD, "an idle decoder keeps its buffer: only {freed} bytes freed");
}
