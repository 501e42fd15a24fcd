//! Set-user-ID files left in a folder of the host.

use std::os::unix::fs::PermissionsExt;

use sloplet_policy::{Bind, Feature};

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "set-id-files",
    ids: &[26],
    tries: "leave a set-user-ID program in a writable mount",
    why: "what is written there belongs to the folder's owner outside: whoever runs it becomes that owner",
    needs: &[Feature::OwnRoot],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let folder = drill.canaries.folder().join("writable");
    let path = folder.join("host").display().to_string();
    let control = drill.control(&["set-id", &path]).await?;
    let _ = std::fs::remove_file(folder.join("host"));
    if !drill.wall.claims(Feature::OwnUids) {
        // Whoever that is inside.
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777))?;
    }
    let bind = Bind { from: folder.clone(), to: "/shared".into(), writable: true, ..Bind::default() };
    let sandbox = drill.sandbox(|spec| spec.mounts.push(bind)).await?;
    let said = drill.act(&sandbox, &["set-id", "/shared/inside"]).await?;
    sandbox.destroy().await?;
    let left = std::fs::metadata(folder.join("inside")).map_or(0, |meta| meta.permissions().mode() & 0o6000);
    let _ = std::fs::remove_file(folder.join("inside"));
    if control.out != "4755" {
        return Ok(Finding::inconclusive(control.out, "such a file cannot be made on the host either"));
    }
    Ok(Finding::judge(left == 0, "mode 4755 on the host", format!("inside: {}; bits left outside: {left:o}", said.out)))
}
