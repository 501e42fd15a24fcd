//! The driver.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use sloplet_driver_namespaces::Namespaces;
use sloplet_driver_namespaces::driver::Inside;
use sloplet_engine::{Adoption, Driver, DriverError, Machine, Pending, Wanted};
use sloplet_policy::{Capability, DriverReport, Feature, Isolation, Limits, Spec};
use sloplet_spawner::plan::Runtime;

use crate::flavour::Flavour;
use crate::probe::{self, Found};
use crate::{bundle, closed, report};

/// Makes sandboxes with a runtime inside.
pub struct Oci {
    flavour: Flavour,
    walls: Arc<Namespaces>,
    agent: PathBuf,
    data_dir: PathBuf,
    found: OnceLock<Result<Found, String>>,
    report: OnceLock<DriverReport>,
}

impl Oci {
    /// A driver for a runtime inside the walls of another driver, with `agent` (a static binary with the agent's subcommand)
    /// behind it.
    pub fn new(flavour: Flavour, walls: Arc<Namespaces>, agent: &Path, data_dir: &Path) -> Self {
        let (agent, data_dir) = (agent.to_owned(), data_dir.to_owned());
        Self { flavour, walls, agent, data_dir, found: OnceLock::new(), report: OnceLock::new() }
    }

    fn found(&self) -> Result<&Found, &String> {
        self.found.get_or_init(|| probe::found(self.flavour, &self.data_dir)).as_ref()
    }

    /// The agent's program by its name: what a link in `/proc` leads to is on a mount of this process only. One that was
    /// replaced has an heir of the same name.
    fn agent(&self) -> PathBuf {
        let path = std::fs::read_link(&self.agent).unwrap_or_else(|_| self.agent.clone());
        let path = path.as_os_str().as_bytes();
        PathBuf::from(OsStr::from_bytes(path.strip_suffix(b" (deleted)").unwrap_or(path)))
    }

    /// Where the kernel is the host's, a copy that nobody inside can read.
    fn closed(&self, agent: &Path) -> Result<Option<PathBuf>, DriverError> {
        let failed = |error: std::io::Error| DriverError::Failed {
            step: format!("keep a copy of {} that sandboxes cannot read", agent.display()),
            detail: error.to_string(),
        };
        let wanted = !self.flavour.has_kernel();
        wanted.then(|| closed::copy(agent, &self.data_dir)).transpose().map_err(failed)
    }

    async fn bring_up(&self, wanted: Wanted<'_>, lasting: bool) -> Result<Box<dyn Machine>, DriverError> {
        let found = self.found().map_err(|reason| DriverError::Failed {
            step: format!("use {}", self.flavour.program()),
            detail: reason.clone(),
        })?;
        let config = bundle::config(self.flavour, &wanted, lasting).to_string();
        let agent = self.agent();
        let runtime = Runtime {
            program: found.program.as_os_str().as_bytes().to_vec().into(),
            closed: self.closed(&agent)?.map(|path| path.into_os_string().into_vec().into()),
            agent: agent.into_os_string().into_vec().into(),
            flags: self.flavour.flags(&found.platform, wanted.egress),
            config: config.into_bytes().into(),
            restore: wanted.memory.is_some(),
            shares_kernel: !self.flavour.has_kernel(),
            libraries: found.libraries.iter().map(|path| path.as_os_str().as_bytes().to_vec().into()).collect(),
        };
        let pids = self.flavour.pids(bundle::pids(wanted.spec));
        self.walls.bring_up(wanted, lasting, Some(Inside { runtime, pids })).await
    }
}

impl Driver for Oci {
    fn name(&self) -> &'static str {
        self.flavour.name()
    }

    fn isolation(&self) -> Isolation {
        self.flavour.isolation()
    }

    fn only_by_name(&self) -> bool {
        self.flavour != Flavour::Runsc
    }

    fn report(&self) -> DriverReport {
        self.report.get_or_init(|| report::report(self.flavour, self.walls.report(), self.found())).clone()
    }

    fn egress(&self) -> Capability {
        let way = self.walls.egress();
        match self.flavour.has_kernel() && way.enforcement == sloplet_policy::Enforcement::Enforced {
            true => Capability::enforced(
                Feature::Egress,
                "sockets of the host's kernel in a network namespace without devices, on which the host decides",
            ),
            false => way,
        }
    }

    fn shows_devices(&self) -> Result<(), &'static str> {
        Err(match self.flavour.has_kernel() {
            true => "its kernel does not know the host's devices",
            false => {
                "its runtime is shown none of the host's devices; the driver 'namespaces' is as strong, and shows them"
            }
        })
    }

    /// With a way out, gVisor uses the host's sockets, and cannot save its memory.
    fn spares_outlets(&self) -> bool {
        !self.flavour.has_kernel()
    }

    fn required(&self) -> Vec<Feature> {
        match self.flavour.has_kernel() {
            true => Limits::features().into_iter().chain([Feature::NoNetwork, Feature::SyscallFilter]).collect(),
            false => self.walls.required(),
        }
    }

    fn prepare(&self, _spec: &Spec) {
        self.walls.prepare_spawner(false);
    }

    fn create<'a>(&'a self, wanted: Wanted<'a>) -> Pending<'a, Result<Box<dyn Machine>, DriverError>> {
        Box::pin(self.bring_up(wanted, false))
    }

    fn create_lasting<'a>(&'a self, wanted: Wanted<'a>) -> Pending<'a, Result<Box<dyn Machine>, DriverError>> {
        Box::pin(self.bring_up(wanted, true))
    }

    /// They are found by the walls around them.
    fn adopt(&self) -> Pending<'_, Result<Adoption, DriverError>> {
        Box::pin(async { Ok(Adoption::default()) })
    }

    fn make_disk(&self, file: &Path, bytes: u64) -> Result<(), DriverError> {
        self.walls.make_disk(file, bytes)
    }

    fn remove_folder(&self, folder: &Path) -> Result<(), DriverError> {
        self.walls.remove_folder(folder)
    }
}
