//! The end of a sandbox's time.

use std::time::{Duration, Instant};

use sloplet_policy::{Feature, Span};

use crate::drill::{Drill, DrillError, settle};
use crate::part::contains;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "deadline",
    ids: &[45, 46],
    tries: "outlive the sandbox's time: a daemon without session and parent, and a stopped agent",
    why: "a runaway agent must end when its time is over, whoever sleeps",
    needs: &[Feature::Timeout],
    kind: Kind::Drill(run),
};

const TIME: Duration = Duration::from_millis(700);

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let marker = format!("daemon-{}", std::process::id());
    let own = format!("control-{}", std::process::id());
    drill.control(&["daemon", &own, "3"]).await?;
    let works = running(&own);
    let sandbox = drill.sandbox(|spec| spec.limits.timeout = Span(TIME)).await?;
    let started = Instant::now();
    drill.act(&sandbox, &["daemon", &marker, "15"]).await?;
    let there = running(&marker);
    // Frozen agents keep no deadlines: somebody else must.
    let _ = drill.act(&sandbox, &["stop"]).await;
    let ended = tokio::time::timeout(TIME + Duration::from_secs(4), sandbox.machine().ended()).await;
    let after = started.elapsed();
    let left = running(&marker);
    sandbox.destroy().await?;
    if !works || !there {
        return Ok(Finding::inconclusive("", "the daemon does not go on, on the host or inside"));
    }
    let held = ended.as_ref().is_ok_and(|end| end.timed_out) && !left;
    let detail = format!(
        "with a time of {} ms: {} after {} ms, the daemon {}",
        TIME.as_millis(),
        if ended.is_ok() { "ended" } else { "still there" },
        after.as_millis(),
        if left { "lives" } else { "is gone" }
    );
    Ok(Finding::judge(held, "the daemon outlives its parent on the host", detail))
}

/// Whether a process of this host has the marker on its command line.
fn running(marker: &str) -> bool {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .any(|line| contains(&line, marker.as_bytes()))
}
