//! Memory bombs.

use sloplet_policy::{ByteSize, Feature};

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "memory-bomb",
    ids: &[40],
    tries: "more memory than the limit: of its own, shared, and in files without a name",
    why: "what one sandbox takes, the host and the others lack",
    needs: &[Feature::Memory],
    kind: Kind::Drill(run),
};

const LIMIT: u64 = 48;
const TRIED: &str = "96";

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let control = drill.control(&["allocate", "own", TRIED]).await?.number();
    let said = format!("{control} MiB on the host");
    if control < 96 {
        return Ok(Finding::inconclusive(said, "that much memory cannot be had on the host either"));
    }
    let mut detail = Vec::new();
    let mut held = true;
    for kind in ["own", "memfd", "shm"] {
        let change = |spec: &mut sloplet_policy::Spec| {
            spec.limits.memory = ByteSize::mib(LIMIT);
            spec.limits.disk = ByteSize::mib(8);
        };
        let sandbox = drill.sandbox(change).await?;
        // What is within the limit can be had: else the rest would prove nothing.
        let within = drill.act(&sandbox, &["allocate", kind, "8"]).await?;
        if within.number() != 8 && kind == "own" {
            return Ok(Finding::inconclusive(said, "not even 8 MiB could be had inside"));
        }
        if within.number() != 8 {
            detail.push(format!("{kind}: not to be had inside"));
            sandbox.destroy().await?;
            continue;
        }
        let got = drill.act(&sandbox, &["allocate", kind, TRIED]).await?;
        let serves = drill.serves(&sandbox).await;
        held &= got.number() < LIMIT && serves;
        detail.push(format!(
            "{kind}: {} MiB, ended with {}{}",
            got.number(),
            got.code,
            if serves { "" } else { ", the agent is gone" }
        ));
        sandbox.destroy().await?;
    }
    Ok(Finding::judge(held, said, format!("with a limit of {LIMIT} MiB: {}", detail.join("; "))))
}
