//! Two sandboxes of one host.

use sloplet_client::ProcessEvent;
use sloplet_policy::Feature;

use crate::drill::{Drill, DrillError, settle};
use crate::part::contains;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "neighbours",
    ids: &[62],
    tries: "reach a port and a file of another sandbox",
    why: "agents of different owners share the host and nothing else",
    needs: &[Feature::OwnRoot],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let (one, two) = (drill.sandbox(|_| {}).await?, drill.sandbox(|_| {}).await?);
    drill.act(&one, &["put", "/tmp/mine", "of the first"]).await?;
    let mut listening = one.exec(drill.words(&["listen"])).await?;
    let port = match listening.next().await {
        Some(Ok(ProcessEvent::Stdout(bytes))) => String::from_utf8_lossy(&bytes).trim().to_owned(),
        _ => String::new(),
    };
    // The control: from the same sandbox it can be reached.
    let own = drill.act(&one, &["connect", &port]).await?.out == "connected";
    let file = drill.act(&one, &["cat", "/tmp/mine"]).await?.out == "of the first";
    let other = drill.act(&two, &["connect", &port]).await?.out == "connected";
    let seen = drill.read(&two, b"/tmp/mine").await.is_ok_and(|text| contains(&text, b"of the first"));
    drop(listening);
    one.destroy().await?;
    two.destroy().await?;
    if !own || !file {
        return Ok(Finding::inconclusive("", "not even the sandbox itself reaches its port and file"));
    }
    let detail = format!(
        "the other sandbox: port {}, file {}",
        if other { "reached" } else { "not reached" },
        if seen { "seen" } else { "not seen" }
    );
    Ok(Finding::judge(!other && !seen, "the sandbox itself reaches both", detail))
}
