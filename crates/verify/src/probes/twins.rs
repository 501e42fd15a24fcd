//! Two sandboxes from one image.

use sloplet_policy::Feature;

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "twins",
    ids: &[63],
    tries: "find the same random numbers and ids in two sandboxes of one origin",
    why: "keys made from the same randomness are the same keys",
    needs: &[],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let drawn = (drill.control(&["random"]).await?.out, drill.control(&["random"]).await?.out);
    let (one, two) = (drill.sandbox(|_| {}).await?, drill.sandbox(|_| {}).await?);
    let (first, second) = (drill.act(&one, &["random"]).await?.out, drill.act(&two, &["random"]).await?.out);
    let differ = first != second && first.len() == 64 && one.id() != two.id();
    one.destroy().await?;
    two.destroy().await?;
    if drawn.0 == drawn.1 {
        return Ok(Finding::inconclusive("", "two draws on the host are the same"));
    }
    let detail = match (differ, drill.wall.claims(Feature::MemorySnapshot)) {
        (false, _) => "random numbers or ids are the same",
        (true, true) => "random numbers and ids differ",
        (true, false) => "random numbers and ids differ; memory is not part of this wall's snapshots",
    };
    Ok(Finding::judge(differ, "two draws on the host differ", detail))
}
