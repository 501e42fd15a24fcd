//! One payload into every message decoder: what is understood survives being sent on.
//!
//! `cargo +nightly fuzz run message`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sloplet_wire::message::{from_bytes, to_bytes};
use sloplet_wire::{Event, Fatal, Hello, Request};

macro_rules! stable {
    ($($message:ty),*) => {
        |payload: &[u8]| {
            $(if let Ok(message) = from_bytes::<$message>(payload, "message") {
                assert_eq!(from_bytes::<$message>(&to_bytes(&message), "message"), Ok(message));
            })*
        }
    };
}

fuzz_target!(|payload: &[u8]| stable!(Hello, Fatal, Request, Event)(payload));
