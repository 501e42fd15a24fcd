//! A folder that is copied out to, while whoever is inside swaps parts of it for links.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use sloplet_client::ProcessEvent;
use sloplet_image::{CopyOut, Draft};
use sloplet_policy::{Bind, Feature};
use tar::{Builder, EntryType, Header};

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "copy-out",
    ids: &[65],
    tries: "lead 'sloplet cp' out of its target: planted links, and a folder that is swapped for a link meanwhile",
    why: "the target may be mounted in the sandbox, and whoever copies may write anywhere on the host",
    needs: &[Feature::OwnRoot],
    kind: Kind::Drill(run),
};

/// How long it is tried.
const WHILE: Duration = Duration::from_millis(1500);

/// How long the control may take to be led astray.
const PATIENCE: Duration = Duration::from_secs(10);

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let folder = drill.canaries.folder().join("writable");
    let (target, vault) = (folder.join("copied"), drill.canaries.folder().join("copy-vault"));
    fs::create_dir_all(&vault)?;
    if !drill.wall.claims(Feature::OwnUids) {
        // Whoever that is inside.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
    }
    let bind = Bind { from: folder.clone(), to: "/shared".into(), writable: true, ..Bind::default() };
    let racing = drill.sandbox(|spec| spec.mounts.push(bind)).await?;
    let millis = (PATIENCE + WHILE * 2).as_millis().to_string();
    let words = drill.words(&["exchange", "/shared/copied", &vault.display().to_string(), &millis]);
    let mut racer = racing.exec(words).await?;
    if let Some(event) = racer.next().await {
        let _: ProcessEvent = event?;
    }
    let finding = race(drill, &target, &vault);
    drop(racer);
    racing.destroy().await?;
    let _ = fs::remove_dir_all(&target);
    let _ = fs::remove_dir_all(&vault);
    Ok(finding?)
}

fn race(drill: &Drill<'_>, target: &Path, vault: &Path) -> std::io::Result<Finding> {
    // The control: a program that writes by path is led astray.
    let until = Instant::now() + PATIENCE;
    while !vault.join("control").exists() {
        if Instant::now() > until {
            return Ok(Finding::inconclusive("", "nothing was swapped while a careless program wrote"));
        }
        let _ = fs::write(target.join("plain/control"), "by path");
    }
    let control = "a program that writes by path is led out of the folder";
    let archive = archive()?;
    let until = Instant::now() + WHILE;
    let (mut whole, mut refused) = (0, 0);
    while Instant::now() < until {
        let copy = CopyOut::into(target).map(|copy| match drill.spec.lacks("copy-out") {
            true => copy.carelessly(),
            false => copy,
        });
        match copy.and_then(|copy| copy.unpack(&archive[..])) {
            Ok(()) => whole += 1,
            Err(_) => refused += 1,
        }
    }
    let single = single_file(target, vault)?;
    let escaped = vault.join("escaped").exists();
    let detail = format!(
        "{} copies during the race: {refused} refused, {} outside the folder; a single file {} a planted link",
        whole + refused,
        if escaped { "some" } else { "none" },
        if single { "was not written through" } else { "was written through" },
    );
    Ok(Finding::judge(!escaped && single, control, detail))
}

/// Copies a single file over planted links; whether what they lead to is as it was.
fn single_file(target: &Path, vault: &Path) -> std::io::Result<bool> {
    let precious = vault.join("precious");
    fs::write(&precious, "precious")?;
    for name in ["result.txt", "result.txt.part"] {
        let _ = std::os::unix::fs::symlink(&precious, target.join(name));
    }
    let mut draft = Draft::of(&target.join("result.txt"))?;
    draft.file().write_all(b"new")?;
    draft.keep()?;
    Ok(fs::read_to_string(&precious)? == "precious")
}

/// A folder of the name that is swapped, with a file in it.
fn archive() -> std::io::Result<Vec<u8>> {
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    for (path, kind, content) in
        [("plain/", EntryType::Directory, &b""[..]), ("plain/escaped", EntryType::Regular, b"x")]
    {
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, path, content)?;
    }
    builder.into_inner()
}
