//! One sandbox's control group.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::detect::{Cgroups, Controller};
use crate::protocol::{During, Problem, Usage};

/// The period over which a processor quota is counted, in microseconds: the kernel's own default.
const CPU_PERIOD_US: u64 = 100_000;

/// What a group bounds; `None` leaves it unbounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes.
    pub memory: u64,
    /// Thousandths of a processor.
    pub cpu_millis: u32,
    /// Processes and threads.
    pub pids: u32,
}

/// A sandbox's group: a folder (version 2) or one for each controller (version 1).
#[derive(Debug)]
pub struct Group {
    dirs: Vec<(Controller, PathBuf)>,
    version: Version,
}

#[derive(Debug)]
enum Version {
    /// Version 1. The open `tasks` files are for the child: if it writes `0` into them itself, it joins without waiting
    /// for RCU, as its parent would have to. Every hierarchy costs, so two of them are used only when needed: the freezer
    /// at the first pause, the processor's when there are more processors than the sandbox may use.
    One { tasks: Vec<File>, freezer: Option<PathBuf>, cpu: Option<PathBuf> },
    /// Version 2. The open folder, for `CLONE_INTO_CGROUP`.
    Two(Option<File>),
    /// No cgroups here.
    Absent,
}

impl Group {
    /// Makes a group, without limits yet. Controllers that this host lacks are skipped: whether that is acceptable was
    /// decided before (see `best_effort`).
    pub fn make(cgroups: &Cgroups, name: &str) -> Result<Self, Problem> {
        let mut group = Self { dirs: Vec::new(), version: Version::Absent };
        group.fill(cgroups, name)?;
        Ok(group)
    }

    fn fill(&mut self, cgroups: &Cgroups, name: &str) -> Result<(), Problem> {
        match cgroups {
            Cgroups::None(_) => {}
            Cgroups::V1 { bases, .. } => {
                let mut tasks = Vec::new();
                let place = |controller| bases.get(&controller).map(|base| base.join(name));
                for controller in [Controller::Memory, Controller::Pids] {
                    if let Some(dir) = place(controller) {
                        fs::create_dir(&dir).during("make a cgroup")?;
                        self.dirs.push((controller, dir.clone()));
                        tasks.push(open_tasks(&dir)?);
                    }
                }
                let (freezer, cpu) = (place(Controller::Freezer), place(Controller::Cpu));
                self.version = Version::One { tasks, freezer, cpu };
            }
            Cgroups::V2 { base, controllers, .. } => {
                cgroups.prepare().during("enable cgroup controllers")?;
                let dir = base.join(name);
                fs::create_dir(&dir).during("make a cgroup")?;
                self.dirs.extend(controllers.iter().map(|controller| (*controller, dir.clone())));
                self.version = Version::Two(Some(File::open(&dir).during("open the cgroup")?));
            }
        }
        Ok(())
    }

    /// Sets the limits.
    pub fn limit(&mut self, limits: Limits) -> Result<(), Problem> {
        if let Version::One { tasks, cpu: Some(dir), .. } = &mut self.version
            && u64::from(limits.cpu_millis) < processors() * 1000
        {
            fs::create_dir(&*dir).during("make a cgroup")?;
            self.dirs.push((Controller::Cpu, dir.clone()));
            // Last: in a new processor group, a process gets its first turn only after everybody else has had one.
            tasks.push(open_tasks(dir)?);
        }
        let set = if matches!(self.version, Version::Two(_)) { limit_v2 } else { limit_v1 };
        for (controller, dir) in &self.dirs {
            set(*controller, dir, limits).during(&format!("set the {} limit", controller.name()))?;
        }
        Ok(())
    }

    /// Replaces the bounds of a group that has processes.
    pub fn change(&self, limits: Limits) -> Result<(), Problem> {
        for (controller, dir) in &self.dirs {
            let set = || match self.version {
                Version::Two(_) => limit_v2(*controller, dir, limits),
                _ => limit_v1(*controller, dir, limits),
            };
            let done = match (set(), controller) {
                // Memory alone may not have more than memory and swap together: then that comes first.
                (Err(_), Controller::Memory) => {
                    let _ = fs::write(dir.join("memory.memsw.limit_in_bytes"), limits.memory.to_string());
                    set()
                }
                (done, _) => done,
            };
            done.during(&format!("change the {} limit", controller.name()))?;
        }
        Ok(())
    }

