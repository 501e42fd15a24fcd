//! Orphans.

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};
use sloplet_policy::Feature;

pub const PROBE: Probe = Probe {
    name: "zombies",
    ids: &[43],
    tries: "thousands of orphans that end at once, with a small limit on processes",
    why: "orphans that nobody reaps use up the limit, and then the host's process ids",
    needs: &[Feature::Pids],
    kind: Kind::Drill(run),
};

const COUNT: &str = "2000";

/// Where processes take a hundred times as long to make.
const COUNT_OF_OWN_KERNEL: &str = "300";

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let count = if drill.own_kernel() { COUNT_OF_OWN_KERNEL } else { COUNT };
    let control = drill.control(&["zombies", "20"]).await?;
    let sandbox = drill.sandbox(|spec| spec.limits.pids = 32).await?;
    let made = drill.act(&sandbox, &["zombies", count]).await?;
    let after = drill.act(&sandbox, &["fork", "8"]).await?;
    let serves = drill.serves(&sandbox).await;
    sandbox.destroy().await?;
    if control.out != "20" {
        return Ok(Finding::inconclusive(control.out, "orphans cannot be made on the host either"));
    }
    let held = made.out == count && after.number() == 8 && serves;
    let detail = format!(
        "{} orphans with a limit of 32 processes; afterwards {} of 8 processes could be made",
        made.out,
        after.number()
    );
    Ok(Finding::judge(held, format!("{} orphans on the host", control.out), detail))
}
