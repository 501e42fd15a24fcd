//! What is left of keys that are put in outside.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::json;
use sloplet_policy::Feature;

use super::ALLOWED;
use crate::drill::{Drill, DrillError, settle};
use crate::part::contains;
use crate::probe::{Finding, Kind, Pending, Probe};
use crate::served::{NOT_IMPLEMENTED, Served};

pub const PROBE: Probe = Probe {
    name: "secret-traces",
    ids: &[61],
    tries: "find a key's real value in a snapshot of the sandbox that has it, in a server's ledger and in its log",
    why: "snapshots are shared and records are shown to others; both outlive the sandbox and its key",
    needs: &[Feature::Egress, Feature::OwnRoot],
    kind: Kind::Drill(run),
};

/// The variable inside.
const NAME: &str = "SLOPLET_VERIFY_KEY";

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let server = Served::start(drill).await?;
    let found = search(drill, &server).await;
    server.end().await?;
    found
}

async fn search(drill: &Drill<'_>, server: &Served) -> Result<Finding, DrillError> {
    let real = format!("real-{}", sloplet_engine::engine::new_secret());
    let secrets = json!([{"name": NAME, "hosts": [ALLOWED], "value": real}]);
    let made = server.create_with(drill, 64, secrets).await?;
    let id = made["id"].as_str().unwrap_or_default();
    // Whatever a program inside can get hold of, it keeps.
    let shown = server.act(drill, id, &["variable", NAME]).await?;
    server.act(drill, id, &["put", "/tmp/kept", &shown]).await?;
    let snapshot = server.own("POST", &format!("/v1/sandboxes/{id}/snapshot"), None).await?;
    // Somebody on the host gives the real value away in a command, and the record tells of the command.
    let mark = format!("mark-{}", sloplet_engine::engine::new_id());
    server.act(drill, id, &["variable", &format!("{mark}-{real}")]).await?;
    // What is recorded is written at the latest when somebody asks for it.
    server.own("GET", &format!("/v1/audit?sandbox={id}"), None).await?;
    let data = server.folder().join("data");
    let places = [
        ("a snapshot", data.join("images")),
        ("the ledger", data.join("ledger")),
        ("the log", server.folder().join("log")),
    ];
    let there = [&shown, &mark, id];
    let snapshots = snapshot.status != NOT_IMPLEMENTED;
    let control = match snapshots {
        true => {
            "the search finds the placeholder in the snapshot, the command in the ledger, and the sandbox in the log"
        }
        false => "the search finds the command in the ledger, and the sandbox in the log; this wall has no snapshots",
    };
    let mut out = Vec::new();
    for ((name, place), must) in places.iter().zip(there).skip(usize::from(!snapshots)) {
        if must.is_empty() || find(place, must.as_bytes())?.is_none() {
            let why = format!("not even what must be in {name} is found there (snapshot: {})", snapshot.status);
            return Ok(Finding::inconclusive("", why));
        }
        if let Some(path) = find(place, real.as_bytes())? {
            out.push(format!("{name} has it: {}", path.file_name().unwrap_or_default().to_string_lossy()));
        }
    }
    Ok(match out.is_empty() {
        true => Finding::contained(control, "no snapshot, record or line of the log has the real value"),
        false => Finding::breach(control, out.join("; ")),
    })
}

/// The first file at or below a path that has a text in it, however large it is.
fn find(path: &Path, text: &[u8]) -> std::io::Result<Option<PathBuf>> {
    let searched = || -> std::io::Result<Option<PathBuf>> {
        let kind = path.symlink_metadata()?.file_type();
        if kind.is_dir() {
            for entry in std::fs::read_dir(path)? {
                if let Some(found) = find(&entry?.path(), text)? {
                    return Ok(Some(found));
                }
            }
            return Ok(None);
        }
        let has = kind.is_file() && contains(&std::fs::read(path)?, text);
        Ok(has.then(|| path.to_owned()))
    };
    match searched() {
        // It went in the meantime, as files of a server do, or it is closed to this user, too.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => Ok(None),
        searched => searched,
    }
}
