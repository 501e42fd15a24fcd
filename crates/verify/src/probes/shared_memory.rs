//! Memory and queues that processes share by name.

use std::ffi::CString;

use sloplet_sys::attempt::Call;

use crate::part::{Parts, done, nonempty, seen_in};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "shared-memory",
    ids: &[31],
    tries: "find the host's System V segments, /dev/shm and message queues",
    why: "databases and browsers keep their users' data there",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(_: &Settings, parts: &mut Parts) {
    parts.add("System V", |settings| done(Call::ShmGet { key: settings.shm_key, create: false }));
    parts.add("System V, listed", |settings| seen_in("/proc/sysvipc/shm", &settings.shm_key.to_string()));
    parts.add("/dev/shm", |settings| nonempty(format!("/dev/shm/{}", settings.shm_file)));
    parts.optional("a message queue", |settings| {
        let name = CString::new(settings.queue.as_str()).map_err(std::io::Error::other)?;
        done(Call::MqOpen { name: &name, create: false })
    });
}