    /// Version 1: has the child join the freezer by itself, too. For a spawner whose sandboxes have other user ids than it has,
    /// without being root: it may not move their processes later.
    pub fn join_freezer_early(&mut self) -> Result<(), Problem> {
        if let Version::One { tasks, freezer: Some(dir), .. } = &mut self.version {
            fs::create_dir(&*dir).during("make a cgroup")?;
            self.dirs.push((Controller::Freezer, dir.clone()));
            tasks.push(open_tasks(dir)?);
        }
        Ok(())
    }

    /// Version 2: where to fork the child into.
    pub fn fork_into(&self) -> Option<BorrowedFd<'_>> {
        match &self.version {
            Version::Two(Some(dir)) => Some(dir.as_fd()),
            _ => None,
        }
    }

    /// Version 1: called by the child, joins.
    pub fn join(&self) -> io::Result<()> {
        match &self.version {
            Version::One { tasks, .. } => tasks.iter().try_for_each(|mut file| file.write_all(b"0")),
            _ => Ok(()),
        }
    }

    /// The child has been started: lets go of the descriptors it needed. Thousands of them would slow every later fork.
    pub fn started(&mut self) {
        match &mut self.version {
            Version::One { tasks, .. } => tasks.clear(),
            Version::Two(dir) => *dir = None,
            Version::Absent => {}
        }
    }

    /// The folder that has a controller's files.
    fn dir(&self, controller: Controller) -> Option<&Path> {
        self.dirs.iter().find(|(c, _)| *c == controller).map(|(_, dir)| dir.as_path())
    }

    /// Freezes or thaws every process and waits until it holds. What cannot be frozen is thawed again.
    pub fn freeze(&mut self, frozen: bool) -> Result<(), Problem> {
        let done = self.order_freeze(frozen);
        if frozen && done.is_err() {
            // Half frozen, it could not even be killed.
            let _ = self.order_freeze(false);
        }
        done
    }

    fn order_freeze(&mut self, frozen: bool) -> Result<(), Problem> {
        let step = if frozen { "freeze the sandbox" } else { "thaw the sandbox" };
        self.gather_in_freezer().during(step)?;
        let missing = || io::Error::new(io::ErrorKind::Unsupported, "no freezer cgroup on this host");
        let dir = self.dir(Controller::Freezer).ok_or_else(missing).during(step)?;
        let (file, order, state, reached) = match (&self.version, frozen) {
            (Version::Two(_), true) => ("cgroup.freeze", "1", "cgroup.events", "frozen 1"),
            (Version::Two(_), false) => ("cgroup.freeze", "0", "cgroup.events", "frozen 0"),
            (_, true) => ("freezer.state", "FROZEN", "freezer.state", "FROZEN"),
            (_, false) => ("freezer.state", "THAWED", "freezer.state", "THAWED"),
        };
        for _ in 0..3000 {
            // Again and again: version 1 overlooks who went to wait for a vforked child just when it looked.
            fs::write(dir.join(file), order).during(step)?;
            if fs::read_to_string(dir.join(state)).during(step)?.contains(reached) {
                // Whoever was forked while the others were gathered is frozen as it comes in.
                return self.gather_in_freezer().during(step);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let late = "some process did not stop within seconds";
        Err(io::Error::new(io::ErrorKind::TimedOut, late)).during(step)
    }

    /// Version 1: makes the freezer's group, at the first use, and moves every process there that is not in it yet.
    fn gather_in_freezer(&mut self) -> io::Result<()> {
        let Version::One { freezer: Some(freezer), .. } = &self.version else { return Ok(()) };
        let freezer = freezer.clone();
        if self.dir(Controller::Freezer).is_none() {
            fs::create_dir(&freezer)?;
            self.dirs.push((Controller::Freezer, freezer.clone()));
        }
        let Some((_, all)) = self.dirs.first() else { return Ok(()) };
        let procs = |dir: &Path| fs::read_to_string(dir.join("cgroup.procs"));
        // Each round moves all that are there; those forked meanwhile by moved ones are in the freezer already. When nobody
        // was left to be moved, nobody outside is left to fork, either.
        for _ in 0..100 {
            // In this order: who is forked in between is not taken for one outside.
            let everybody = procs(all)?;
            let inside = procs(&freezer)?;
            let inside: std::collections::HashSet<&str> = inside.lines().collect();
            let mut moved = false;
            for pid in everybody.lines().filter(|pid| !inside.contains(pid)) {
                match fs::write(freezer.join("cgroup.procs"), pid) {
                    // Gone in the meantime.
                    Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
                    result => {
                        result?;
                        moved = true;
                    }
                }
            }
            if !moved {
                return Ok(());
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "it forks faster than its processes can be gathered"))
    }

    /// Processes killed by the kernel for want of memory.
    pub fn oom_kills(&self) -> u64 {
        let Some(dir) = self.dir(Controller::Memory) else {
            return 0;
        };
        let file = if matches!(self.version, Version::Two(_)) { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
        field(&text, "oom_kill").unwrap_or(0)
    }

    /// What its processes use. What this host does not count is 0.
    pub fn usage(&self) -> Usage {
        let two = matches!(self.version, Version::Two(_));
        let read = |controller, two_name: &str, one_name: &str| {
            let file = self.dir(controller)?.join(if two { two_name } else { one_name });
            fs::read_to_string(file).ok()
        };
        let number = |text: Option<String>| text.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
        // Version 1 counts the buffers of TCP connections apart; version 2 has them in the one figure.
        let buffers = if two { None } else { read(Controller::Memory, "", "memory.kmem.tcp.usage_in_bytes") };
        let memory = number(read(Controller::Memory, "memory.current", "memory.usage_in_bytes")) + number(buffers);
        let stat = read(Controller::Memory, "memory.stat", "memory.stat");
        let part = |two_name, one_name| field(stat.as_ref()?, if two { two_name } else { one_name });
        let droppable = part("inactive_file", "total_inactive_file");
        // Files in memory only (tmpfs) are counted as files, too.
        let cache =
            part("file", "total_cache").map(|files| files.saturating_sub(part("shmem", "total_shmem").unwrap_or(0)));
        let cpu = match two {
            true => read(Controller::Cpu, "cpu.stat", "").and_then(|text| field(&text, "usage_usec")),
            false => self.dirs.first().map(|(_, dir)| processor_time_of_all_in(dir)),
        };
        Usage {
            cpu_us: cpu.unwrap_or(0),
            memory: memory.saturating_sub(droppable.unwrap_or(0)),
            memory_peak: number(read(Controller::Memory, "memory.peak", "memory.max_usage_in_bytes")),
            pids: number(read(Controller::Pids, "pids.current", "pids.current")),
            cache,
            ..Usage::default()
        }
    }

    /// Removes the group once its processes are dead.
    pub fn remove(&mut self) {
        let mut dirs: Vec<PathBuf> = std::mem::take(&mut self.dirs).into_iter().map(|(_, dir)| dir).collect();
        dirs.dedup(); // on version 2 they are all the same
        for dir in dirs {
            remove_tree(&dir);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A line `name number` of a cgroup file.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Version 1 counts processor time in a hierarchy of its own, which would cost every start. The living processes know
/// their own time and that of the dead children they have waited for; their first process waits for all orphans.
fn processor_time_of_all_in(dir: &Path) -> u64 {
    let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    let ticks = procs.lines().filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name, which may hold anything: state is field 3, times of its own and of its children are 14 to 17.
        let fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        Some(fields.skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>())
    });
    ticks.sum::<u64>().saturating_mul(1_000_000 / rustix::param::clock_ticks_per_second().max(1))
}

fn open_tasks(dir: &Path) -> Result<File, Problem> {
    File::options().write(true).open(dir.join("tasks")).during("open cgroup tasks")
}

/// Processors that this process, and so its children, may run on. More cannot be used, whatever the limit.
fn processors() -> u64 {
    rustix::thread::sched_getaffinity(None).map_or(u64::MAX / 1000, |set| u64::from(set.count()))
}

fn limit_v1(controller: Controller, dir: &Path, limits: Limits) -> io::Result<()> {
    match controller {
        Controller::Memory => {
            fs::write(dir.join("memory.limit_in_bytes"), limits.memory.to_string())?;
            // Memory plus swap: the same number means no swap. Kernels without swap accounting lack the file.
            write_if_there(&dir.join("memory.memsw.limit_in_bytes"), limits.memory)?;
            // Version 1 counts the buffers of TCP connections apart from all other memory.
            write_if_there(&dir.join("memory.kmem.tcp.limit_in_bytes"), tcp_share(limits.memory))
        }
        Controller::Cpu => {
            // The period is the kernel's default in a new group.
            fs::write(dir.join("cpu.cfs_quota_us"), quota_us(limits).to_string())
        }
        Controller::Pids => fs::write(dir.join("pids.max"), limits.pids.to_string()),
        Controller::Freezer => Ok(()),
    }
}

fn limit_v2(controller: Controller, dir: &Path, limits: Limits) -> io::Result<()> {
    match controller {
        Controller::Memory => {
            fs::write(dir.join("memory.max"), limits.memory.to_string())?;
            // `memory.max` bounds the buffers of sockets, too.
            write_if_there(&dir.join("memory.swap.max"), 0)
        }
        Controller::Cpu => fs::write(dir.join("cpu.max"), format!("{} {CPU_PERIOD_US}", quota_us(limits))),
        Controller::Pids => fs::write(dir.join("pids.max"), limits.pids.to_string()),
        Controller::Freezer => Ok(()),
    }
}

/// What the buffers of TCP connections may take besides `memory`, where the kernel counts them apart.
fn tcp_share(memory: u64) -> u64 {
    (memory / 8).max(4 << 20)
}

/// Writes a limit; a kernel that was built without it lacks the file.
fn write_if_there(file: &Path, limit: u64) -> io::Result<()> {
    match fs::write(file, limit.to_string()) {
        Err(error) if !absent(&error) => Err(error),
        _ => Ok(()),
    }
}

fn quota_us(limits: Limits) -> u64 {
    // The kernel refuses quotas below 1 ms.
    (u64::from(limits.cpu_millis) * CPU_PERIOD_US / 1000).max(1000)
}

/// Creating a file in cgroupfs is refused with either of these when the kernel does not offer it.
fn absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
}

/// Kills what is left in a group and removes it; used on one's own group and, after a crash, on an orphaned one.
pub fn remove_tree(dir: &Path) {
    // Whoever has much memory takes a while to die where the host is busy: ten seconds at most.
    for attempt in 0..600 {
        match fs::remove_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {}
            _ => return,
        }
        if attempt == 0 {
            // A frozen process would not die.
            let _ = fs::write(dir.join("cgroup.freeze"), "0");
            let _ = fs::write(dir.join("freezer.state"), "THAWED");
            for child in fs::read_dir(dir).into_iter().flatten().flatten() {
                if child.file_type().is_ok_and(|kind| kind.is_dir()) {
                    remove_tree(&child.path());
                }
            }
        }
        if fs::write(dir.join("cgroup.kill"), "1").is_err() {
            for pid in fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines() {
                if let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
        }
        std::thread::sleep(Duration::from_millis((1 + attempt / 10).min(20)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { memory: 1 << 30, cpu_millis: 1500, pids: 64 };

    #[test]
    fn version_2_writes_every_limit() {
        let dir = tempfile::tempdir().unwrap();
        let parent = dir.path().to_owned();
        let base = parent.join("sloplet");
        let controllers = Controller::ALL.to_vec();
        let cgroups = Cgroups::V2 { base: base.clone(), parent, controllers };
        let mut group = Group::make(&cgroups, "box").unwrap();
        group.limit(LIMITS).unwrap();
        let read = |file: &str| fs::read_to_string(base.join("box").join(file)).unwrap();
        assert_eq!(read("memory.max"), (1u64 << 30).to_string());
        assert_eq!(read("memory.swap.max"), "0");
        assert_eq!(read("cpu.max"), "150000 100000");
        assert_eq!(read("pids.max"), "64");
        assert!(group.fork_into().is_some());
        fs::write(base.join("box/memory.events"), "oom 3\noom_kill 2\n").unwrap();
        assert_eq!(group.oom_kills(), 2);
        fs::write(base.join("box/cgroup.events"), "populated 1\nfrozen 1\n").unwrap();
        group.freeze(true).unwrap();
        assert_eq!(read("cgroup.freeze"), "1");
        let figures = [
            ("memory.current", "5000\n"),
            ("memory.peak", "9000\n"),
            ("memory.stat", "anon 1\nfile 3000\nshmem 500\ninactive_file 1000\n"),
            ("cpu.stat", "usage_usec 77\nuser_usec 5\n"),
            ("pids.current", "3\n"),
        ];
        figures.iter().for_each(|(file, text)| fs::write(base.join("box").join(file), text).unwrap());
        let expected =
            Usage { cpu_us: 77, memory: 4000, memory_peak: 9000, pids: 3, cache: Some(2500), ..Usage::default() };
        assert_eq!(group.usage(), expected);
    }

    #[test]
    fn a_limit_that_cannot_be_written_is_an_error_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (bases, missing) = ([(Controller::Pids, dir.path().join("no/such"))].into(), Default::default());
        let error = Group::make(&Cgroups::V1 { bases, missing }, "box").unwrap_err();
        assert_eq!(error.step, "make a cgroup");
    }
}
