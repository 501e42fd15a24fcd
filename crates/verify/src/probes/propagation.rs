//! What the table of mounts gives away.

use sloplet_policy::Feature;

use crate::part::{Miss, Parts, head, nothing};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "mount-flags",
    ids: &[26, 33],
    tries: "find mounts that propagate to the host, or of the host's files without read-only, nosuid and nodev",
    why: "a shared mount appears on the host; a set-user-ID program of the host keeps the host's privilege",
    needs: &[Feature::OwnRoot],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(_: &Settings, parts: &mut Parts) {
    let mut parts = parts.of_kernel("mounts");
    parts.optional("shared mounts", |settings| {
        if !settings.inside {
            use rustix::mount::{MountPropagationFlags, mount_change};
            crate::part::private_mounts();
            let _ = mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC);
        }
        found(|fields| fields.iter().skip(6).any(|field| field.starts_with("shared:") || field.starts_with("master:")))
    });
    for flag in ["ro", "nosuid", "nodev"] {
        parts.add(format!("the host's files without {flag}"), move |settings| {
            let shown = settings.read_only.parent().map(|path| path.display().to_string()).unwrap_or_default();
            let program = if settings.inside { "/usr" } else { "/" };
            found(|fields| {
                let of_host = fields[4] == program || fields[4] == shown;
                of_host && !fields[5].split(',').any(|option| option == flag)
            })
        });
    }
}

fn found(bad: impl Fn(&[&str]) -> bool) -> Result<String, Miss> {
    let table = String::from_utf8_lossy(&head("/proc/self/mountinfo", 1 << 20)?).into_owned();
    for line in table.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        if fields.len() > 6 && bad(&fields) {
            return Ok(line.to_owned());
        }
    }
    nothing("none")
}
