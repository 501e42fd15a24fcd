//! What is left of a sandbox.

use crate::drill::{Drill, DrillError, settle};
use crate::part::contains;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "recreate",
    ids: &[64],
    tries: "write files, destroy the sandbox, make it again and look for them",
    why: "seed 004, step 9: disposability is a feature only if everything goes",
    needs: &[],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let sandbox = drill.sandbox(|_| {}).await?;
    let path = drill.place(&sandbox, "left-behind");
    drill.act(&sandbox, &["put", &path, "of the first life"]).await?;
    let written = drill.act(&sandbox, &["cat", &path]).await?.out == "of the first life";
    sandbox.destroy().await?;
    let sandbox = drill.sandbox(|_| {}).await?;
    let found = drill.read(&sandbox, path.as_bytes()).await.is_ok_and(|text| contains(&text, b"of the first life"));
    sandbox.destroy().await?;
    if !written {
        return Ok(Finding::inconclusive("", "the file could not be written in the first place"));
    }
    Ok(Finding::judge(
        !found,
        "the file was there before",
        if found { "the file is still there" } else { "the file is gone" },
    ))
}
