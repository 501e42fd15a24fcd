//! Memory bombs.

use std::time::Duration;

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

/// What the drill's sandbox may have, and what it tries, in MiB.
struct Sizes {
    limit: u64,
    tried: u64,
}

const SIZES: Sizes = Sizes { limit: 48, tried: 96 };

/// A kernel of its own needs memory, too.
const SIZES_OF_OWN_KERNEL: Sizes = Sizes { limit: 256, tried: 512 };

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let Sizes { limit, tried } = if drill.own_kernel() { SIZES_OF_OWN_KERNEL } else { SIZES };
    let words = tried.to_string();
    let control = drill.control(&["allocate", "own", &words]).await?.number();
    let said = format!("{control} MiB on the host");
    if control < tried {
        return Ok(Finding::inconclusive(said, "that much memory cannot be had on the host either"));
    }
    let mut detail = Vec::new();
    let mut held = true;
    for kind in ["own", "memfd", "shm"] {
        let change = |spec: &mut sloplet_policy::Spec| {
            spec.limits.memory = ByteSize::mib(limit);
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
        let got = match drill.act(&sandbox, &["allocate", kind, &words]).await {
            // The memory is that of one process of the host, the kernel itself: when that ends, all ends.
            Err(DrillError::Client(_)) if drill.own_kernel() => {
                let end = tokio::time::timeout(Duration::from_secs(10), sandbox.machine().ended()).await;
                held &= end.as_ref().is_ok_and(|end| end.oom_kills > 0);
                detail.push(match end {
                    Ok(end) if end.oom_kills > 0 => format!("{kind}: the host killed all of it for want of memory"),
                    Ok(end) => format!("{kind}: it ended otherwise: {end:?}"),
                    Err(_) => format!("{kind}: it answers no more, and is still there"),
                });
                sandbox.destroy().await?;
                continue;
            }
            got => got?,
        };
        let serves = drill.serves(&sandbox).await;
        held &= got.number() < limit && serves;
        detail.push(format!(
            "{kind}: {} MiB, ended with {}{}",
            got.number(),
            got.code,
            if serves { "" } else { ", the agent is gone" }
        ));
        sandbox.destroy().await?;
    }
    Ok(Finding::judge(held, said, format!("with a limit of {limit} MiB: {}", detail.join("; "))))
}
