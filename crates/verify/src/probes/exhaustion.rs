//! Descriptors, until there are none.

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "descriptor-exhaustion",
    ids: &[42],
    tries: "open descriptors without end",
    why: "the agent, and the host, must keep theirs",
    needs: &[],
    kind: Kind::Drill(run),
};

/// Open files of one process inside.
const LIMIT: u64 = 65_536;

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let sandbox = drill.sandbox(|_| {}).await?;
    let opened = drill.act(&sandbox, &["descriptors"]).await?;
    let serves = drill.serves(&sandbox).await;
    let again = drill.act(&sandbox, &["random"]).await?;
    sandbox.destroy().await?;
    let control = drill.control(&["descriptors"]).await?.number();
    let held = opened.number() < LIMIT && serves && again.code == 0;
    let detail = format!("{} descriptors inside; the agent {}", opened.out, if serves { "serves" } else { "is gone" });
    Ok(Finding::judge(held, format!("{control} descriptors on the host"), detail))
}
