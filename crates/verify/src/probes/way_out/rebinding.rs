//! Names that lead elsewhere the second time.

use sloplet_policy::Feature;

use super::{ALLOWED, NAMES_OF_WORLD, PUBLIC, Trial, rules};
use crate::calls::Call;
use crate::drill::{Drill, DrillError, settle};
use crate::outside::World;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "egress-rebinding",
    ids: &[51],
    tries: "allowed names whose address changes from public to private, or is private from the start",
    why: "DNS rebinding: whoever owns an allowed name owns where it leads",
    needs: &[Feature::Egress],
    kind: Kind::Drill(run),
};

/// Where nobody is: a connection that fails makes the name be looked up again.
const NOBODY: &str = "11.99.7.77";

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let world = World::open(&NAMES_OF_WORLD).await?;
    world.bury(NOBODY);
    world.name("again.rebind.sloplet.test", &[&[NOBODY], &[PUBLIC]]);
    world.name("mixed.rebind.sloplet.test", &[&["10.20.0.5", "127.0.0.1", PUBLIC]]);
    let mut trial = Trial::default();
    trial.allow(ALLOWED, |mark| Call::http(ALLOWED, 80, ALLOWED, &format!("/{mark}")));
    trial.allow("the public one of mixed addresses", |mark| {
        let host = "mixed.rebind.sloplet.test";
        Call::http(host, 80, host, &format!("/{mark}"))
    });
    let private = ["127.0.0.1", "169.254.169.254", "10.20.0.5", "192.168.1.1", "100.64.0.9", "::1", "fd00:ec2::254"];
    for (number, address) in private.into_iter().enumerate() {
        let host = format!("n{number}.rebind.sloplet.test");
        world.name(&host, &[&[NOBODY], &[address]]);
        trial.attempt(format!("{address}, at first"), |mark| Call::http(&host, 80, &host, &format!("/{mark}")));
        trial.attempt(address, |mark| Call::http(&host, 80, &host, &format!("/{mark}")));
    }
    let names = rules(&[ALLOWED, "*.rebind.sloplet.test"]);
    // That names are looked up again at all.
    let again = "again.rebind.sloplet.test";
    trial.attempt("nobody there yet", |mark| Call::http(again, 80, again, &format!("/{mark}")));
    let finding = trial.run(drill, &world, names).await?;
    let looked_up = world.asked().iter().filter(|name| name.as_str() == "n0.rebind.sloplet.test").count();
    Ok(match looked_up {
        0 | 1 => Finding::inconclusive(finding.control, "names were not looked up a second time"),
        _ => finding,
    })
}
