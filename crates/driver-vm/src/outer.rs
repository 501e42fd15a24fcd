//! QEMU's own sandbox.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sloplet_image::{Image, ImageConfig};
use sloplet_policy::bind::Bind;
use sloplet_policy::devices::{Devices, Shown};
use sloplet_policy::{ByteSize, Cpus, Limits, Spec};

use crate::boot::Boot;
use crate::disks::Disks;
use crate::saved::Record;

/// Memory that the guest's kernel and the keeper need besides the sandbox's.
const GUEST_OWN: u64 = 128 << 20;

/// Memory that QEMU needs besides the guest's: translated code, buffers, itself.
const QEMU_OWN: u64 = 384 << 20;

/// How long a machine may take until its agent can be talked to. Under emulation on a busy host that is long.
pub const START: Duration = Duration::from_secs(180);

/// The same for a whole machine: its init system starts much before the agent.
pub const START_WHOLE: Duration = Duration::from_secs(600);

/// How long a machine of this kind may take.
pub fn start_of(record: &Record) -> Duration {
    if record.whole { START_WHOLE } else { START }
}

/// Where things are inside.
pub const BOOT: &str = "/mnt/boot";
/// The empty disk below the one that is written to.
pub const EMPTY: &str = "/mnt/empty";
/// A saved machine.
pub const SAVED: &str = "/mnt/saved";
/// The machine's memory.
pub const RAM: &str = "/dev/shm/ram";
/// The disk that is written to.
pub const DISK: &str = "/tmp/disk";

/// How the name of a mount's disk begins.
pub const MOUNT: char = 'm';

/// Bytes of memory of a machine for these limits.
pub fn guest_memory(limits: &Limits, boot: &Boot) -> u64 {
    // Its first root is there twice for a moment: packed and unpacked.
    (limits.memory.0 + GUEST_OWN + 2 * boot.initrd_bytes).next_multiple_of(2 << 20)
}

/// What is shown to QEMU, and the names by which the guest knows each disk.
pub fn disk_names(disks: &Disks) -> Vec<(String, PathBuf)> {
    let named = |letter: char, files: Vec<&PathBuf>| {
        files
            .into_iter()
            .enumerate()
            .map(move |(number, file)| (format!("{letter}{number}"), file.clone()))
            .collect::<Vec<_>>()
    };
    let mut all = named('l', disks.layers.iter().collect());
    all.extend(named('s', disks.system.iter().collect()));
    all.extend(named(MOUNT, disks.mounts.iter().map(|(file, _)| file).collect()));
    all
}

/// The description of QEMU's sandbox, which is shown these devices of the host.
pub fn spec(wanted: &Spec, made_of: &Record, saved: Option<&Path>, devices: &[Shown]) -> Spec {
    let limits = &wanted.limits;
    // The image of a disk has tables besides what was written.
    let disk = limits.disk.0 + limits.disk.0 / 64 + (32 << 20);
    // Kept in memory unless that is too much for it, see `Limits::disk_outgrows_memory`: room for both.
    // The machine's memory is a file in memory, which may have half of it.
    let memory = (made_of.memory + QEMU_OWN + disk).max(2 * made_of.memory);
    let show = |from: &Path, to: String| Bind { from: from.to_owned(), to: to.into(), ..Bind::default() };
    let mut mounts = vec![show(&made_of.boot, BOOT.into()), show(&made_of.empty, EMPTY.into())];
    mounts.extend(saved.map(|folder| show(folder, SAVED.into())));
    mounts.extend(made_of.disks.iter().map(|(name, file)| show(file, place(name))));
    Spec {
        image: "qemu".into(),
        limits: Limits {
            memory: ByteSize(memory),
            cpus: Cpus { millis: limits.cpus.millis.saturating_add(500) },
            pids: 96 + 2 * cpus(limits),
            disk: ByteSize(disk),
            inodes: Some(1024),
            // Counted anew when the machine is up.
            timeout: sloplet_policy::Span(limits.timeout.0.saturating_add(start_of(made_of))),
            output: limits.output,
        },
        mounts,
        devices: Devices { nodes: devices.to_vec(), ..Devices::default() },
        user: Some("1000:1000".into()),
        hostname: "qemu".into(),
        best_effort: wanted.best_effort,
        ..Spec::default()
    }
}

/// Processors of a machine for these limits.
pub fn cpus(limits: &Limits) -> u32 {
    limits.cpus.millis.div_ceil(1000).clamp(1, 64)
}

/// Where a disk is inside.
pub fn place(name: &str) -> String {
    format!("/mnt/{name}")
}

/// The image of QEMU's sandbox.
pub fn image(root: &Path) -> Image {
    Image::of_folders("qemu", vec![root.to_owned()], Vec::new(), ImageConfig::default())
}
