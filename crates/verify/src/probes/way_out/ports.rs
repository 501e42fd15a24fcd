//! Other ports of an allowed host.

use sloplet_policy::Feature;

use super::{ALLOWED, NAMES_OF_WORLD, Trial, rules};
use crate::calls::Call;
use crate::drill::{Drill, DrillError, settle};
use crate::outside::World;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "egress-ports",
    ids: &[59],
    tries: "an allowed host on ports that were not allowed: shells, mail, databases",
    why: "mail and databases have ports of their own; leave to read a web page is none to send mail",
    needs: &[Feature::Egress],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let world = World::open(&NAMES_OF_WORLD).await?;
    let mut trial = Trial::default();
    trial.allow("port 80", |mark| Call::http(ALLOWED, 80, ALLOWED, &format!("/{mark}")));
    trial.allow("port 2222, which is listed", |mark| Call::text(ALLOWED, 2222, &[&format!("*{mark}\r\n")]));
    for port in [22, 25, 465, 587, 1, 53, 853, 2375, 3128, 3306, 5432, 6379, 8080, 8443, 65535] {
        // Binary, as databases and shells speak: of text it would be asked whether it is HTTP.
        trial.attempt(format!("port {port}"), |mark| Call::text(ALLOWED, port, &[&format!("\x01*{mark}\r\n")]));
    }
    trial.run(drill, &world, rules(&[ALLOWED, &format!("{ALLOWED}:2222/tcp")])).await
}
