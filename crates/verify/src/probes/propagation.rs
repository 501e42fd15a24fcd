//! What the table of mounts gives away.

use sloplet_policy::Feature;
use sloplet_sys::attempt::{Call, attempt};

use crate::part::{Miss, Of, Parts, head, nothing};
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

/// A new mount namespace.
const MOUNT: u64 = 0x20000;

fn parts(settings: &Settings, parts: &mut Parts) {
    let claimed = |always: bool| match always || settings.own_kernel {
        true => Of::Kernel { what: "mounts".into(), watched: false },
        false => Of::Claim(Feature::OwnMounts),
    };
    for (name, tag) in [("mounts shared with the host", "shared:"), ("mounts that follow the host's", "master:")] {
        parts.of(claimed(tag == "shared:")).optional(name, move |settings| {
            if !settings.inside {
                use rustix::mount::{MountPropagationFlags, mount_change};
                crate::part::private_mounts();
                let _ = mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC);
                if tag == "master:" {
                    attempt(Call::Unshare(MOUNT))?;
                    let _ = mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC);
                }
            }
            found(|fields| fields.iter().skip(6).any(|field| field.starts_with(tag)))
        });
    }
    for flag in ["ro", "nosuid", "nodev"] {
        parts.of(claimed(flag == "ro")).add(format!("the host's files without {flag}"), move |settings| {
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
