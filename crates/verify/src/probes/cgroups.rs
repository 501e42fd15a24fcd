//! Control groups: who bounds whom.

use std::path::{Path, PathBuf};

use crate::part::{Parts, head, nothing, writable};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "cgroups",
    ids: &[32],
    tries: "open cgroup.procs, memory limits and release_agent to write; read where in the host's tree it is",
    why: "who writes its own limits has none",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

const FILES: [&str; 6] =
    ["cgroup.procs", "memory.max", "tasks", "memory.limit_in_bytes", "release_agent", "devices.allow"];

fn parts(_: &Settings, parts: &mut Parts) {
    let mut parts = parts.of_kernel("control groups");
    parts.optional("its place in the host's tree", |settings| {
        let text = String::from_utf8_lossy(&head("/proc/self/cgroup", 65536)?).into_owned();
        let told = text.lines().find(|line| line.splitn(3, ':').nth(2).is_some_and(|path| path != "/"));
        match told {
            Some(line) => Ok(line.to_owned()),
            // A host whose shell sits in the root cgroup shows nothing either, but would show others'.
            None if !settings.inside => Ok("this process is in the root group".into()),
            None => nothing("/ everywhere"),
        }
    });
    parts.add("write", |_| match find(Path::new("/sys/fs/cgroup"), 0) {
        Some(path) => Ok(format!("opened {}", path.display())),
        None => nothing("no file of a control group can be opened"),
    });
}

fn find(folder: &Path, depth: usize) -> Option<PathBuf> {
    let own = FILES.iter().map(|name| folder.join(name)).find(|path| writable(path).is_ok());
    if own.is_some() || depth > 3 {
        return own;
    }
    let folders = std::fs::read_dir(folder).ok()?.flatten().filter(|entry| entry.path().is_dir());
    folders.take(64).filter_map(|entry| find(&entry.path(), depth + 1)).next()
}
