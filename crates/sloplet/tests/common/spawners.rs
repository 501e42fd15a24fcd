//! Who brings sandboxes up for a process.

use std::fs;

use rustix::process::Pid;

/// The spawners of a process: children of the same program. Those of a server are children of its monitor.
pub fn of(owner: Pid) -> Vec<Pid> {
    let owner = owner.as_raw_nonzero().to_string();
    let (monitors, own): (Vec<_>, Vec<_>) = children(&owner, &owner).into_iter().partition(|pid| serves(pid));
    let found = own.into_iter().chain(monitors.iter().flat_map(|monitor| children(monitor, &owner)));
    found.filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

/// Children, by any thread, that run the same program as `like`.
fn children(of: &str, like: &str) -> Vec<String> {
    let program = |pid: &str| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let tasks = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids = lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    pids.filter(|pid| program(pid).is_some_and(|exe| Some(exe) == program(like))).collect()
}

/// Whether it was started as `serve`, or forked from that.
fn serves(pid: &str) -> bool {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|byte| *byte == 0).any(|word| word == b"serve")
}
