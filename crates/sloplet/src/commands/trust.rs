//! `sloplet trust`

use std::path::{Path, PathBuf};

use anyhow::bail;
use sloplet_engine::Trust;
use sloplet_policy::file::NAME;

use crate::{setup, terminal};

pub fn run(data: Option<PathBuf>, path: Option<PathBuf>, revoke: bool, list: bool) -> anyhow::Result<u8> {
    let trust = Trust::of(&setup::places(data)?.data);
    if list {
        trust.list()?.iter().for_each(|vouched| say!("{}  {}", vouched.sha256, terminal::harmless(&vouched.path)));
        return Ok(0);
    }
    let path = match path {
        Some(folder) if folder.is_dir() => folder.join(NAME),
        Some(path) => path,
        None => Path::new(NAME).to_owned(),
    };
    let shown = |path: &Path| terminal::harmless(&path.display().to_string());
    if revoke {
        if !trust.revoke(&path)? {
            bail!("{} was not trusted: see 'sloplet trust --list'", path.display());
        }
        say!("{} is trusted no longer: it may tighten and nothing else", shown(&path));
        return Ok(0);
    }
    let (path, settings) = trust.vouch(&path)?;
    match settings.as_slice() {
        [] => say!("trusted {} as it is now: it only tightens", shown(&path)),
        settings => say!("trusted {} as it is now, with its {}", shown(&path), settings.join(", ")),
    }
    Ok(0)
}
