//! Settings of the kernel.

use std::io::Write;

use crate::canaries::SETTINGS;
use crate::part::{Parts, Tried, head, writable};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "kernel-settings",
    ids: &[4, 5],
    tries: "write core_pattern, modprobe, binfmt_misc, sysrq-trigger and settings that namespaces own",
    why: "core_pattern and modprobe name programs that the kernel runs as root on the host",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

/// Those that every host has.
const EVERYWHERE: [&str; 4] = ["kernel/core_pattern", "kernel/hostname", "kernel/panic", "fs/file-max"];

fn parts(_: &Settings, parts: &mut Parts) {
    let mut watched = parts.of_watched_kernel("settings");
    for path in SETTINGS {
        let open = move |settings: &Settings| open(settings, &format!("/proc/sys/{path}"));
        match EVERYWHERE.contains(&path) {
            true => watched.add(format!("/proc/sys/{path}"), open),
            // Those that belong to a namespace's owner, too: only the read-only cover keeps root inside from them.
            false => watched.optional(format!("/proc/sys/{path}"), open),
        }
    }
    let mut parts = parts.of_kernel("settings");
    parts.add("/proc/sys/vm/drop_caches", |_| writable("/proc/sys/vm/drop_caches"));
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

/// Opens a setting for writing. Behind a kernel of its own it is really changed: the host sees whether it was its own.
fn open(settings: &Settings, path: &str) -> Tried {
    let opened = writable(path)?;
    if !(settings.inside && settings.own_kernel) {
        return Ok(opened);
    }
    let before = String::from_utf8_lossy(&head(path, 4096)?).trim().to_owned();
    let changed =
        before.parse::<u64>().map_or_else(|_| "sloplet-was-here".to_owned(), |number| (number ^ 1).to_string());
    let written = std::fs::File::options().write(true).open(path)?.write_all(changed.as_bytes());
    Ok(match written {
        Ok(()) => format!("changed from {before} to {changed}"),
        Err(error) => format!("{opened}, but not changed: {error}"),
    })
}
