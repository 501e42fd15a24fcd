//! What of the host is readable: programs, and from `/etc` what they need and holds no secret, as in the image `host`.

use std::fs;
use std::path::{Path, PathBuf};

use sloplet_image::host_allowlist::{ETC, ETC_PREFIXES, SYSTEM_DIRS};

/// The paths that every sandbox may read and execute from; some may not exist.
pub fn readable() -> Vec<PathBuf> {
    readable_below(Path::new("/"))
}

fn readable_below(root: &Path) -> Vec<PathBuf> {
    let etc = root.join("etc");
    let versioned = fs::read_dir(&etc).into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name();
        let wanted = ETC_PREFIXES.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()));
        wanted.then(|| entry.path())
    });
    let programs = ["usr"].iter().chain(&SYSTEM_DIRS).map(|name| root.join(name));
    programs.chain(ETC.iter().map(|name| etc.join(name))).chain(versioned).filter(|path| is_harmless(path)).collect()
}

/// A link that leads elsewhere would open what it leads to, with all that is below.
fn is_harmless(path: &Path) -> bool {
    fs::canonicalize(path).is_ok_and(|target| {
        let allowed = |root: &str| target.starts_with(root);
        allowed("/usr") || allowed("/etc") && target != Path::new("/etc") || target == path
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_readable_and_secrets_are_not() {
        let readable = readable();
        let covered = |path: &str| readable.iter().any(|allowed| Path::new(path).starts_with(allowed));
        assert!(covered("/usr/bin/env"));
        for secret in ["/etc/shadow", "/etc/passwd", "/etc/ssh/x", "/etc/ssl/private/x", "/root/x", "/home/x", "/var/x"]
        {
            assert!(!covered(secret), "{secret}");
        }
    }

    #[test]
    fn a_link_that_leads_elsewhere_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("etc/fonts")).unwrap();
        std::os::unix::fs::symlink("/root", dir.path().join("etc/magic")).unwrap();
        std::os::unix::fs::symlink("/usr/share", dir.path().join("etc/terminfo")).unwrap();
        let readable = readable_below(&dir.path().canonicalize().unwrap());
        let names: Vec<_> = readable.iter().filter_map(|path| path.file_name()?.to_str()).collect();
        assert_eq!(names, ["fonts", "terminfo"]);
    }
}
