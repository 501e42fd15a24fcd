//! The share of processors.

use sloplet_policy::{Cpus, Feature};

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "processor-share",
    ids: &[47],
    tries: "compute without end with a twentieth of a processor",
    why: "a neighbour's work must not wait for a spinning agent",
    needs: &[Feature::Cpu],
    kind: Kind::Drill(run),
};

const WALL: &str = "1000";

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let control = drill.control(&["spin", WALL]).await?.number();
    let sandbox = drill.sandbox(|spec| spec.limits.cpus = Cpus { millis: 50 }).await?;
    let had = drill.act(&sandbox, &["spin", WALL]).await?.number();
    sandbox.destroy().await?;
    let said = format!("{control} ms of processor time in {WALL} ms on the host");
    if control < 300 {
        return Ok(Finding::inconclusive(said, "this host is too busy to tell"));
    }
    Ok(Finding::judge(had < 150, said, format!("{had} ms with a twentieth of a processor")))
}
