//! Which walls the keys of a server may use.

use axum::http::StatusCode;
use sloplet_engine::Engine;
use sloplet_policy::{Isolation, Spec};

use crate::auth::{Access, Scope};
use crate::error::ApiError;

/// A driver whose images are another engine's, private ones of other people included.
const FOREIGN: &str = "docker";

/// What the operator lets keys use. Those with the scope `admin`, and the server's own user, may use everything.
#[derive(Debug, Clone, Default)]
pub struct Walls {
    /// Drivers by their names; if left out, all but Docker's.
    pub drivers: Option<Vec<String>>,
    /// The weakest isolation; what asks for less, or for nothing, gets this.
    pub least: Option<Isolation>,
}

impl Walls {
    /// Makes a description one that its owner may have: a weaker wall is raised, unless a driver is named.
    pub fn admit(&self, engine: &Engine, access: &Access, spec: &mut Spec) -> Result<(), ApiError> {
        if access.scope >= Scope::Admin {
            return Ok(());
        }
        if let Some(least) = self.least.filter(|least| spec.driver.is_none() && spec.isolation < *least) {
            spec.isolation = least;
        }
        // What this server does not have is told by whoever makes the sandbox.
        let (Ok(driver), Ok(isolation)) = (engine.driver_name(spec), engine.isolation_of(spec)) else { return Ok(()) };
        self.check(driver, isolation).map_err(|message| ApiError::new(StatusCode::FORBIDDEN, message))
    }

    fn check(&self, driver: &str, isolation: Isolation) -> Result<(), String> {
        if let Some(least) = self.least.filter(|least| isolation < *least) {
            let (weak, least) = (isolation.name(), least.name());
            return Err(format!("keys of this server have at least the isolation '{least}'; '{driver}' is '{weak}'"));
        }
        match &self.drivers {
            Some(drivers) if !drivers.iter().any(|listed| listed == driver) => {
                Err(format!("keys of this server may use the drivers {}, not '{driver}'", drivers.join(", ")))
            }
            None if driver == FOREIGN => {
                let hint = "its operator can allow it with 'serve --drivers'";
                Err(format!(
                    "keys of this server may not use the driver '{driver}', which has images of others: {hint}"
                ))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_use_what_the_operator_lists() {
        let usual = Walls::default();
        assert!(usual.check("namespaces", Isolation::Container).is_ok() && usual.check("vm", Isolation::Vm).is_ok());
        assert!(usual.check("docker", Isolation::Container).unwrap_err().contains("--drivers"));
        let listed = Walls { drivers: Some(vec!["docker".into(), "vm".into()]), least: None };
        assert!(listed.check("docker", Isolation::Container).is_ok());
        assert!(listed.check("namespaces", Isolation::Container).unwrap_err().contains("docker, vm"));
        let strong = Walls { drivers: None, least: Some(Isolation::Gvisor) };
        assert!(strong.check("gvisor", Isolation::Gvisor).is_ok() && strong.check("vm", Isolation::Vm).is_ok());
        assert!(strong.check("crun", Isolation::Container).unwrap_err().contains("'gvisor'"));
    }
}
