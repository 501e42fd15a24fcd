//! Fork bombs.

use std::time::{Duration, Instant};

use sloplet_policy::Feature;

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "fork-bomb",
    ids: &[39],
    tries: "more processes than the limit; then a bomb, while the API is asked and the sandbox destroyed",
    why: "a host without free process ids serves nobody",
    needs: &[Feature::Pids],
    kind: Kind::Drill(run),
};

/// What the drill's sandbox may have, and what it tries.
const LIMIT: u32 = 24;
const TRIED: &str = "64";

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let control = drill.control(&["fork", TRIED]).await?.number();
    let sandbox = drill.sandbox(|spec| spec.limits.pids = LIMIT).await?;
    let made = drill.act(&sandbox, &["fork", TRIED]).await?.number();
    let bomb = sandbox.exec(drill.words(&["fork-bomb"])).await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    let serves = drill.serves(&sandbox).await;
    let started = Instant::now();
    drop(bomb);
    sandbox.destroy().await?;
    let gone = started.elapsed();
    let said = format!("{control} processes at once on the host");
    if control < 64 {
        return Ok(Finding::inconclusive(said, "that many processes do not work on the host either"));
    }
    let held = made < u64::from(LIMIT) && serves && gone < Duration::from_secs(10);
    let detail = format!(
        "with a limit of {LIMIT}: {made} processes; during a bomb the API {}, and the sandbox was gone in {} ms",
        if serves { "answered" } else { "did not answer" },
        gone.as_millis()
    );
    Ok(Finding::judge(held, said, detail))
}
