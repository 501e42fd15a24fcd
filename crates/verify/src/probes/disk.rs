//! Full disks.

use sloplet_policy::{ByteSize, Feature};

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "disk-fill",
    ids: &[41],
    tries: "more bytes and more files than the limit, and a file of 1 EiB",
    why: "a host with a full disk loses its own data",
    needs: &[Feature::Disk, Feature::OwnRoot],
    kind: Kind::Drill(run),
};

const LIMIT: u64 = 8;
const FILES: u64 = 256;

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let folder = drill.canaries.folder().join("writable");
    let (path, many) = (folder.join("fill").display().to_string(), folder.join("files").display().to_string());
    let bytes = ((2 * LIMIT) << 20).to_string();
    let count = (2 * FILES).to_string();
    let filled = drill.control(&["fill", &path, &bytes]).await?.number();
    let files = drill.control(&["files", &many, &count]).await?.number();
    let said = format!("{filled} bytes and {files} files on the host");
    if filled < (2 * LIMIT) << 20 || files < 2 * FILES {
        return Ok(Finding::inconclusive(said, "that much cannot be written on the host either"));
    }
    let change = |spec: &mut sloplet_policy::Spec| {
        spec.limits.disk = ByteSize::mib(LIMIT);
        spec.limits.inodes = Some(FILES);
    };
    let sandbox = drill.sandbox(change).await?;
    let written = drill.act(&sandbox, &["fill", "/tmp/fill", &bytes]).await?.number();
    let made = drill.act(&sandbox, &["files", "/tmp/files", &count]).await?.number();
    let extended = drill.act(&sandbox, &["extend", "/tmp/large"]).await?.out;
    let serves = drill.serves(&sandbox).await;
    sandbox.destroy().await?;
    // A file without content takes no space, however long it claims to be.
    let held = written <= LIMIT << 20 && made <= FILES && serves;
    let detail =
        format!("with limits of {LIMIT} MiB and {FILES} files: {written} bytes, {made} files; 1 EiB: {extended}");
    Ok(Finding::judge(held, said, detail))
}
