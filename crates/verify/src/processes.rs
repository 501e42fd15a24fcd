//! A sandbox's processes, as the host sees them. Behind a kernel of its own they are what that kernel is made of.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

/// A process of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its pid.
    pub pid: i32,
    /// When it started, in ticks since the host did: its pid may be another's later.
    started: u64,
    /// Whether it has children in the same tree.
    pub has_children: bool,
}

impl Process {
    /// A process and all that descend from it.
    pub fn tree(first: i32) -> Vec<Self> {
        let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for pid in pids() {
            if let Some((parent, _)) = stat(pid) {
                children.entry(parent).or_default().push(pid);
            }
        }
        let (mut found, mut waiting) = (Vec::new(), vec![first]);
        while let Some(pid) = waiting.pop() {
            let below = children.remove(&pid).unwrap_or_default();
            if let Some((_, started)) = stat(pid) {
                found.push(Self { pid, started, has_children: !below.is_empty() });
            }
            waiting.extend(below);
        }
        found
    }

    /// Those that have this on their command line.
    pub fn called(marker: &str) -> Vec<Self> {
        let started = pids().filter_map(|pid| Some(Self { pid, started: stat(pid)?.1, has_children: false }));
        let is = |process: &Self| {
            fs::read(process.file("cmdline")).is_ok_and(|line| crate::part::contains(&line, marker.as_bytes()))
        };
        started.filter(is).collect()
    }

    /// Ends it, if it is still there.
    pub fn kill(&self) {
        if let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.lives()) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Whether it is still there.
    pub fn lives(&self) -> bool {
        stat(self.pid).is_some_and(|(_, started)| started == self.started)
    }

    /// A file of it in `/proc`.
    pub fn file(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join(name)
    }

    /// Fields of its status.
    pub fn status(&self) -> io::Result<BTreeMap<String, String>> {
        let text = fs::read_to_string(self.file("status"))?;
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Ok(fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }
}

/// All that there are.
fn pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Parent and start of a process that has not ended.
fn stat(pid: i32) -> Option<(i32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name may hold anything.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ended = fields.first().is_some_and(|state| matches!(*state, "Z" | "X"));
    if ended {
        return None;
    }
    Some((fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_its_root_and_its_branches_until_they_end() {
        let mut child = std::process::Command::new("sleep").arg("60.1234").spawn().unwrap();
        let found = Process::tree(std::process::id() as i32);
        assert!(found[0].pid == std::process::id() as i32 && found[0].has_children, "{found:?}");
        let branch = found.iter().find(|process| process.pid == child.id() as i32).unwrap();
        assert!(branch.lives() && !branch.has_children, "{branch:?}");
        assert!(Process::called("60.1234").iter().any(|process| process.pid == branch.pid));
        branch.kill();
        child.wait().unwrap();
        assert!(!branch.lives());
        assert!(Process::tree(branch.pid).is_empty());
    }
}
