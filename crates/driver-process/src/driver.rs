//! The driver.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use sloplet_engine::{Driver, DriverError, Machine, Pending, Unsupported, Wanted};
use sloplet_policy::{Capability, DriverReport, Feature, Isolation, Spec};
use sloplet_spawner::cgroup::Tables;
use sloplet_spawner::handle::Spawner;
use sloplet_spawner::launcher::{Forked, Launcher};
use sloplet_spawner::owner;
use sloplet_spawner::protocol::{Privilege, Problem, Setup, Walls};
use tokio::net::UnixStream;

use crate::machine::Confined;
use crate::usage::Allowance;
use crate::{planning, report};

/// Makes sandboxes out of confined process trees.
pub struct ProcessDriver {
    launcher: Launcher,
    run_dir: PathBuf,
    spawner: Mutex<Option<Spawner>>,
    tables: OnceLock<Tables>,
    report: OnceLock<DriverReport>,
}

impl ProcessDriver {
    /// A driver that starts `program` (a binary with the spawner's subcommand) as a spawner.
    pub fn new(program: &Path, run_dir: &Path) -> Self {
        Self {
            launcher: Launcher::new(program),
            run_dir: run_dir.to_owned(),
            spawner: Mutex::default(),
            tables: OnceLock::new(),
            report: OnceLock::new(),
        }
    }

    fn tables(&self) -> &Tables {
        self.tables.get_or_init(Tables::read)
    }

    /// Uses a forked spawner before any other.
    pub fn with_forked(self, forked: Forked) -> Self {
        self.launcher.first(forked);
        self
    }

    /// The spawner; started if need be.
    fn spawner(&self) -> Result<Spawner, Problem> {
        let mut place = self.spawner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(spawner) = place.as_ref().filter(|spawner| !spawner.has_ended()) {
            return Ok(spawner.clone());
        }
        let privilege = if rustix::process::geteuid().is_root() { Privilege::Root } else { Privilege::SingleUser };
        let (run_dir, walls) = (self.run_dir.display().to_string(), Walls::Process);
        let setup = Setup { run_dir, privilege, walls, lasting: false, tables: self.tables().clone() };
        let spawner = Spawner::start(&self.launcher, &setup)?;
        *place = Some(spawner.clone());
        Ok(spawner)
    }

    async fn bring_up(&self, id: &str, spec: &Spec) -> Result<Box<dyn Machine>, DriverError> {
        if !spec.best_effort && !report::landlock_suffices() {
            return Err(failed("raise the Landlock wall", report::NO_LANDLOCK));
        }
        let scratch = planning::scratch_path(id);
        let plan = planning::plan(spec, &scratch)?;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(|error| failed("make a stream", error))?;
        ours.set_nonblocking(true).map_err(|error| failed("make a stream", error))?;
        let stream = UnixStream::from_std(ours).map_err(|error| failed("make a stream", error))?;
        let fds: [OwnedFd; 1] = [theirs.into()];
        let spawner = self.spawner().map_err(problem)?;
        let created = spawner.create(id, plan, &fds).await.map_err(problem)?;
        drop(fds);
        let allowance = Allowance { bytes: spec.limits.disk.0, files: spec.limits.inodes() };
        Ok(Box::new(Confined::new(id, spawner, created, stream, scratch, allowance)))
    }
}

impl Driver for ProcessDriver {
    fn name(&self) -> &'static str {
        "process"
    }

    fn isolation(&self) -> Isolation {
        Isolation::Process
    }

    fn report(&self) -> DriverReport {
        self.report.get_or_init(|| report::probe(self.tables())).clone()
    }

    fn prepare(&self, _spec: &Spec) {
        // Whatever goes wrong will be told by `create`, which tries again.
        let _ = self.spawner();
    }

    fn egress(&self) -> Capability {
        let remedy = Some("use --isolation container");
        Capability::missing(Feature::Egress, "seccomp refuses every socket", remedy)
    }

    fn create<'a>(&'a self, wanted: Wanted<'a>) -> Pending<'a, Result<Box<dyn Machine>, DriverError>> {
        Box::pin(async move {
            if !wanted.files.is_empty() && !wanted.spec.best_effort {
                return Err(Unsupported("put files into a root that is the host's").into());
            }
            self.bring_up(wanted.id, wanted.spec).await
        })
    }

    fn collect(&self) -> Result<usize, DriverError> {
        let collected = owner::collect(&self.run_dir).map_err(|error| failed("clean up after dead spawners", error))?;
        Ok(collected.owners + collected.groups + collected.leases)
    }

    fn shut_down(&self) {
        if let Some(spawner) = self.spawner.lock().unwrap_or_else(PoisonError::into_inner).take() {
            spawner.shut_down();
        }
    }
}

pub(crate) fn problem(problem: Problem) -> DriverError {
    DriverError::Failed { step: problem.step, detail: problem.detail }
}

pub(crate) fn failed(step: &str, error: impl std::fmt::Display) -> DriverError {
    DriverError::Failed { step: step.to_owned(), detail: error.to_string() }
}
