//! Too much of what is allowed.

use sloplet_policy::network::NetworkLimits;
use sloplet_policy::{Feature, Network};

use super::{ALLOWED, NAMES_OF_WORLD, answered, reach, rules, to_proxy};
use crate::calls::Call;
use crate::drill::{Drill, DrillError, settle};
use crate::outside::World;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "egress-floods",
    ids: &[60],
    tries: "hundreds of connections with half a request each, and a huge header",
    why: "the way out is the host's process: it must stay bounded, and a neighbour's must stay open",
    needs: &[Feature::Egress],
    kind: Kind::Drill(run),
};

/// Connections at once that the sandbox may have, and how many it wants.
const MOST: u32 = 20;
const WANTED: usize = 200;

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let (world, elsewhere) = (World::open(&NAMES_OF_WORLD).await?, World::open(&NAMES_OF_WORLD).await?);
    let limits = NetworkLimits { connections: MOST, ..NetworkLimits::default() };
    let network = Network { limits, ..rules(&[ALLOWED]) };
    let sandbox = drill.sandbox_with(&world, |spec| reach(spec, network)).await?;
    let neighbour = drill.sandbox_with(&elsewhere, |spec| reach(spec, rules(&[ALLOWED]))).await?;
    let get = Call::http(ALLOWED, 80, ALLOWED, "/");
    let huge = format!("GET http://{ALLOWED}/huge HTTP/1.1\r\nHost: {ALLOWED}\r\nX: {}", "a".repeat(90_000));
    let before = drill.call(&sandbox, std::slice::from_ref(&get)).await?;
    let held = Call::Many { host: ALLOWED.to_owned(), count: WANTED };
    let flood = [held];
    let (flooded, beside) =
        tokio::join!(drill.call(&sandbox, &flood), drill.call(&neighbour, std::slice::from_ref(&get)));
    let (held, most) = (flooded?.concat(), world.most());
    let after = drill.call(&sandbox, &[to_proxy(&[&huge]), get.clone()]).await?;
    sandbox.destroy().await?;
    neighbour.destroy().await?;
    let reached = |said: &[String]| said.last().is_some_and(|said| answered(said));
    if !reached(&before) {
        return Ok(Finding::inconclusive("", format!("not even one request got through: {}", before.concat())));
    }
    let control = format!("one request gets through; {WANTED} connections were opened");
    let bounded = most <= MOST as usize && !world.heard("/huge");
    let serves = reached(&beside?) && reached(&after);
    let detail = format!(
        "{most} of {WANTED} reached the world, {held} stayed open (the limit is {MOST}); the header of 90 kB {}; afterwards and next door requests {}",
        if world.heard("/huge") { "got through" } else { "did not" },
        if serves { "get through" } else { "do not get through" }
    );
    Ok(Finding::judge(bounded && serves, control, detail))
}
