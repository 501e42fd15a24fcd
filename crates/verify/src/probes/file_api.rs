//! The file API: paths that lead elsewhere.

use crate::drill::{Drill, DrillError, settle};
use crate::part::contains;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "file-api-paths",
    ids: &[35],
    tries: "read the host's canary through '..', /proc/self/root, links, encoded dots and NUL",
    why: "the host asks for files on an agent's behalf: a path must never be the host's",
    needs: &[],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let settings = drill.settings();
    let canary = settings.canary.display().to_string();
    let works = std::fs::read_to_string(format!("/proc/self/root{canary}")).is_ok_and(|text| text == settings.secret);
    let sandbox = drill.sandbox(|_| {}).await?;
    let up = "../".repeat(40);
    let tricks = [
        canary.clone(),
        format!("/{up}{canary}"),
        format!("{up}{canary}"),
        format!("/proc/self/root{canary}"),
        format!("/proc/1/root{canary}"),
        format!("/proc/1/cwd/{up}{canary}"),
        format!("/proc/self/fd/3/{up}{canary}"),
        format!("/tmp/%2e%2e/%2e%2e{canary}"),
        format!("/tmp/..;{canary}"),
        format!("{canary}\0.txt"),
        format!("/dev/fd/../../..{canary}"),
    ];
    let mut found = Vec::new();
    for path in &tricks {
        if drill.read(&sandbox, path.as_bytes()).await.is_ok_and(|text| contains(&text, settings.secret.as_bytes())) {
            found.push(path.escape_debug().to_string());
        }
    }
    let serves = drill.serves(&sandbox).await;
    sandbox.destroy().await?;
    if !works {
        return Ok(Finding::inconclusive("", "the canary cannot be read on the host either"));
    }
    let control = "the canary is readable on the host through /proc/self/root";
    let detail = format!("{} paths, {} read the host's canary {}", tricks.len(), found.len(), found.join(", "));
    Ok(Finding::judge(found.is_empty() && serves, control, detail))
}
