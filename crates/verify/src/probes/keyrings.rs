//! The kernel's keyrings.

use sloplet_sys::attempt::Call;

use crate::part::{Parts, done, reached};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "keyrings",
    ids: &[17],
    tries: "add_key, request_key and keyctl",
    why: "keyrings are shared by all containers of a user, and their code had CVE-2016-0728",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(_: &Settings, parts: &mut Parts) {
    let mut parts = parts.of_kernel("keyrings");
    parts.add("add_key", |_| done(Call::AddKey));
    parts.add("request_key", |_| reached(Call::RequestKey));
    parts.add("keyctl", |_| done(Call::KeyctlSession));
    parts.add("keyctl to join a session", |_| done(Call::KeyctlJoin));
}
