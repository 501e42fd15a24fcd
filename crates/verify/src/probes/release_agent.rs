//! Control groups that start programs on the host.

use rustix::mount::{MountFlags, mount};
use sloplet_sys::attempt::{Call, attempt};

use crate::part::{Parts, Place, Tried, private_mounts};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "release-agent",
    ids: &[3],
    tries: "mount a cgroup hierarchy, where a release_agent could be set",
    why: "CVE-2022-0492: its release_agent runs as root on the host",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(_: &Settings, parts: &mut Parts) {
    let mut parts = parts.of_kernel("control groups");
    parts.add("mount a hierarchy", |_| {
        private_mounts();
        mounted()
    });
    parts.optional("in a user namespace", |_| {
        attempt(Call::Unshare(0x1000_0000 | 0x20000 | 0x0200_0000))?;
        mounted()
    });
}

fn mounted() -> Tried {
    let place = Place::make()?;
    let mut last = rustix::io::Errno::NODEV;
    for (kind, options) in [("cgroup2", None), ("cgroup", Some(c"memory")), ("cgroup", Some(c"pids"))] {
        match mount("none", &place.0, kind, MountFlags::empty(), options) {
            Ok(()) => return Ok(format!("{kind} is mounted")),
            Err(error) => last = error,
        }
    }
    Err(last.into())
}
