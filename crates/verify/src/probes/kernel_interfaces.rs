//! Large, young interfaces of the kernel.

use sloplet_sys::attempt::Call;

use crate::part::{Parts, done, openable};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "kernel-interfaces",
    ids: &[18, 19],
    tries: "bpf, perf_event_open, userfaultfd, io_uring, io_setup, fanotify, memfd_secret",
    why: "most ways out of containers of late went through them: CVE-2021-3490, CVE-2022-29582, CVE-2023-2598",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(_: &Settings, parts: &mut Parts) {
    let mut parts = parts.of_kernel("interfaces");
    parts.add("bpf", |_| done(Call::Bpf));
    parts.optional("perf_event_open", |_| done(Call::PerfEventOpen));
    parts.add("userfaultfd for user mode", |_| done(Call::Userfaultfd { user_mode: true }));
    parts.add("userfaultfd", |_| done(Call::Userfaultfd { user_mode: false }));
    parts.optional("/dev/userfaultfd", |_| openable("/dev/userfaultfd", rustix::fs::OFlags::RDWR));
    parts.optional("io_uring_setup", |_| done(Call::IoUringSetup));
    parts.optional("io_setup", |_| done(Call::IoSetup));
    parts.add("fanotify_init", |_| done(Call::FanotifyInit));
    parts.optional("memfd_secret", |_| done(Call::MemfdSecret));
}
