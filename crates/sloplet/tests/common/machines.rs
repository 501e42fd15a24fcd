//! The machines that a test has made, as the host's kernel sees them.

use std::collections::BTreeSet;
use std::fs;

use super::Host;

/// The host's pids of the first processes of all sandboxes of a test.
pub fn first_processes(host: &Host) -> BTreeSet<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| is_first_inside(host, *pid)).collect()
}

fn is_first_inside(host: &Host, pid: i32) -> bool {
    let ours = fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == host.binary());
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let inside = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let pids: Vec<&str> = inside.split_whitespace().collect();
    ours && pids.len() > 1 && pids.last() == Some(&"1")
}

/// Whether the control group of a process is frozen.
pub fn is_frozen(pid: i32) -> bool {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let says = |file: String, word: &str| fs::read_to_string(file).is_ok_and(|text| text.trim() == word);
    groups.lines().any(|line| match line.splitn(3, ':').collect::<Vec<_>>()[..] {
        [_, "", path] => ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .iter()
            .any(|root| says(format!("{root}{path}/cgroup.freeze"), "1")),
        [_, "freezer", path] => says(format!("/sys/fs/cgroup/freezer{path}/freezer.state"), "FROZEN"),
        _ => false,
    })
}
