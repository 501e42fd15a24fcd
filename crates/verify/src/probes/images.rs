//! Images that try to be mounted over.

use std::fs;
use std::os::unix::fs::symlink;

use sloplet_engine::Command;
use sloplet_policy::Feature;

use crate::drill::{Drill, DrillError, settle};
use crate::part::contains;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "hostile-images",
    ids: &[7, 8],
    tries: "images whose /proc, /dev or /dev/null is a symlink elsewhere",
    why: "CVE-2019-19921, CVE-2025-31133, CVE-2025-52565, CVE-2025-52881: masks and labels were put where the image led",
    needs: &[Feature::OwnRoot],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let mut said = Vec::new();
    let mut held = true;
    for (name, link, target) in [
        ("proc", "proc", "tmp/elsewhere"),
        ("dev", "dev", "/tmp"),
        ("null", "dev/null", "/proc/interrupts"),
        ("up", "proc", "../.."),
    ] {
        let root = drill.canaries.folder().join("private").join(format!("image-{name}"));
        for folder in ["tmp/elsewhere", "usr", "etc", "home/user"] {
            fs::create_dir_all(root.join(folder))?;
        }
        for folder in ["proc", "dev", "sys"].iter().filter(|folder| **folder != link) {
            fs::create_dir_all(root.join(folder))?;
        }
        symlink(target, root.join(link))?;
        let image = root.display().to_string();
        match drill.sandbox(|spec| spec.image.clone_from(&image)).await {
            Err(DrillError::Engine(error)) => said.push(format!("/{link} → {target}: refused ({error})")),
            Err(error) => return Err(error),
            Ok(sandbox) => {
                // It may start if the masks are where they belong.
                let look = |path: &str| Command { user: Some("0".into()), ..drill.words(&["cat", path]) };
                let masked =
                    drill.run(&sandbox, look("/proc/interrupts")).await.map(|said| said.out).unwrap_or_default();
                let open = contains(masked.as_bytes(), b"CPU0");
                held &= !open;
                said.push(format!("/{link} → {target}: started, masks {}", if open { "are off" } else { "hold" }));
                sandbox.destroy().await?;
            }
        }
        let _ = fs::remove_dir_all(&root);
    }
    if let Ok(images) = drill.engine.images() {
        let _ = images.gc();
    }
    let control = format!(
        "/proc/interrupts is readable on the host ({} bytes)",
        fs::read("/proc/interrupts").map_or(0, |text| text.len())
    );
    Ok(Finding::judge(held, control, said.join("; ")))
}
