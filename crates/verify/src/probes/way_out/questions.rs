//! Data in the names that are asked for.

use sloplet_policy::Feature;

use super::{ALLOWED, NAMES_OF_WORLD, OTHER, PUBLIC_TOO, Trial, rules};
use crate::calls::{Call, question};
use crate::drill::{Drill, DrillError, settle};
use crate::outside::World;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "egress-questions",
    ids: &[57],
    tries: "carry data out in names: unlisted ones, subdomains of an allowed one, other records, other servers",
    why: "a resolver that asks on is a way out for whoever owns any domain, whatever else is closed",
    needs: &[Feature::Egress],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let world = World::open(&NAMES_OF_WORLD).await?;
    let mut trial = Trial::default();
    trial.allow("the allowed name, looked up and dialed", |mark| Call::http(ALLOWED, 80, ALLOWED, &format!("/{mark}")));
    // A, TXT, MX, SRV, HTTPS, NULL, any.
    for kind in [1, 16, 15, 33, 65, 10, 255] {
        for parent in [OTHER, ALLOWED] {
            trial.attempt(format!("record {kind} of a name below {parent}"), |mark| Call::Ask {
                name: format!("{mark}.{parent}"),
                kind,
            });
        }
    }
    trial.attempt("the way back", |mark| Call::Ask { name: format!("{mark}.2.0.192.in-addr.arpa"), kind: 12 });
    for port in [53, 853, 443] {
        trial.attempt(format!("another server, TCP {port}"), |mark| {
            let query = question(&format!("{mark}.{OTHER}"), 1);
            let say = [&(query.len() as u16).to_be_bytes()[..], &query].concat();
            Call::bytes(PUBLIC_TOO, port, &say)
        });
    }
    let finding = trial.run(drill, &world, rules(&[ALLOWED])).await?;
    let unasked: Vec<String> = world.asked().into_iter().filter(|name| name != ALLOWED).collect();
    if !unasked.is_empty() {
        return Ok(Finding::breach(finding.control, format!("looked up outside: {}", unasked.join(", "))));
    }
    Ok(finding)
}
