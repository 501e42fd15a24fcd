//! The driver.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use sloplet_engine::driver::Unsupported;
use sloplet_engine::{Adopted, Adoption, Driver, DriverError, Machine, Pending, Wanted};
use sloplet_policy::{Capability, DriverReport, Feature, Isolation, Limits, Spec};
use sloplet_spawner::cgroup::Tables;
use sloplet_spawner::handle::{Spawner, Survivor};
use sloplet_spawner::launcher::{Forked, Launcher};
use sloplet_spawner::owner;
use sloplet_spawner::plan::Runtime;
use sloplet_spawner::protocol::{Privilege, Problem, Setup, Standing, Walls};
use sloplet_spawner::remover;
use tokio::net::UnixStream;

use crate::machine::{self, Namespaced};
use crate::{disk, egress, planning, report, subids};

/// What runs inside the walls, and has the agent behind it.
#[derive(Debug, Clone)]
pub struct Inside {
    /// The runtime.
    pub runtime: Runtime,
    /// Processes and threads of the host that all of it may have.
    pub pids: u32,
}

/// Living sandboxes of a spawner beyond which others are asked first: what it holds for each makes its forks slower.
const CROWD: usize = 128;

/// Spawners that there are at most.
const MOST: usize = 64;

/// Makes sandboxes out of Linux namespaces.
pub struct Namespaces {
    launcher: Launcher,
    run_dir: PathBuf,
    data_dir: PathBuf,
    spawners_wanted: usize,
    lasting: bool,
    device: Option<PathBuf>,
    spawners: Mutex<HashMap<&'static str, Vec<Spawner>>>,
    turn: AtomicUsize,
    tables: OnceLock<Tables>,
    report: OnceLock<DriverReport>,
    egress: OnceLock<Capability>,
}

impl Namespaces {
    /// A driver that starts `program` (a binary with the spawner's subcommand) as up to `spawners` spawners: one is
    /// enough for one sandbox, one for each processor makes the most of a busy host. More are started where they have many
    /// sandboxes each.
    pub fn new(program: &Path, run_dir: &Path, data_dir: &Path, spawners: usize) -> Self {
        Self {
            launcher: Launcher::new(program),
            run_dir: run_dir.to_owned(),
            data_dir: data_dir.to_owned(),
            spawners_wanted: spawners.max(1),
            lasting: false,
            device: None,
            spawners: Mutex::default(),
            turn: AtomicUsize::new(0),
            tables: OnceLock::new(),
            report: OnceLock::new(),
            egress: OnceLock::new(),
        }
    }

    /// The same driver, with spawners that outlive the engine: it can make lasting sandboxes and adopt those of an earlier
    /// engine. Only one engine at a time can have the lasting spawners of a run folder.
    pub fn lasting(self) -> Self {
        Self { lasting: true, ..self }
    }

    /// The same driver, where there is a whole disk, with an empty ext4 on it, for what its one sandbox writes.
    pub fn on_device(self, device: &Path) -> Self {
        Self { device: Some(device.to_owned()), ..self }
    }

    fn tables(&self) -> &Tables {
        self.tables.get_or_init(Tables::read)
    }

    /// Uses a forked spawner before any other.
    pub fn with_forked(self, forked: Forked) -> Self {
        self.launcher.first(forked);
        self
    }

    /// The spawner whose turn it is; started if need be.
    fn spawner(&self, privilege: Privilege) -> Result<Spawner, Problem> {
        let kind = kind_of(&privilege);
        let mut all = self.spawners.lock().unwrap_or_else(PoisonError::into_inner);
        let spawners = all.entry(kind).or_default();
        spawners.retain(|spawner| !spawner.has_ended());
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.spawners_wanted;
        let has_room = |spawner: &&Spawner| spawner.crowd() < CROWD;
        let chosen = match spawners.get(turn) {
            Some(whose_turn) if has_room(&whose_turn) => Some(whose_turn),
            Some(crowded) => spawners.iter().find(has_room).or((spawners.len() >= MOST).then_some(crowded)),
            None => None,
        };
        if let Some(spawner) = chosen {
            return Ok(spawner.clone());
        }
        let (run_dir, lasting) = (self.run_dir.display().to_string(), self.lasting);
        let setup = Setup { run_dir, privilege, walls: Walls::Container, lasting, tables: self.tables().clone() };
        let spawner = Spawner::start(&self.launcher, &setup)?;
        spawners.push(spawner.clone());
        Ok(spawner)
    }

