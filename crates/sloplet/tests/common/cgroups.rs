//! Control groups of one test: everything it starts is below them.
//!
//! - `root`: where root's invocations start.
//! - `user`, `stranger`: each delegated to an ordinary user.
//! - `plain`: where the ordinary user's invocations start that are to have no delegated groups.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::Duration;

const V1_CONTROLLERS: [&str; 4] = ["memory", "cpu", "pids", "freezer"];

/// The groups of one test.
pub struct TestGroups {
    tops: Vec<PathBuf>,
    v2: bool,
}

impl TestGroups {
    /// Makes them; `delegated` parts belong to these users.
    pub fn make(name: &str, delegated: &[(&str, u32)]) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let v1: Vec<PathBuf> = V1_CONTROLLERS.iter().filter_map(|name| v1_folder(&mounts, &own, name)).collect();
        let v2 = v1.is_empty();
        // Version 2: at the tree's root, the only folder that may hold processes and groups at once.
        let bases = if v2 { vec![v2_mount(&mounts).expect("a cgroup file system")] } else { v1 };
        let groups = Self { tops: bases.iter().map(|base| base.join(name)).collect(), v2 };
        for (base, top) in bases.iter().zip(&groups.tops) {
            if v2 {
                enable(base);
            }
            fs::create_dir(top).unwrap_or_else(|error| panic!("cannot make the cgroup {}: {error}", top.display()));
            if v2 {
                enable(top);
            }
            for part in ["root", "plain"] {
                fs::create_dir(top.join(part)).unwrap();
            }
            delegated.iter().for_each(|(part, uid)| delegate(&top.join(part), *uid, v2));
        }
        groups
    }

    /// Files into which a process writes `0` to join.
    pub fn joins(&self, part: &str) -> Vec<PathBuf> {
        let file = if self.v2 { "cgroup.procs" } else { "tasks" };
        let leaf = |dir: PathBuf| if dir.join(SESSION).exists() { dir.join(SESSION) } else { dir };
        self.tops.iter().map(|top| leaf(top.join(part)).join(file)).collect()
    }

    /// Every group below the test's own: those of sandboxes.
    pub fn made_inside(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for top in self.with_shared() {
            for part in children(&top) {
                descend(&part, &mut found);
            }
        }
        found.retain(|path| !path.ends_with(SESSION));
        found
    }

    /// Every process in the test's groups.
    pub fn processes(&self) -> Vec<i32> {
        let mut all: Vec<i32> = Vec::new();
        for top in self.with_shared() {
            let mut groups = vec![top.clone()];
            descend(&top, &mut groups);
            for group in groups {
                let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
                all.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// On version 2 root's sandboxes are made at the top of the tree, wherever root itself is.
    fn with_shared(&self) -> Vec<PathBuf> {
        let shared = self.v2.then(|| self.tops[0].with_file_name("sloplet")).filter(|path| path.exists());
        self.tops.iter().cloned().chain(shared).collect()
    }

    pub fn remove(&self) {
        for top in &self.tops {
            let mut groups = vec![top.clone()];
            descend(top, &mut groups);
            for group in groups.iter().rev() {
                for _ in 0..100 {
                    if fs::remove_dir(group).is_ok() || !group.exists() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
}

/// Version 2: a group that is divided among others cannot hold processes itself.
const SESSION: &str = "session";

fn delegate(dir: &Path, uid: u32, v2: bool) {
    fs::create_dir(dir).unwrap();
    for file in ["", "tasks", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
        let path = dir.join(file);
        if path.exists() {
            chown(&path, Some(uid), Some(uid)).unwrap();
        }
    }
    if v2 {
        enable(dir);
        fs::create_dir(dir.join(SESSION)).unwrap();
        chown(dir.join(SESSION), Some(uid), Some(uid)).unwrap();
    }
}

fn enable(dir: &Path) {
    for controller in ["memory", "cpu", "pids"] {
        let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

/// Adds all groups below `dir`, parents first.
fn descend(dir: &Path, found: &mut Vec<PathBuf>) {
    for child in children(dir) {
        found.push(child.clone());
        descend(&child, found);
    }
}

/// This process's own folder of a version 1 controller.
fn v1_folder(mounts: &str, own: &str, controller: &str) -> Option<PathBuf> {
    let point = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - cgroup ")?;
        let options = right.rsplit(' ').next()?;
        options.split(',').any(|option| option == controller).then(|| left.split(' ').nth(4))?
    })?;
    let path = own.lines().find_map(|line| {
        let (names, path) = line.split_once(':')?.1.split_once(':')?;
        names.split(',').any(|name| name == controller).then_some(path)
    })?;
    Some(Path::new(point).join(path.trim_start_matches('/')))
}

fn v2_mount(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| Some(line.split_once(" - cgroup2 ")?.0.split(' ').nth(4)?.into()))
}
