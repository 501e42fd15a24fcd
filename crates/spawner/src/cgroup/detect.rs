//! Where this process may make control groups.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use minicbor::{Decode, Encode};
use rustix::fs::{Access, access};

/// What a sandbox needs of cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// Bound on memory.
    Memory,
    /// Bound on processor time.
    Cpu,
    /// Bound on processes.
    Pids,
    /// Freezing (a controller of its own in version 1 only).
    Freezer,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Memory, Self::Cpu, Self::Pids, Self::Freezer];

    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
            Self::Freezer => "freezer",
        }
    }
}

/// Why a controller cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Unavailable {
    /// For people.
    pub reason: String,
    /// What to do.
    pub remedy: Option<String>,
}

/// Where groups can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cgroups {
    /// A folder for each usable controller, and why the others are not.
    V1 {
        /// Usable.
        bases: BTreeMap<Controller, PathBuf>,
        /// Not usable.
        missing: BTreeMap<Controller, Unavailable>,
    },
    /// One folder below which every controller in `controllers` is enabled.
    V2 {
        /// The folder; made on demand.
        base: PathBuf,
        /// Its parent, where controllers must be enabled first.
        parent: PathBuf,
        /// Usable controllers.
        controllers: Vec<Controller>,
    },
    /// None at all.
    None(Unavailable),
}

/// Where this process is, in the kernel's words. Writing them down takes the kernel long enough to read them once only, and to
/// tell the spawner.
#[derive(Debug, Clone, Default, Encode, Decode)]
pub struct Tables {
    /// Those lines of `/proc/self/mountinfo` that are about cgroups.
    #[n(0)]
    pub mounts: String,
    /// `/proc/self/cgroup`.
    #[n(1)]
    pub own: String,
    /// Why there are none.
    #[n(2)]
    pub problem: Option<String>,
}

impl Tables {
    /// Those of this process, and of its children as long as nobody moves them.
    pub fn read() -> Self {
        match (read_table("/proc/self/mountinfo"), read_table("/proc/self/cgroup")) {
            (Ok(mounts), Ok(own)) => {
                let cgroups = |line: &&str| CgroupMount::parse(line).is_some();
                let mounts = mounts.split_inclusive('\n').filter(cgroups).collect();
                Self { mounts, own, problem: None }
            }
            (Err(error), _) | (_, Err(error)) => {
                Self { problem: Some(format!("cannot read /proc/self: {error}")), ..Self::default() }
            }
        }
    }
}