    /// Brings up a machine; with a runtime inside its walls, the agent is behind that one. `pids` bounds the host's
    /// processes, where they are others than those inside.
    pub async fn bring_up(
        &self,
        wanted: Wanted<'_>,
        lasting: bool,
        inside: Option<Inside>,
    ) -> Result<Box<dyn Machine>, DriverError> {
        let Wanted { id, spec, image, .. } = wanted;
        // What is made of the host has the host's binds, also when something was saved on top of it. A runtime needs
        // somebody to be root.
        let privilege = privilege_for(!image.binds.is_empty() && inside.is_none());
        let disk = match &self.device {
            Some(device) => Some(disk::open_device(device)?),
            None if planning::disk_on_file(spec, &privilege) => Some(disk::provide(&self.data_dir, &spec.limits)?),
            None => None,
        };
        let (runtime, pids) = inside.map(|inside| (inside.runtime, inside.pids)).unzip();
        let has_runtime = runtime.is_some();
        let memory = match (&runtime, wanted.memory) {
            (Some(_), Some(folder)) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let opened = rustix::fs::open(folder, flags, Mode::empty());
                Some(opened.map_err(|error| failed("open a saved memory", error))?)
            }
            (None, Some(_)) => return Err(DriverError::Unsupported(Unsupported("go on from a saved memory"))),
            (_, None) => None,
        };
        let mut plan = planning::plan(wanted, disk.is_some(), lasting, runtime)?;
        plan.bounds.pids = pids.unwrap_or(plan.bounds.pids);
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(|error| failed("make a stream", error))?;
        leave_some(&ours)?;
        ours.set_nonblocking(true).map_err(|error| failed("make a stream", error))?;
        let stream = UnixStream::from_std(ours).map_err(|error| failed("make a stream", error))?;
        let fds: Vec<OwnedFd> = std::iter::once(theirs.into()).chain(disk).chain(memory).collect();
        let spawner = self.spawner(privilege).map_err(problem)?;
        let created = spawner.create(id, plan, &fds).await.map_err(problem)?;
        drop(fds);
        Ok(Box::new(Namespaced::new(id, spawner, created, stream, lasting, has_runtime)))
    }

    /// Starts a spawner, if need be, for an image that is the host's or another. Whatever goes wrong will be told by
    /// `create`, which tries again.
    pub fn prepare_spawner(&self, host_image: bool) {
        let _ = self.spawner(privilege_for(host_image));
        self.turn.fetch_sub(1, Ordering::Relaxed);
    }

    async fn take_over(&self) -> Result<Adoption, DriverError> {
        let mut adoption = Adoption::default();
        let owners = owner::lasting(&self.run_dir).map_err(|error| failed("look for lasting spawners", error))?;
        // All at once: one that hangs is waited for, and the others should not have to wait as well.
        let asked = owners.iter().map(|owner| Spawner::find(&self.run_dir, owner));
        for told in futures_util::future::join_all(asked).await {
            let Some(found) = told.map_err(problem)? else { continue };
            if !self.employ(&found.spawner, &found.standing) {
                // Where that fails it is about to end, and its sandboxes tell so.
                let _ = found.spawner.retire().await;
            }
            for Survivor { living, fate, outlet } in found.living {
                let machine = Namespaced::adopted(&living, found.spawner.clone(), fate, outlet);
                let age = Duration::from_millis(living.age_ms);
                let (id, frozen, same_build) =
                    (living.id, living.frozen, found.standing.build == self.launcher.build());
                adoption.living.push(Adopted { id, machine: Box::new(machine), frozen, age, same_build });
            }
            adoption.ended.extend(found.gone.into_iter().map(|(id, gone)| (id, machine::end(gone))));
        }
        Ok(adoption)
    }

    /// Lets a spawner that was found make new sandboxes, too, if it is like those that would be started and one is
    /// wanted.
    fn employ(&self, spawner: &Spawner, standing: &Standing) -> bool {
        let alike = standing.build == self.launcher.build()
            && standing.walls == Walls::Container
            && [true, false].iter().any(|host| privilege_for(*host) == standing.privilege);
        let mut all = self.spawners.lock().unwrap_or_else(PoisonError::into_inner);
        let spawners = all.entry(kind_of(&standing.privilege)).or_default();
        spawners.retain(|spawner| !spawner.has_ended());
        let wanted = alike && spawners.len() < self.spawners_wanted;
        if wanted {
            spawners.push(spawner.clone());
        }
        wanted
    }
}

