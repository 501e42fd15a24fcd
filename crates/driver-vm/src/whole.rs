//! Whole machines, as the engine sees them: virtual machines in which the image's own init system runs, in place of a sandbox.
//!
//! Everything around the machine is as it is for those with a sandbox in it. Within it nothing is kept from its root: what
//! bounds it is the machine.

use std::sync::Arc;

use sloplet_engine::{Driver, DriverError, Machine, Pending, Wanted};
use sloplet_policy::{Capability, DriverReport, Feature, Isolation, Limits};

use crate::Vm;

/// The driver's name.
pub const NAME: &str = "vm-full";

/// Makes whole machines, by the means of the driver of all machines; which also finds them again for the next engine.
pub struct Whole(Arc<Vm>);

impl Whole {
    /// With what `machines` has.
    pub fn new(machines: Arc<Vm>) -> Self {
        Self(machines)
    }
}

impl Driver for Whole {
    fn name(&self) -> &'static str {
        NAME
    }

    fn isolation(&self) -> Isolation {
        Isolation::Vm
    }

    fn only_by_name(&self) -> bool {
        true
    }

    fn report(&self) -> DriverReport {
        let mut report = self.0.report();
        report.driver = NAME.into();
        for known in &mut report.capabilities {
            match known.feature {
                Feature::Memory => known.detail = "the machine's memory, around it QEMU's cgroup".into(),
                Feature::Cpu => known.detail = "the machine's processors, around them QEMU's cgroup".into(),
                Feature::Pids => {
                    let detail =
                        "root of the machine has as many processes as its memory holds; QEMU's own are bounded";
                    *known = Capability::missing(Feature::Pids, detail, Some("use --isolation vm alone"));
                }
                Feature::SyscallFilter => {
                    known.detail = "around QEMU; none in the machine, whose kernel is its own".into()
                }
                Feature::OwnUids => known.detail = "the machine's own; QEMU's are used by nobody else".into(),
                Feature::RootInside => known.detail = "root of a machine of its own: systemd, mounts, modules".into(),
                _ => {}
            }
        }
        report
    }

    /// All that bounds the machine from outside.
    fn required(&self) -> Vec<Feature> {
        let bounds = Limits::features().into_iter().filter(|feature| *feature != Feature::Pids);
        bounds.chain([Feature::NoNetwork, Feature::SyscallFilter]).collect()
    }

    fn egress(&self) -> Capability {
        self.0.egress()
    }

    fn spares_outlets(&self) -> bool {
        false
    }

    fn create<'a>(&'a self, wanted: Wanted<'a>) -> Pending<'a, Result<Box<dyn Machine>, DriverError>> {
        Box::pin(self.0.bring_up(wanted, false, true))
    }

    fn create_lasting<'a>(&'a self, wanted: Wanted<'a>) -> Pending<'a, Result<Box<dyn Machine>, DriverError>> {
        Box::pin(self.0.bring_up(wanted, true, true))
    }
}
