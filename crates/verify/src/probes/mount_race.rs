//! A folder to be mounted, swapped for a link by whoever can write to the folder around it.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use sloplet_client::ProcessEvent;
use sloplet_policy::{Bind, Feature};

use crate::drill::{Drill, DrillError, settle};
use crate::part::contains;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "mount-race",
    ids: &[65],
    tries: "swap a folder of a writable mount and a symlink to sloplet's own data while that folder is mounted elsewhere",
    why: "CVE-2021-30465: a path that is checked first and opened later may lead elsewhere by then",
    needs: &[Feature::OwnRoot],
    kind: Kind::Drill(run),
};

/// How long it is tried.
const WHILE: Duration = Duration::from_millis(2500);

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let settings = drill.settings();
    let data = drill.engine.places().data.clone();
    let name = settings.canary.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let works = std::fs::read_to_string(data.join(&name)).is_ok_and(|text| text == settings.secret);
    let folder = drill.canaries.folder().join("writable");
    if !drill.wall.claims(Feature::OwnUids) {
        // Whoever that is inside.
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777))?;
    }
    let bind = Bind { from: folder.clone(), to: "/shared".into(), writable: true, ..Bind::default() };
    let racing = drill.sandbox(|spec| spec.mounts.push(bind)).await?;
    let millis = (WHILE + Duration::from_millis(500)).as_millis().to_string();
    let words = drill.words(&["exchange", "/shared/race", &data.display().to_string(), &millis]);
    let mut racer = racing.exec(words).await?;
    if let Some(event) = racer.next().await {
        let _: ProcessEvent = event?;
    }
    let until = Instant::now() + WHILE;
    let (mut shown, mut found, mut refused) = (0, 0, 0);
    while Instant::now() < until {
        let bind = Bind { from: folder.join("race/plain"), to: "/raced".into(), ..Bind::default() };
        let Ok(sandbox) = drill.sandbox(|spec| spec.mounts.push(bind)).await else {
            refused += 1;
            continue;
        };
        shown += 1;
        let read = drill.read(&sandbox, format!("/raced/{name}").as_bytes()).await;
        found += usize::from(read.is_ok_and(|text| contains(&text, settings.secret.as_bytes())));
        sandbox.destroy().await?;
    }
    drop(racer);
    racing.destroy().await?;
    let _ = std::fs::remove_dir_all(folder.join("race"));
    let control = "the canary lies in sloplet's own data";
    if !works {
        return Ok(Finding::inconclusive("", "no canary could be planted in sloplet's own data"));
    }
    if shown + refused == 0 {
        return Ok(Finding::inconclusive(control, "nothing was mounted during the race"));
    }
    let detail = format!("{} mounts during the race: {refused} refused, {found} showed the canary", shown + refused);
    Ok(Finding::judge(found == 0, control, detail))
}