/// A file that the kernel writes while it is read: in few large pieces, as it starts anew for each.
fn read_table(path: &str) -> io::Result<String> {
    let mut text = String::with_capacity(64 << 10);
    fs::File::open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

impl Cgroups {
    /// Those that a process at that place can use.
    pub fn of(tables: &Tables) -> Self {
        if let Some(problem) = &tables.problem {
            return Self::None(Unavailable { reason: problem.clone(), remedy: None });
        }
        let own = &tables.own;
        let mounts: Vec<CgroupMount> = tables.mounts.lines().filter_map(CgroupMount::parse).collect();
        let v2 = mounts.iter().find(|mount| mount.v2);
        let has_v1 = mounts.iter().any(|mount| !mount.v2 && mount.has("memory") || mount.has("pids"));
        match v2 {
            Some(mount) if !has_v1 => Self::version_2(mount, own),
            _ if has_v1 => Self::version_1(&mounts, own),
            _ => Self::None(Unavailable {
                reason: "no cgroup file system is mounted".into(),
                remedy: Some("mount -t cgroup2 none /sys/fs/cgroup".into()),
            }),
        }
    }

    fn version_1(mounts: &[CgroupMount], own: &str) -> Self {
        let (mut bases, mut missing) = (BTreeMap::new(), BTreeMap::new());
        for controller in Controller::ALL {
            let name = controller.name();
            let found = mounts.iter().find(|mount| !mount.v2 && mount.has(name)).and_then(|mount| {
                let path = own.lines().find_map(|line| {
                    let (_, rest) = line.split_once(':')?;
                    let (names, path) = rest.split_once(':')?;
                    names.split(',').any(|n| n == name).then_some(path)
                })?;
                Some(mount.resolve(path))
            });
            match found {
                Some(path) if writable(&path) => {
                    bases.insert(controller, path);
                }
                Some(path) => {
                    let reason = format!("cgroup {} is not writable by this user", path.display());
                    let remedy = Some(
                        "have an administrator delegate it (chown), or use a host with cgroup v2 and systemd".into(),
                    );
                    missing.insert(controller, Unavailable { reason, remedy });
                }
                None => {
                    let reason = format!("the kernel offers no {name} controller");
                    missing.insert(controller, Unavailable { reason, remedy: None });
                }
            }
        }
        Self::V1 { bases, missing }
    }

    fn version_2(mount: &CgroupMount, own: &str) -> Self {
        let own_path = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
        let own_dir = mount.resolve(own_path);
        // The topmost folder this process may write to: for root the tree's root, for a user what systemd delegated.
        // A process may only be moved within a subtree it may write to, so it must be one of our own ancestors.
        let parent = own_dir
            .ancestors()
            .take_while(|dir| dir.starts_with(&mount.point))
            .filter(|dir| writable(dir) && writable(&dir.join("cgroup.subtree_control")))
            .last();
        let Some(parent) = parent else {
            return Self::None(Unavailable {
                reason: format!("cgroup {} is not delegated to this user", own_dir.display()),
                remedy: Some(
                    "start it in a delegated scope: systemd-run --user --scope -p Delegate=yes sloplet …".into(),
                ),
            });
        };
        let offered = fs::read_to_string(parent.join("cgroup.controllers")).unwrap_or_default();
        let mut controllers: Vec<Controller> =
            Controller::ALL.into_iter().filter(|c| offered.split_whitespace().any(|word| word == c.name())).collect();
        controllers.push(Controller::Freezer); // part of version 2 itself
        Self::V2 { base: parent.join("sloplet"), parent: parent.to_owned(), controllers }
    }

    /// Whether a controller can be used, or why not.
    pub fn check(&self, controller: Controller) -> Result<(), Unavailable> {
        match self {
            Self::V1 { bases, .. } if bases.contains_key(&controller) => Ok(()),
            Self::V1 { missing, .. } => Err(missing.get(&controller).cloned().unwrap_or_else(|| Unavailable {
                reason: format!("the kernel offers no {} controller", controller.name()),
                remedy: None,
            })),
            Self::V2 { controllers, .. } if controllers.contains(&controller) => Ok(()),
            Self::V2 { parent, .. } => Err(Unavailable {
                reason: format!("the {} controller is not delegated to {}", controller.name(), parent.display()),
                remedy: Some(format!(
                    "have an administrator add it: Delegate=cpu cpuset io memory pids in user@.service (missing: {})",
                    controller.name()
                )),
            }),
            Self::None(why) => Err(why.clone()),
        }
    }

    /// Readies the place: on version 2, enables the controllers below it. Costs nothing the second time.
    pub fn prepare(&self) -> io::Result<()> {
        let Self::V2 { base, parent, controllers } = self else {
            return Ok(());
        };
        if base.join("memory.max").exists() && base.join("cgroup.subtree_control").exists() {
            let enabled = fs::read_to_string(base.join("cgroup.subtree_control"))?;
            if controllers.iter().all(|c| *c == Controller::Freezer || enabled.contains(c.name())) {
                return Ok(());
            }
        }
        enable(parent, controllers)?;
        match fs::create_dir(base) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        enable(base, controllers)
    }

    /// The folders in which groups are made, for the clean-up after a crash.
    pub fn bases(&self) -> Vec<PathBuf> {
        match self {
            Self::V1 { bases, .. } => bases.values().cloned().collect(),
            Self::V2 { base, .. } => vec![base.clone()],
            Self::None(_) => Vec::new(),
        }
    }
}

fn enable(dir: &Path, controllers: &[Controller]) -> io::Result<()> {
    // One at a time: a controller that cannot be enabled must not take the others with it.
    for controller in controllers.iter().filter(|c| **c != Controller::Freezer) {
        fs::write(dir.join("cgroup.subtree_control"), format!("+{}", controller.name()))?;
    }
    Ok(())
}

fn writable(path: &Path) -> bool {
    access(path, Access::WRITE_OK).is_ok()
}

/// A line of `/proc/self/mountinfo` that mounts a cgroup tree.
struct CgroupMount {
    root: String,
    point: PathBuf,
    v2: bool,
    options: String,
}

impl CgroupMount {
    fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let v2 = match right.next()? {
            "cgroup2" => true,
            "cgroup" => false,
            _ => return None,
        };
        let mut left = left.split(' ').skip(3);
        Some(Self { root: left.next()?.to_owned(), point: left.next()?.into(), v2, options: right.nth(1)?.to_owned() })
    }

    fn has(&self, controller: &str) -> bool {
        !self.v2 && self.options.split(',').any(|option| option == controller)
    }

    /// The folder of a cgroup path; a mount may show only a part of the tree.
    fn resolve(&self, path: &str) -> PathBuf {
        let below = path.strip_prefix(self.root.trim_end_matches('/')).unwrap_or(path);
        self.point.join(below.trim_start_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(mounts: String, own: &str) -> Tables {
        Tables { mounts, own: own.to_owned(), problem: None }
    }

    fn v2_tables(root: &Path, own: &str) -> Tables {
        tables(format!("30 24 0:26 / {} rw - cgroup2 cgroup2 rw", root.display()), &format!("0::{own}\n"))
    }

    #[test]
    fn version_2_takes_the_topmost_writable_ancestor() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("user.slice/app.scope");
        fs::create_dir_all(&own).unwrap();
        for place in [dir.path().join("user.slice"), own] {
            fs::write(place.join("cgroup.subtree_control"), "").unwrap();
            fs::write(place.join("cgroup.controllers"), "cpu io memory pids\n").unwrap();
        }
        let found = Cgroups::of(&v2_tables(dir.path(), "/user.slice/app.scope"));
        let Cgroups::V2 { base, controllers, .. } = &found else { panic!("{found:?}") };
        assert_eq!(base, &dir.path().join("user.slice/sloplet"));
        assert_eq!(controllers.len(), 4);
        assert!(found.check(Controller::Memory).is_ok());
    }

    #[test]
    fn version_2_without_delegation_says_how_to_get_it() {
        let dir = tempfile::tempdir().unwrap();
        let Cgroups::None(why) = Cgroups::of(&v2_tables(dir.path(), "/session.scope")) else { panic!() };
        assert!(why.remedy.unwrap().contains("Delegate=yes"));
    }

    #[test]
    fn version_1_reports_each_controller_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("memory/box")).unwrap();
        let mounts = format!(
            "31 25 0:27 / {0}/memory rw - cgroup cgroup rw,memory\n32 25 0:28 / {0}/pids rw - cgroup cgroup rw,pids",
            dir.path().display()
        );
        let found = Cgroups::of(&tables(mounts, "8:pids:/\n4:memory:/box\n0::/\n"));
        assert!(found.check(Controller::Memory).is_ok());
        assert!(found.check(Controller::Pids).is_err(), "its folder does not exist");
        assert!(found.check(Controller::Cpu).unwrap_err().reason.contains("no cpu controller"));
        assert_eq!(found.bases(), [dir.path().join("memory/box")]);
    }
}
