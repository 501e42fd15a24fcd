//! The end of a sandbox's time.

use std::time::{Duration, Instant};

use sloplet_policy::{Feature, Span};

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};
use crate::processes::Process;

pub const PROBE: Probe = Probe {
    name: "deadline",
    ids: &[45, 46],
    tries: "outlive the sandbox's time: a daemon without session and parent, and a stopped agent",
    why: "a runaway agent must end when its time is over, whoever sleeps",
    needs: &[Feature::Timeout],
    kind: Kind::Drill(run),
};

const TIME: Duration = Duration::from_millis(700);

/// The least where a kernel has to start first: what that takes is part of a sandbox's time.
const TIME_OF_OWN_KERNEL: Duration = Duration::from_secs(3);

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let marker = format!("daemon-{}", std::process::id());
    let own = format!("control-{}", std::process::id());
    let control = drill.control(&["daemon", &own, "60"]).await?.out;
    let daemons = Process::called(&own);
    daemons.iter().for_each(Process::kill);
    let own_kernel = drill.own_kernel();
    // A busy host takes its time, too.
    let time = 2 * started_and_used(drill).await? + if own_kernel { TIME_OF_OWN_KERNEL } else { TIME };
    let sandbox = drill.sandbox(|spec| spec.limits.timeout = Span(time)).await?;
    let started = Instant::now();
    let said = drill.act(&sandbox, &["daemon", &marker, "15"]).await?.out;
    // The host sees no processes of another kernel, but those that are that kernel.
    let processes = sandbox.pid().map(Process::tree).unwrap_or_default();
    let there =
        if own_kernel { said == "started" && !processes.is_empty() } else { !Process::called(&marker).is_empty() };
    // Frozen agents keep no deadlines: somebody else must.
    let _ = drill.act(&sandbox, &["stop"]).await;
    let ended = tokio::time::timeout(time + Duration::from_secs(4), sandbox.machine().ended()).await;
    let after = started.elapsed();
    let left = if own_kernel { processes.iter().any(Process::lives) } else { !Process::called(&marker).is_empty() };
    sandbox.destroy().await?;
    if daemons.is_empty() {
        return Ok(Finding::inconclusive("", format!("the daemon does not go on, on the host: {control:?}")));
    }
    if !there {
        let detail = format!("the daemon does not go on, inside: {said:?}, {} processes", processes.len());
        return Ok(Finding::inconclusive("", detail));
    }
    let held = ended.as_ref().is_ok_and(|end| end.timed_out) && !left;
    let detail = format!(
        "with a time of {} ms: {} after {} ms, {} {}",
        time.as_millis(),
        if ended.is_ok() { "ended" } else { "still there" },
        after.as_millis(),
        if own_kernel { "its kernel" } else { "the daemon" },
        if left { "lives" } else { "is gone" }
    );
    Ok(Finding::judge(held, "the daemon outlives its parent on the host", detail))
}

/// How long a sandbox takes until a command has run in it.
async fn started_and_used(drill: &Drill<'_>) -> Result<Duration, DrillError> {
    let clock = Instant::now();
    let sandbox = drill.sandbox(|_| {}).await?;
    drill.act(&sandbox, &["random"]).await?;
    let took = clock.elapsed();
    sandbox.destroy().await?;
    Ok(took)
}
