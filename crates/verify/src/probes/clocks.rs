//! The host's clocks.

use sloplet_sys::attempt::Call;

use crate::part::{Parts, done, reached};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "clocks",
    ids: &[21],
    tries: "set and adjust the clock",
    why: "there is one clock for all: certificates, logs and deadlines depend on it",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(_: &Settings, parts: &mut Parts) {
    let mut parts = parts.of_kernel("clocks");
    parts.add("clock_settime", |_| reached(Call::ClockSettime));
    parts.add("settimeofday", |_| reached(Call::Settimeofday));
    parts.add("adjtimex", |_| done(Call::Adjtimex));
    parts.add("clock_adjtime", |_| done(Call::ClockAdjtime));
}
