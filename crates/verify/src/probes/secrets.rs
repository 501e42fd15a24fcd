//! The host's secrets: variables, and texts in files.

use std::path::{Path, PathBuf};

use crate::part::{Parts, contains, head, nothing};
use crate::probe::{Kind, Probe};
use crate::settings::{Settings, digest_of};

pub const PROBE: Probe = Probe {
    name: "host-secrets",
    ids: &[61],
    tries: "find the host's variables in the environment, and a planted text in any file or process",
    why: "keys are kept in variables and in files of the home folder; what is not there cannot leak",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

/// Files looked into, at most.
const FILES: usize = 20_000;

fn parts(_: &Settings, parts: &mut Parts) {
    parts.add("variables", |settings| {
        let found = std::env::vars().find(|(name, value)| settings.variables.contains(&digest_of(name, value)));
        match found {
            Some((name, _)) => Ok(format!("the variable {name}")),
            None => nothing("none of the host's"),
        }
    });
    parts.add("files", |settings| {
        let roots = if settings.inside {
            vec![PathBuf::from("/")]
        } else {
            vec![settings.canary.parent().unwrap_or(Path::new("/")).to_owned()]
        };
        let mut left = FILES;
        match roots.iter().find_map(|root| search(root, settings.secret.as_bytes(), &mut left, 0)) {
            Some(path) => Ok(path.display().to_string()),
            None => nothing(format!("in none of {} files", FILES - left)),
        }
    });
    for place in ["canary", "others"] {
        parts.add(format!("the planted files: {place}"), move |settings| {
            let name = settings.canary.file_name().unwrap_or_default();
            let paths: Vec<PathBuf> = match place {
                "canary" => vec![settings.canary.clone()],
                _ => settings.planted.iter().map(|folder| folder.join(name)).collect(),
            };
            match paths
                .iter()
                .find(|path| head(path, 4096).is_ok_and(|text| contains(&text, settings.secret.as_bytes())))
            {
                Some(path) => Ok(path.display().to_string()),
                None => nothing("not there"),
            }
        });
    }
    parts.add("processes", |settings| {
        let own = std::process::id().to_string();
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name == own || name.parse::<u32>().is_err() {
                continue;
            }
            for file in ["environ", "cmdline"] {
                if head(entry.path().join(file), 1 << 20).is_ok_and(|text| contains(&text, settings.secret.as_bytes()))
                {
                    return Ok(format!("/proc/{name}/{file}"));
                }
            }
        }
        nothing("in none")
    });
}

/// The first file below a folder that has a text in it, or in its name.
pub fn search(folder: &Path, text: &[u8], left: &mut usize, depth: usize) -> Option<PathBuf> {
    let skipped = ["/usr", "/proc", "/sys", "/dev", "/bin", "/sbin", "/lib", "/lib64", "/sloplet-probe"];
    if depth > 12 || *left == 0 || skipped.iter().any(|path| folder == Path::new(path)) {
        return None;
    }
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
        if contains(entry.file_name().as_encoded_bytes(), text) {
            return Some(path);
        }
        if kind.is_dir() {
            if let Some(found) = search(&path, text, left, depth + 1) {
                return Some(found);
            }
        } else if kind.is_file() && *left > 0 && entry.metadata().is_ok_and(|meta| meta.len() < 4 << 20) {
            *left -= 1;
            if head(&path, 4 << 20).is_ok_and(|bytes| contains(&bytes, text)) {
                return Some(path);
            }
        }
    }
    None
}
