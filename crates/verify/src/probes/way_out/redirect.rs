//! An allowed host that sends its visitors on.

use sloplet_policy::Feature;

use super::{ALLOWED, NAMES_OF_WORLD, OTHER, Trial, rules};
use crate::calls::Call;
use crate::drill::{Drill, DrillError, settle};
use crate::outside::World;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "egress-redirect",
    ids: &[50],
    tries: "follow an allowed host's redirects to the metadata address, to private ones and to an unlisted name",
    why: "the second hop counts, too: a page that an agent reads can name any address",
    needs: &[Feature::Egress],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let world = World::open(&NAMES_OF_WORLD).await?;
    let mut trial = Trial::default();
    trial.allow("a redirect to the same host", |mark| {
        Call::http(ALLOWED, 80, ALLOWED, &format!("/redirect?to=http://{ALLOWED}/{mark}"))
    });
    trial.allow("where that leads", |mark| Call::http(ALLOWED, 80, ALLOWED, &format!("/{mark}")));
    for to in ["169.254.169.254", "10.20.0.5", "11.99.7.9", "[fd00:ec2::254]", OTHER] {
        let host = to.trim_matches(['[', ']']);
        trial.allow(&format!("the redirect to {to}"), |mark| {
            Call::http(ALLOWED, 80, ALLOWED, &format!("/redirect?to=http://{to}/{mark}"))
        });
        trial.attempt(format!("to {to}"), |mark| Call::http(host, 80, to, &format!("/{mark}")));
    }
    trial.run(drill, &world, rules(&[ALLOWED])).await
}
