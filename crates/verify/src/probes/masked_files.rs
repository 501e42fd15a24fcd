//! Files of the kernel that tell about the host.

use crate::part::{Parts, head, listed, nonempty, nothing, openable};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "masked-files",
    ids: &[6],
    tries: "read kcore, keys, timers, interrupts, kernel addresses, /sys",
    why: "they hold the host's memory, keys and hardware, and are no namespace's",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(_: &Settings, parts: &mut Parts) {
    let mut parts = parts.of_kernel("files about itself");
    parts.add("/proc/interrupts", |_| nonempty("/proc/interrupts"));
    for path in ["keys", "key-users", "timer_list", "kcore", "sched_debug", "latency_stats", "vmallocinfo", "slabinfo"]
    {
        parts.optional(format!("/proc/{path}"), move |_| nonempty(format!("/proc/{path}")));
    }
    parts.optional("/proc/kmsg", |_| openable("/proc/kmsg", rustix::fs::OFlags::RDONLY));
    for path in ["/proc/kallsyms", "/proc/iomem"] {
        // Readable by all, but without addresses for whoever has no capability in the host's user namespace.
        parts.optional(path, move |_| {
            let text = head(path, 1 << 20)?;
            for line in text.split(|byte| *byte == b'\n') {
                if line.iter().filter(|byte| **byte != b' ').take(8).any(|byte| !matches!(byte, b'0' | b'-'))
                    && !line.is_empty()
                {
                    return Ok(String::from_utf8_lossy(line).into_owned());
                }
            }
            nothing("no addresses")
        });
    }
    for path in ["/sys/kernel", "/sys/class"] {
        parts.add(path, move |_| listed(path));
    }
    for path in
        ["/sys/firmware", "/sys/devices/virtual/powercap", "/sys/fs/cgroup", "/sys/block", "/proc/acpi", "/proc/scsi"]
    {
        parts.optional(path, move |_| listed(path));
    }
}
