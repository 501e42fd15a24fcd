//! A secret in what a server answers: gone from it however it arrives.

use sloplet_gateway::redact::{Needles, Redactor};

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["secret-value", "secret-value-longer", "aaaaaaab", "abababab", "secret-"], longest: 512 };

fn run(bytes: &[u8]) {
    let Some((size, text)) = support::pieces(bytes) else { return };
    let mut needles = Needles::default();
    for needle in ["secret-value", "secret-value-longer", "aaaaaaab", "abababab"] {
        needles.add(needle.as_bytes(), b"<gone>");
    }
    let read = |size: usize| {
        let mut redactor = Redactor::new(needles.clone());
        let mut out: Vec<u8> = text.chunks(size.max(1)).flat_map(|piece| redactor.push(piece)).collect();
        out.extend(redactor.finish());
        out
    };
    let whole = read(text.len());
    assert_eq!(read(size), whole);
    assert!(!whole.windows(12).any(|part| part == b"secret-value"));
}

fn seeds() -> Vec<Vec<u8>> {
    support::in_pieces(support::texts(&["x secret-value-longe y", "aaaaaaaaaaab", "secret-secret-value"]))
}
