//! Personalities: old ways of running programs.

use sloplet_sys::attempt::Call;

use crate::part::{Parts, done};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "personalities",
    ids: &[24],
    tries: "personalities that weaken address randomisation or memory protection",
    why: "they undo hardening, and their code is rarely exercised",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(_: &Settings, parts: &mut Parts) {
    let mut parts = parts.of_kernel("personalities");
    for (name, value) in [
        ("READ_IMPLIES_EXEC", 0x40_0000),
        ("ADDR_NO_RANDOMIZE", 0x4_0000),
        ("ADDR_COMPAT_LAYOUT", 0x20_0000),
        ("MMAP_PAGE_ZERO", 0x10_0000),
        ("PER_BSD", 6),
        ("PER_SVR4", 0x410_0001),
    ] {
        parts.add(name, move |_| done(Call::Personality(value)));
    }
}
