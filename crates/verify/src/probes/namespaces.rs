//! New namespaces: where all power over the kernel's younger code begins.

use sloplet_sys::attempt::{Call, clone_and_end, clone3_and_end};
use sloplet_sys::clone::SingleThreaded;

use crate::part::{Parts, done};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "namespaces",
    ids: &[9],
    tries: "make namespaces of every kind with unshare, clone and clone3",
    why: "root of a new user namespace reaches kernel code that ordinary users do not: CVE-2022-0185, CVE-2022-25636",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

const KINDS: [(&str, u64); 8] = [
    ("user", 0x1000_0000),
    ("mount", 0x20000),
    ("pid", 0x2000_0000),
    ("net", 0x4000_0000),
    ("ipc", 0x0800_0000),
    ("uts", 0x0400_0000),
    ("cgroup", 0x0200_0000),
    ("time", 0x80),
];

fn parts(_: &Settings, parts: &mut Parts) {
    let mut parts = parts.of_kernel("namespaces");
    for (name, flag) in KINDS {
        parts.add(format!("unshare {name}"), move |_| done(Call::Unshare(flag)));
        if name != "time" {
            // Its bit is part of the exit signal there.
            parts.add(format!("clone {name}"), move |_| {
                clone_and_end(&SingleThreaded::prove()?, flag)?;
                Ok("made".into())
            });
        }
        parts.add(format!("clone3 {name}"), move |_| {
            clone3_and_end(&SingleThreaded::prove()?, flag)?;
            Ok("made".into())
        });
    }
    // A filter must look at all the bits, in any company.
    parts.add("user among others", |_| done(Call::Unshare(0x1000_0000 | 0x20000 | 0x2000_0000 | 0x4000_0000)));
}
