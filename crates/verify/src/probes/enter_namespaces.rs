//! Namespaces of others.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sloplet_sys::attempt::{Call, attempt};

use crate::part::{Parts, done, nothing};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "enter-namespaces",
    ids: &[12],
    tries: "enter the namespaces of the first process, and its own again, by file and by pidfd",
    why: "a namespace that can be entered is a wall with a door",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(_: &Settings, parts: &mut Parts) {
    let mut parts = parts.of_kernel("namespaces");
    for name in ["mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        parts.add(format!("of the first process: {name}"), move |settings| {
            let file = File::open(format!("/proc/{}/ns/{name}", settings.victim))?;
            done(Call::Setns(file.as_fd(), 0))
        });
        parts.add(format!("own: {name}"), move |settings| {
            if !settings.inside && !settings.root {
                // What a user may make, it may enter.
                let _ = attempt(Call::Unshare(0x1000_0000 | 0x0400_0000 | 0x0800_0000 | 0x4000_0000));
            }
            done(Call::Setns(File::open(format!("/proc/self/ns/{name}"))?.as_fd(), 0))
        });
    }
    parts.add("by pidfd", |settings| match Pid::from_raw(settings.victim) {
        Some(pid) => {
            let fd = pidfd_open(pid, PidfdFlags::empty())?;
            done(Call::Setns(fd.as_fd(), 0x0400_0000 | 0x0800_0000))
        }
        None => nothing("no process"),
    });
}
