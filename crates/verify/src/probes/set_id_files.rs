//! Set-user-ID files left in a folder of the host.

use std::os::unix::fs::PermissionsExt;

use sloplet_policy::{Bind, Feature};

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "set-id-files",
    ids: &[26],
    tries: "leave a set-user-ID program in a writable mount, by a command and by a file request",
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
    // The agent's file requests are not under the filter that commands are under.
    drill.act(&sandbox, &["put", "/shared/by-request", "x"]).await?;
    let asked = sandbox.agent().set_mode(drill.target("/shared/by-request"), 0o4755).await;
    sandbox.destroy().await?;
    let bits = |name: &str| std::fs::metadata(folder.join(name)).map_or(0, |meta| meta.permissions().mode() & 0o6000);
    let left = bits("inside") | bits("by-request");
    for name in ["inside", "by-request"] {
        let _ = std::fs::remove_file(folder.join(name));
    }
    if control.out != "4755" {
        return Ok(Finding::inconclusive(control.out, "such a file cannot be made on the host either"));
    }
    let asked = if asked.is_ok() { "granted" } else { "refused" };
    let detail = format!("inside: {}; by a file request: {asked}; bits left outside: {left:o}", said.out);
    Ok(Finding::judge(left == 0, "mode 4755 on the host", detail))
}
