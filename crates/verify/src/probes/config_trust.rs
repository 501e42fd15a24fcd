//! A `sloplet.toml` that nobody has vouched for.

use std::fs;
use std::path::Path;

use sloplet_engine::Trust;
use sloplet_engine::trust::TrustError;

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "config-trust",
    ids: &[65],
    tries: "have a planted sloplet.toml run a program on the host, mount folders, open the network and weaken the wall",
    why: "code inside may write one into a mounted folder, and a cloned repository may bring one along",
    needs: &[],
    kind: Kind::Drill(run),
};

/// What such a file would like.
const WISHES: [&str; 6] = [
    "[secrets.K]\nhosts = [\"example.com\"]\nfrom = \"command\"\ncommand = [\"true\"]\n",
    "[secrets.K]\nhosts = [\"example.com\"]\nfrom = \"file\"\npath = \"/etc/hostname\"\n",
    "[sandbox]\nmounts = [\"/:/host\"]\n",
    "[sandbox]\nisolation = \"process\"\n",
    "[sandbox]\nbest_effort = true\n",
    "[network]\ninternet = true\n",
];

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(async { attack(drill).map_err(DrillError::from) })
}

fn attack(drill: &Drill<'_>) -> std::io::Result<Finding> {
    let folder = drill.canaries.folder().join("planted-config");
    fs::create_dir_all(&folder)?;
    let finding = try_all(drill, &folder);
    fs::remove_dir_all(&folder)?;
    finding
}

fn try_all(drill: &Drill<'_>, folder: &Path) -> std::io::Result<Finding> {
    let file = folder.join(sloplet_policy::file::NAME);
    // What is trusted on this host is asked; what is trusted here for the control is nobody else's.
    let (host, own) = (Trust::of(&drill.engine.places().data), Trust::of(&folder.join("data")));
    let (mut taken, mut working) = (Vec::new(), 0);
    for wish in WISHES {
        fs::write(&file, wish)?;
        match host.settings(None, folder, &[]) {
            Err(TrustError::Untrusted { .. }) => {}
            Ok(_) => taken.push(wish.replace('\n', " ")),
            Err(error) => return Ok(Finding::inconclusive("", error.to_string())),
        }
        own.vouch(&file).map_err(std::io::Error::other)?;
        working += usize::from(own.settings(None, folder, &[]).is_ok());
    }
    if working != WISHES.len() {
        return Ok(Finding::inconclusive("", "a file that is trusted is not used either"));
    }
    let detail = match taken.is_empty() {
        true => format!("{working} files, all refused"),
        false => format!("taken: {}", taken.join("; ")),
    };
    Ok(Finding::judge(taken.is_empty(), "each is used once it is trusted", detail))
}