impl Driver for Namespaces {
    fn name(&self) -> &'static str {
        "namespaces"
    }

    fn isolation(&self) -> Isolation {
        Isolation::Container
    }

    fn report(&self) -> DriverReport {
        self.report.get_or_init(|| report::probe(self.tables())).clone()
    }

    fn egress(&self) -> Capability {
        self.egress.get_or_init(egress::probe).clone()
    }

    fn shows_devices(&self) -> Result<(), &'static str> {
        Ok(())
    }

    /// What a control group bounds can change; the size of what it writes to was said when that was made.
    fn can_change_limits(&self, from: &Limits, to: &Limits) -> bool {
        (from.disk, from.inodes()) == (to.disk, to.inodes()) && from.disk_outgrows_memory() == to.disk_outgrows_memory()
    }

    fn can_attach(&self) -> bool {
        true
    }

    fn required(&self) -> Vec<Feature> {
        let mut required: Vec<Feature> = Limits::features().to_vec();
        required.extend([Feature::NoNetwork, Feature::SyscallFilter]);
        if !rustix::process::geteuid().is_root() {
            // The agent's program belongs to the user that commands inside are, too. What keeps them from executing, and
            // then changing, it (a script with the interpreter /proc/self/exe, CVE-2019-5736) is Landlock; root's
            // sandboxes have other ids.
            required.push(Feature::SecondWall);
        }
        required
    }

    fn prepare(&self, spec: &Spec) {
        self.prepare_spawner(spec.image == "host");
    }

    fn create<'a>(&'a self, wanted: Wanted<'a>) -> Pending<'a, Result<Box<dyn Machine>, DriverError>> {
        Box::pin(self.bring_up(wanted, false, None))
    }

    fn create_lasting<'a>(&'a self, wanted: Wanted<'a>) -> Pending<'a, Result<Box<dyn Machine>, DriverError>> {
        Box::pin(self.bring_up(wanted, true, None))
    }

    fn adopt(&self) -> Pending<'_, Result<Adoption, DriverError>> {
        Box::pin(async move { if self.lasting { self.take_over().await } else { Ok(Adoption::default()) } })
    }

    fn make_disk(&self, file: &Path, bytes: u64) -> Result<(), DriverError> {
        if !rustix::process::geteuid().is_root() {
            let why = "bound the size of a volume: only root can mount a disk of its own for it";
            return Err(DriverError::Unsupported(Unsupported(why)));
        }
        disk::make_volume(file, bytes)
    }

    fn remove_folder(&self, folder: &Path) -> Result<(), DriverError> {
        let error = match std::fs::remove_dir_all(folder) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => error,
        };
        match privilege_for(false) {
            Privilege::SubordinateIds { first_uid, first_gid } => {
                remover::remove_with(self.launcher.program(), first_uid, first_gid, folder).map_err(problem)
            }
            _ => Err(failed(&format!("remove {}", folder.display()), error)),
        }
    }

    fn collect(&self) -> Result<usize, DriverError> {
        let collected = owner::collect(&self.run_dir).map_err(|error| failed("clean up after dead spawners", error))?;
        Ok(collected.owners + collected.groups + collected.leases)
    }

    fn shut_down(&self) {
        let all = std::mem::take(&mut *self.spawners.lock().unwrap_or_else(PoisonError::into_inner));
        all.into_values().flatten().for_each(Spawner::shut_down);
    }
}

fn kind_of(privilege: &Privilege) -> &'static str {
    match privilege {
        Privilege::Root => "root",
        Privilege::SingleUser => "single",
        Privilege::SubordinateIds { .. } => "subordinate",
    }
}

/// Root gives every sandbox ids of its own. For an ordinary user the cheap mapping of one id serves the `host` image,
/// which has nobody else in it; others expect root and friends to exist.
fn privilege_for(host_image: bool) -> Privilege {
    if rustix::process::geteuid().is_root() {
        return Privilege::Root;
    }
    match (host_image, subids::of_this_user()) {
        (true, _) | (_, None) => Privilege::SingleUser,
        (false, Some((first_uid, first_gid))) => Privilege::SubordinateIds { first_uid, first_gid },
    }
}

/// Descriptors that no sandbox takes: those who remove some must still be able to connect.
const RESERVED: u64 = 64;

/// Refuses when a descriptor that was just made shows that nearly all are in use: the lowest free number is always taken.
fn leave_some(newest: &impl AsRawFd) -> Result<(), DriverError> {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let left = most.saturating_sub(newest.as_raw_fd().unsigned_abs().into());
    if left < RESERVED.min(most / 4) { Err(problem(Problem::no_descriptors("make a sandbox"))) } else { Ok(()) }
}

pub(crate) fn problem(problem: Problem) -> DriverError {
    if problem.errno == rustix::io::Errno::MFILE.raw_os_error() {
        return DriverError::Exhausted { step: problem.step, detail: problem.detail };
    }
    DriverError::Failed { step: problem.step, detail: problem.detail }
}

pub(crate) fn failed(step: &str, error: impl std::fmt::Display) -> DriverError {
    DriverError::Failed { step: step.to_owned(), detail: error.to_string() }
}
