//! Every limit of a sandbox really bites, the same program succeeds when the limit is generous, the sandbox outlives its
//! culprit, and the host stays well.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod cpu;
mod descriptors;
mod disk;
mod memory;
mod processes;
mod streams;
mod time;

use common::{Host, Sloplet};

/// A test for root and for the ordinary user, with nothing left behind by either.
fn for_everybody(test: impl Fn(&Sloplet)) {
    let host = Host::shared();
    let leaks = host.leaks();
    for sloplet in [host.root(), host.user()] {
        test(&sloplet);
    }
    leaks.assert_none_new();
}
