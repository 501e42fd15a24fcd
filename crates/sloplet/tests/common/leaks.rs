//! What sandboxes may leave behind on a host, counted.
//!
//! A process cannot leave its control groups, so those of the test name exactly what it started, also when other people
//! use the machine. Namespaces that no process is in any more are not listed anywhere; the kernel's allocator counts
//! them, not to the unit, but a leak in every run shows.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sloplet_sys::private;

use super::Place;

/// The kernel tears network and mount namespaces down in the background.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long spawners of a server may stay, and then some.
const AFTER_A_SERVER: Duration = Duration::from_secs(30);

/// The allocator keeps some freed objects on lists of each processor.
const SLACK: u64 = 150;

/// The state of the host before a test.
pub struct Leaks {
    place: Arc<Place>,
    before: BTreeSet<String>,
    namespaces_before: Vec<(&'static str, u64)>,
}

impl Leaks {
    pub(super) fn before(place: &Arc<Place>) -> Self {
        let place = place.clone();
        let before = traces(&place);
        Self { place, before, namespaces_before: namespaces_in_kernel() }
    }

    /// Fails if there is something that was not there before, after a few seconds of patience.
    #[track_caller]
    pub fn assert_none_new(&self) {
        let found = self.new_ones();
        assert!(found.is_empty(), "left behind:\n{}", found.join("\n"));
    }

    /// The same where there was a server: its spawners stay for some seconds, for the next one.
    #[track_caller]
    pub fn assert_none_new_after_a_server(&self) {
        let started = Instant::now();
        while !self.new_ones().is_empty() && started.elapsed() < AFTER_A_SERVER {}
        self.assert_none_new();
    }

    /// Fails if the kernel holds about one more namespace for each of `runs` sandboxes. Not for a test that shares the
    /// host with others, nor for few runs: the allocator does not count to the unit.
    #[track_caller]
    pub fn assert_no_namespace_for_each(&self, runs: u64) {
        let started = Instant::now();
        loop {
            let grown = |((name, before), (_, now)): (&(&'static str, u64), (&'static str, u64))| {
                (now > before + SLACK + runs / 2).then(|| format!("{name}: {before} before, {now} now"))
            };
            let grown: Vec<String> =
                self.namespaces_before.iter().zip(namespaces_in_kernel()).filter_map(grown).collect();
            if grown.is_empty() {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "namespaces in the kernel after {runs} runs: {grown:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// What is there that was not there before, after a few seconds of patience.
    pub fn new_ones(&self) -> Vec<String> {
        let started = Instant::now();
        loop {
            let new: Vec<String> = traces(&self.place).difference(&self.before).cloned().collect();
            if new.is_empty() || started.elapsed() > PATIENCE {
                return new;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Everything of this test that can be found, one line each.
fn traces(place: &Place) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for pid in processes(place) {
        found.insert(format!("process {pid}: {}", command_line(pid)));
        found.extend(namespaces_of(pid).into_iter().map(|namespace| format!("namespace {namespace}")));
    }
    found.extend(place.groups.made_inside().iter().map(|path| format!("cgroup {}", path.display())));
    found.extend(mounts(place));
    found.extend(loop_devices(place));
    for who in ["root", "user", "stranger"] {
        list(&place.dir.join(who).join("run"), "record", &mut found);
        list(&place.dir.join(who).join("data/disks"), "disk", &mut found);
    }
    // Folders of the level `process`, which has no file system of its own. They are where those of all tests are: whose each
    // is, the ledgers tell.
    for entry in ["/tmp", "/var/tmp"].iter().flat_map(fs::read_dir).flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // Named after the sandbox; others of that beginning are not a sandbox's.
        let Some(id) = name.strip_prefix("sloplet-").filter(|id| id.len() == 16 && !id.contains('-')) else { continue };
        if is_known(place, id) {
            found.insert(format!("folder {}", entry.path().display()));
        }
    }
    // Kept on purpose: empty disks are made once for each size; the folder of leases, the run folders of data folders, and
    // places to mount on stay.
    let kept = ["/run/uids", "/templates", "/templates/dev", "/templates/masks"];
    let is_run_folder = |line: &str| line.rsplit_once("/run/").is_some_and(|(_, name)| private::is_run_folder(name));
    found.retain(|line| !line.contains("/disks/ext4-") && !kept.iter().any(|end| line.ends_with(end)));
    found.retain(|line| !is_run_folder(line));
    found
}

/// Whether a sandbox of the test had this id.
fn is_known(place: &Place, id: &str) -> bool {
    let ledgers = ["root", "user", "stranger"].map(|who| place.dir.join(who).join("data/ledger"));
    let files = ledgers.iter().flat_map(fs::read_dir).flatten().flatten();
    files
        .filter_map(|file| fs::read(file.path()).ok())
        .any(|text| text.windows(id.len()).any(|part| part == id.as_bytes()))
}

/// Processes in the test's control groups, and those that run its binary wherever they are.
fn processes(place: &Place) -> BTreeSet<i32> {
    let mut found: BTreeSet<i32> = place.groups.processes().into_iter().collect();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == place.binary) {
            found.insert(pid);
        }
    }
    found
}

/// Kills everything that the test has started.
pub(super) fn kill_all(place: &Place) {
    for pid in processes(place).into_iter().filter_map(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

fn command_line(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = state.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('?');
    format!("{} (state {state})", String::from_utf8_lossy(&line).replace('\0', " ").trim())
}

/// Namespaces of a process that are not this process's own.
fn namespaces_of(pid: i32) -> Vec<String> {
    let read = |dir: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.display().to_string())).collect()
    };
    read(&format!("/proc/{pid}/ns")).difference(&read("/proc/self/ns")).cloned().collect()
}

/// Objects of these kinds that the kernel holds, where it counts them apart.
fn namespaces_in_kernel() -> Vec<(&'static str, u64)> {
    let slabs = fs::read_to_string("/proc/slabinfo").unwrap_or_default();
    let count = |name: &str| {
        let line = slabs.lines().find(|line| line.split(' ').next() == Some(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    ["net_namespace", "pid_namespace", "user_namespace"].map(|name| (name, count(name).unwrap_or(0))).to_vec()
}

/// Mounts that the host can see: there must never be any.
fn mounts(place: &Place) -> Vec<String> {
    let own = place.dir.display().to_string();
    let table = fs::read_to_string("/proc/1/mountinfo").or_else(|_| fs::read_to_string("/proc/self/mountinfo"));
    let table = table.unwrap_or_default();
    table.lines().filter(|line| line.contains(&own)).map(|line| format!("mount {line}")).collect()
}

fn loop_devices(place: &Place) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if file.starts_with(&place.dir.display().to_string()) {
            found.push(format!("loop device {} on {}", entry.file_name().display(), file.trim()));
        }
    }
    found
}

fn list(dir: &Path, kind: &str, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path: PathBuf = entry.path();
        found.insert(format!("{kind} {}", path.display()));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            list(&path, kind, found);
        }
    }
}
