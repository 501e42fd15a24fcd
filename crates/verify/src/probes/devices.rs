//! Devices.

use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mknodat};

use crate::part::{Parts, Place, Tried, nothing, openable};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "devices",
    ids: &[28],
    tries: "make device files for disks and memory; find devices beyond the few that programs need",
    why: "a disk's device is the whole host; kvm, fuse, tun and loop are doors into the kernel",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[6] }, // ENXIO
};

/// What programs expect.
const ORDINARY: [&str; 13] =
    ["null", "zero", "full", "random", "urandom", "tty", "pts", "shm", "fd", "stdin", "stdout", "stderr", "ptmx"];

fn parts(_: &Settings, parts: &mut Parts) {
    let mut parts = parts.of_kernel("devices");
    parts.add("make a disk's", |_| node(FileType::BlockDevice, 8, 0, false));
    parts.add("make memory's", |_| node(FileType::CharacterDevice, 1, 1, false));
    parts.add("make and read the kernel log's", |_| node(FileType::CharacterDevice, 1, 11, true));
    parts.optional("make and read the root disk's", |settings| {
        node(FileType::BlockDevice, settings.disk.0, settings.disk.1, true)
    });
    parts.add("others in /dev", |_| {
        let others = std::fs::read_dir("/dev")?.flatten().filter(|entry| !closed(&entry.path()));
        let names = others.filter_map(|entry| entry.file_name().into_string().ok());
        let found: Vec<String> = names.filter(|name| !ORDINARY.contains(&name.as_str())).take(6).collect();
        if found.is_empty() { nothing("only the ordinary ones") } else { Ok(found.join(", ")) }
    });
    for name in [
        "mem",
        "port",
        "kvm",
        "fuse",
        "net/tun",
        "loop-control",
        "loop0",
        "cpu/0/msr",
        "kmsg",
        "vda",
        "vsock",
        "console",
    ] {
        parts.optional(format!("/dev/{name}"), move |_| openable(format!("/dev/{name}"), OFlags::RDONLY));
    }
    parts.add("a file in /dev", |_| {
        let path = format!("/dev/sloplet-attempt-{}", std::process::id());
        std::fs::write(&path, "")?;
        std::fs::remove_file(&path)?;
        Ok("made".into())
    });
}

/// Whether it is a folder with nothing in it that nothing can be put into.
fn closed(path: &Path) -> bool {
    let empty = std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    empty && std::fs::File::create(path.join("sloplet-attempt")).is_err()
}

fn node(kind: FileType, major: u32, minor: u32, used: bool) -> Tried {
    let place = Place::make()?;
    let path = place.0.join("node");
    mknodat(CWD, &path, kind, Mode::from_raw_mode(0o600), makedev(major, minor))?;
    if used { openable(&path, OFlags::RDONLY) } else { Ok("made".into()) }
}
