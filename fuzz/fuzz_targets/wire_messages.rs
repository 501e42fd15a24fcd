//! One payload into every decoder of messages: what is understood survives being sent on.

use sloplet_wire::message::{from_bytes, to_bytes};
use sloplet_wire::{Event, Fatal, Hello, Request};

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds: support::wire_payloads, words: &[], longest: 2048 };

fn run(payload: &[u8]) {
    macro_rules! stable {
        ($($message:ty),*) => {
            $(if let Ok(message) = from_bytes::<$message>(payload, "message") {
                assert_eq!(from_bytes::<$message>(&to_bytes(&message), "message"), Ok(message));
            })*
        };
    }
    stable!(Hello, Fatal, Request, Event);
    if let Ok(Event::Exited(exit)) = from_bytes(payload, "event") {
        let _ = exit.shell_code();
    }
}
