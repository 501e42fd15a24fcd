//! The share of processors.

use std::time::Instant;

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
    // Behind a kernel of its own, what that one counts is its own idea: the host's count is taken instead.
    let before = if drill.own_kernel() { sandbox.machine().usage().await?.cpu_us } else { 0 };
    let started = Instant::now();
    let mut had = drill.act(&sandbox, &["spin", WALL]).await?.number();
    if drill.own_kernel() {
        let used = sandbox.machine().usage().await?.cpu_us.saturating_sub(before) / 1000;
        had = used * 1000 / (started.elapsed().as_millis() as u64).max(1);
    }
    sandbox.destroy().await?;
    let said = format!("{control} ms of processor time in {WALL} ms on the host");
    if control < 300 {
        return Ok(Finding::inconclusive(said, "this host is too busy to tell"));
    }
    Ok(Finding::judge(had < 150, said, format!("{had} ms in {WALL} ms with a twentieth of a processor")))
}
