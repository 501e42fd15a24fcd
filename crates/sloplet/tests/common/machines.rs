//! The machines that a test has made, as the host's kernel sees them.

use std::collections::BTreeSet;
use std::fs;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Host, until};

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

/// Kills processes that are nobody's children here, and waits until each has ended: what it held is free then.
#[track_caller]
pub fn kill_and_await(pids: &[Pid]) {
    let open = |pid: &Pid| pidfd_open(*pid, PidfdFlags::empty()).ok();
    let ending: Vec<_> = pids.iter().filter_map(open).collect();
    for process in &ending {
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
    for process in &ending {
        until("a process that was killed ends", || {
            let mut polled = [PollFd::new(process, PollFlags::IN)];
            poll(&mut polled, Some(&rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
        });
    }
}
