//! Which wall a description asks for, and what the walls say of themselves.

use sloplet_policy::report::Summary;
use sloplet_policy::{Capability, DriverReport, Feature, Isolation, Spec};

use super::{Engine, EngineError};
use crate::cdi::Cdi;
use crate::driver::Driver;
impl Engine {
    /// The walls, by name and level.
    pub fn walls(&self) -> impl Iterator<Item = (&'static str, Isolation)> + '_ {
        self.drivers.iter().map(|driver| (driver.name(), driver.isolation()))
    }

    /// What each wall enforces on this host.
    pub fn reports(&self) -> Vec<DriverReport> {
        let reports = self.drivers.iter().map(|driver| {
            let mut report = driver.report();
            report.capabilities.extend([driver.egress(), devices_of(driver.as_ref())]);
            report
        });
        reports.collect()
    }

    /// The wall that a description asks for: by name, or the first of that strength.
    pub(super) fn driver(&self, spec: &Spec) -> Result<&dyn Driver, EngineError> {
        let found = match &spec.driver {
            Some(name) => self.drivers.iter().find(|driver| driver.name() == name),
            None => self.usual_drivers().find(|driver| driver.isolation() == spec.isolation),
        };
        found.map(AsRef::as_ref).ok_or_else(|| match &spec.driver {
            Some(name) => {
                let names: Vec<&str> = self.drivers.iter().map(|driver| driver.name()).collect();
                EngineError::UnknownDriver(name.escape_debug().take(100).collect(), names.join(" or "))
            }
            None => {
                let mut names: Vec<&str> = self.usual_drivers().map(|driver| driver.isolation().name()).collect();
                names.dedup();
                EngineError::NoDriver(spec.isolation, names.join(" or "))
            }
        })
    }

    /// The walls that a level alone can stand for.
    fn usual_drivers(&self) -> impl Iterator<Item = &Box<dyn Driver>> {
        self.drivers.iter().filter(|driver| !driver.only_by_name())
    }

    /// The wall that volumes are made for.
    pub(super) fn usual(&self) -> Result<&dyn Driver, EngineError> {
        self.driver(&Spec::default())
    }

    /// The name of the wall that a description asks for.
    pub fn driver_name(&self, spec: &Spec) -> Result<&'static str, EngineError> {
        Ok(self.driver(spec)?.name())
    }

    /// How strong the wall is that a description asks for.
    pub fn isolation_of(&self, spec: &Spec) -> Result<Isolation, EngineError> {
        Ok(self.driver(spec)?.isolation())
    }

    /// Whether a running machine of one description can be given the limits of another.
    pub fn can_change_limits(&self, from: &Spec, to: &Spec) -> bool {
        self.driver(from).is_ok_and(|driver| driver.can_change_limits(&from.limits, &to.limits))
    }

    /// Whether a running machine of a description can be given mounts and a host name.
    pub fn can_attach(&self, spec: &Spec) -> bool {
        self.driver(spec).is_ok_and(|driver| driver.can_attach())
    }

    /// What the wall that a description asks for is, in a few words.
    pub fn wall_of(&self, spec: &Spec) -> Result<Summary, EngineError> {
        Ok(self.driver(spec)?.report().summary())
    }

    /// What the wall that a description asks for enforces on this host.
    pub fn report(&self, spec: &Spec) -> Result<DriverReport, EngineError> {
        let driver = self.driver(spec)?;
        let mut report = driver.report();
        report.capabilities.extend([driver.egress(), devices_of(driver)]);
        Ok(report)
    }
}

/// Which devices a wall can show.
fn devices_of(driver: &dyn Driver) -> Capability {
    let missing = |reason: String, remedy| Capability::missing(Feature::Devices, reason, remedy);
    if let Err(reason) = driver.shows_devices() {
        return missing(reason.to_owned(), None);
    }
    match Cdi::of_host().map(|cdi| cdi.names()) {
        Ok(names) if names.is_empty() => missing(
            "this host has no CDI specification".to_owned(),
            Some("for a GPU of NVIDIA: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
        ),
        Ok(names) => Capability::enforced(Feature::Devices, format!("for those that ask: {}", names.join(", "))),
        Err(error) => missing(error.to_string(), None),
    }
}
