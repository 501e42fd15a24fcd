//! Settings of the kernel.

use std::io::Write;

use sloplet_policy::Feature;

use crate::part::{Parts, head, writable};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "kernel-settings",
    ids: &[4, 5],
    tries: "write core_pattern, modprobe, binfmt_misc, sysrq-trigger and settings that namespaces own",
    why: "core_pattern and modprobe name programs that the kernel runs as root on the host",
    needs: &[Feature::OwnRoot],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(_: &Settings, parts: &mut Parts) {
    for path in ["kernel/core_pattern", "kernel/hostname", "kernel/panic", "vm/drop_caches", "fs/file-max"] {
        parts.add(format!("/proc/sys/{path}"), move |_| writable(format!("/proc/sys/{path}")));
    }
    // Those that belong to a namespace's owner: only the read-only cover keeps root inside from them.
    for path in ["user/max_inotify_instances", "user/max_user_namespaces", "kernel/shmmax", "kernel/modprobe"] {
        parts.optional(format!("/proc/sys/{path}"), move |_| writable(format!("/proc/sys/{path}")));
    }
    parts.add("write core_pattern", |_| {
        let path = "/proc/sys/kernel/core_pattern";
        let before = head(path, 4096)?;
        std::fs::File::options().write(true).open(path)?.write_all(&before)?;
        Ok("written".into())
    });
    for path in [
        "/proc/sys/fs/binfmt_misc/register",
        "/sys/kernel/uevent_helper",
        "/proc/sysrq-trigger",
        "/sys/power/state",
        "/proc/irq/default_smp_affinity",
        "/proc/mtrr",
    ] {
        parts.optional(path, move |_| writable(path));
    }
    for name in ["oom_score_adj", "coredump_filter", "clear_refs", "uid_map", "setgroups", "projid_map"] {
        parts
            .optional(format!("/proc/1/{name}"), move |settings| writable(format!("/proc/{}/{name}", settings.victim)));
    }
}
