//! Descriptors that nobody meant to hand on.

use std::path::Path;

use crate::part::{Parts, nothing};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "inherited-descriptors",
    ids: &[2],
    tries: "find descriptors beyond 0 to 2, and a way to the host's files through any",
    why: "CVE-2024-21626: a leaked descriptor of the host's root was a way out of runc",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(_: &Settings, parts: &mut Parts) {
    parts.add("beyond 0 to 2", |settings| {
        // On the host, one that was left open on purpose.
        let left = (!settings.inside).then(|| std::fs::File::open("/")).transpose()?;
        let found: Vec<String> = (3..4096)
            .filter_map(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok())
            // The pipe of this very attempt.
            .map(|path| path.display().to_string())
            .filter(|path| !path.starts_with("pipe:"))
            .collect();
        drop(left);
        if found.is_empty() { nothing("only 0 to 2") } else { Ok(found.join(", ")) }
    });
    parts.add("a folder of the host", |settings| {
        let left = (!settings.inside).then(|| std::fs::File::open("/")).transpose()?;
        let relative = settings.canary.strip_prefix("/").unwrap_or(&settings.canary);
        for fd in 0..64 {
            let base = format!("/proc/self/fd/{fd}");
            for up in ["", "../../../../../../../../../../.."] {
                if Path::new(&base).join(up).join(relative).exists() {
                    return Ok(format!("the host's canary through descriptor {fd}"));
                }
            }
        }
        drop(left);
        nothing("none leads to the host")
    });
}
