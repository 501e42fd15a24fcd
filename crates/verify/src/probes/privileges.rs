//! What processes inside may, by the kernel's own account.

use std::collections::BTreeMap;

use sloplet_policy::Feature;

use crate::part::{Miss, Of, Parts, head, nothing};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "privileges",
    ids: &[27],
    tries: "capabilities, user ids, set-user-ID programs and core dumps beyond what the profile says; a missing filter",
    why: "a forgotten capability undoes the other walls: most escapes on record began with one",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

/// chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, sys_chroot, setfcap
const ROOT_INSIDE: u64 = 0x8004_05fb;

fn parts(settings: &Settings, parts: &mut Parts) {
    // Those of whatever runs the sandbox behind a kernel of its own are the matter of `outer-walls`.
    parts.of_kernel("filters").add("no filter", |_| match status()?.get("Seccomp").map(String::as_str) {
        Some("2") => nothing("mode 2"),
        other => Ok(format!("mode {}", other.unwrap_or("unknown"))),
    });
    let action = |_: &Settings| {
        let status = status()?;
        let set =
            |name: &str| u64::from_str_radix(status.get(name).map_or("0", String::as_str), 16).unwrap_or(u64::MAX);
        let root = rustix::process::geteuid().is_root();
        let allowed = if root { ROOT_INSIDE } else { 0 };
        for (name, allowed) in
            [("CapEff", allowed), ("CapPrm", allowed), ("CapInh", 0), ("CapAmb", 0), ("CapBnd", ROOT_INSIDE)]
        {
            let more = set(name) & !allowed;
            if more != 0 {
                return Ok(format!("{name} has {more:#x} too many"));
            }
        }
        nothing("as the profile says")
    };
    // An ordinary user of the host has none either, but could get any by a set-user-ID program.
    parts.add("capabilities", action);
    parts.add("new privileges where there is nobody else to become", |settings| {
        let status = status()?;
        let forbidden = status.get("NoNewPrivs").is_some_and(|value| value == "1");
        let none = status.get("CapBnd").is_some_and(|value| value.trim_start_matches('0').is_empty());
        match !settings.inside || none {
            true if !forbidden => Ok("not forbidden".into()),
            _ => nothing("forbidden, or bounded by the user namespace"),
        }
    });
    if settings.root {
        let of = match settings.own_kernel {
            true => Of::Kernel { what: "user ids".into(), watched: false },
            false => Of::Claim(Feature::OwnUids),
        };
        parts.of(of).add("user ids of the host", |_| {
            let map = String::from_utf8_lossy(&head("/proc/self/uid_map", 4096)?).into_owned();
            let outside = map.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
            if outside < 65_536 {
                Ok(format!("ids begin with {outside} of the host"))
            } else {
                nothing("ids that nobody has")
            }
        });
    }
    parts.optional("core dumps", |settings| {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Core);
        match limit.maximum {
            Some(0) => nothing("none"),
            _ if settings.inside => Ok("allowed".into()),
            _ => Ok("allowed on the host".into()),
        }
    });
    parts.of_claim(Feature::OwnRoot).optional("the host's name", |settings| {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        if name == settings.host_name { Ok(name) } else { nothing(name) }
    });
}

fn status() -> Result<BTreeMap<String, String>, Miss> {
    let text = String::from_utf8_lossy(&head("/proc/self/status", 65536)?).into_owned();
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    Ok(fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
}
