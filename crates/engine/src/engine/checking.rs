//! Whether a sandbox may and can be what it is asked to be.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use sloplet_image::Image;
use sloplet_policy::guarded::guards;
use sloplet_policy::protect::{ProtectError, Protected};
use sloplet_policy::source::{self, Identity};
use sloplet_policy::{Bind, Capability, DriverReport, Enforcement, Feature, Limits, Spec};

use super::{Engine, EngineError};
use crate::cdi::Cdi;
use crate::channels;
use crate::driver::{Driver, DriverError, Extras, Unsupported};
use crate::trust::Trust;

impl Engine {
    /// Whether a sandbox like this may and can be; returns what of it would not hold. Mounts become real paths.
    pub(super) fn check(
        &self,
        spec: &mut Spec,
        extras: &mut Extras,
    ) -> Result<(&dyn Driver, Vec<Capability>), EngineError> {
        spec.check()?;
        check_memory(spec)?;
        let driver = self.driver(spec)?;
        spec.isolation = driver.isolation();
        extras.egress &= driver.spares_outlets() || spec.reaches_out();
        driver.prepare(spec);
        if !spec.lacks("protected-env") {
            self.radius.check_env(&spec.env)?;
        }
        self.radius.check_spec(spec)?;
        self.check_mounts(spec)?;
        if spec.image.contains('/') {
            self.check_source(Path::new(&spec.image))?;
        }
        let (mut report, mut required) = (driver.report(), driver.required());
        if extras.egress {
            report.capabilities.push(driver.egress());
            required.push(Feature::Egress);
        }
        let unenforced = check_features(spec, &report, &required)?;
        self.find_devices(spec, driver)?;
        Ok((driver, unenforced))
    }

    /// Finds the devices that a description names, and gives their variables to its commands.
    pub(super) fn find_devices(&self, spec: &mut Spec, driver: &dyn Driver) -> Result<(), EngineError> {
        if spec.gpu.is_empty() {
            return Ok(());
        }
        driver.shows_devices().map_err(|reason| EngineError::NoDevices { driver: driver.name(), reason })?;
        spec.devices = Cdi::of_host()?.resolve(&spec.gpu)?;
        // Before the user's own, which count.
        spec.env.splice(0..0, spec.devices.env.clone());
        Ok(())
    }

    /// Replaces what is to be mounted by its real path, and settles what is there, refusing protected places.
    pub(crate) fn check_mounts(&self, spec: &mut Spec) -> Result<(), EngineError> {
        if spec.mounts.is_empty() {
            return Ok(());
        }
        let protected = self.protected();
        let unprotected = spec.lacks("protected-paths");
        for mount in &mut spec.mounts {
            if unprotected {
                continue;
            }
            let (found, real) = protected.open(&mount.from)?;
            let unreadable = |error| EngineError::Unreadable(real.clone(), error);
            mount.identity = Some(Identity::of(&found).map_err(unreadable)?);
            // It would be empty inside, without a word why.
            let through = source::through(&found);
            let wanted = if through.is_dir() { Access::READ_OK | Access::EXEC_OK } else { Access::READ_OK };
            access(&through, wanted).map_err(|error| unreadable(error.into()))?;
            mount.from = real;
            if !mount.writable && !mount.sockets {
                channels::refuse(&found, mount)?;
            }
        }
        let guards = spec.mounts.iter().map(guards).collect::<Result<Vec<_>, _>>()?;
        // What is mounted there by name was asked for.
        let asked = |guard: &Bind| spec.mounts.iter().any(|mount| mount.to.starts_with(&guard.to));
        spec.guards = guards.into_iter().flatten().filter(|guard| !asked(guard)).collect();
        Trust::of(&self.places.data).expose(&spec.mounts).map_err(EngineError::Exposed)
    }

    /// Refuses to make an image of a folder that may not be shown inside: that would be showing it. Returns its real path, which
    /// is to be used from then on.
    pub fn check_source(&self, source: &Path) -> Result<PathBuf, ProtectError> {
        match source.is_dir() {
            true => self.protected().open(source).map(|(_, real)| real),
            false => Ok(source.to_owned()),
        }
    }

    /// The same for an image that was made of a folder, by its real path: what the path led to may have changed meanwhile.
    pub(super) fn check_image(&self, image: &Image) -> Result<(), ProtectError> {
        let path = Path::new(&image.name);
        match path.is_absolute() && path.is_dir() {
            true => self.protected().judge(path, path),
            false => Ok(()),
        }
    }

    pub(super) fn protected(&self) -> Protected {
        let home = std::env::home_dir();
        let own = [self.places.data.clone(), self.places.run.clone()];
        Protected::for_host(home.as_deref(), &own).with(&self.radius.paths)
    }
}

/// Refuses a bound on memory that is above all that the machine has. The usual one is taken anywhere.
fn check_memory(spec: &Spec) -> Result<(), EngineError> {
    let asked = spec.limits.memory;
    if asked <= Limits::default().memory || spec.best_effort {
        return Ok(());
    }
    let system = rustix::system::sysinfo();
    let has = (system.totalram as u64).saturating_mul(system.mem_unit.into());
    match has > 0 && asked.0 > has {
        true => Err(EngineError::MoreThanThereIs { asked, has: has as f64 / (1u64 << 30) as f64 }),
        false => Ok(()),
    }
}

/// The driver that can allow asynchronous I/O of the old kind.
const AIO_DRIVER: &str = "namespaces";

/// Asynchronous I/O of one sandbox has no bound, whatever the host.
fn unbounded_aio() -> Capability {
    Capability {
        feature: Feature::AsyncIo,
        enforcement: Enforcement::Missing,
        detail: "one sandbox can use up fs.aio-max-nr, which is one number for the whole host".into(),
        remedy: Some("leave aio out: databases fall back to threads".into()),
    }
}

/// Refuses a sandbox whose limits would not hold here; with `best_effort`, returns what does not.
fn check_features(spec: &Spec, report: &DriverReport, required: &[Feature]) -> Result<Vec<Capability>, EngineError> {
    if let Some(reason) = &report.unavailable {
        let asked = match &spec.driver {
            Some(name) => format!("driver '{name}'"),
            None => format!("isolation '{}'", spec.isolation),
        };
        return Err(EngineError::Unavailable { asked, reason: reason.clone() });
    }
    let mut missing: Vec<Capability> = report.lacking(required).into_iter().cloned().collect();
    if spec.aio {
        if report.driver != AIO_DRIVER {
            return Err(DriverError::Unsupported(Unsupported("allow asynchronous I/O (aio)")).into());
        }
        missing.push(unbounded_aio());
    }
    if missing.is_empty() || spec.best_effort {
        return Ok(missing);
    }
    Err(EngineError::Unenforceable(missing))
}
