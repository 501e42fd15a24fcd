//! The lowest layer below every stored image: the mount points and files that a sandbox needs and an image may lack.
//!
//! Verified layers are never changed; whatever the image itself has wins over this.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::error::ImageError;

/// Name of the layer; the number changes with its content.
pub(crate) const NAME: &str = "skeleton-1";

const DIRECTORIES: [(&str, u32); 12] = [
    ("proc", 0o555),
    ("sys", 0o555),
    ("dev", 0o755),
    ("tmp", 0o1777),
    ("run", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("root", 0o700),
    ("var", 0o755),
    ("var/tmp", 0o1777),
    ("mnt", 0o755),
    ("workspace", 0o755),
];

const EMPTY_FILES: [&str; 3] = ["etc/resolv.conf", "etc/hosts", "etc/hostname"];

/// Fills the empty directory `root`.
pub(crate) fn build(root: &Path) -> Result<(), ImageError> {
    let set_mode = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode));
    for (name, mode) in DIRECTORIES {
        let path = root.join(name);
        std::fs::create_dir(&path)
            .and_then(|()| set_mode(&path, mode))
            .map_err(|e| ImageError::store("create", &path, e))?;
    }
    if rustix::process::geteuid().is_root() {
        // Uid 1000 is `user` in every image that sloplet makes; unprivileged, everything is the caller's anyway.
        let path = root.join("workspace");
        std::os::unix::fs::lchown(&path, Some(1000), Some(1000)).map_err(|e| ImageError::store("chown", &path, e))?;
    }
    for name in EMPTY_FILES {
        let path = root.join(name);
        File::create_new(&path)
            .and_then(|_| set_mode(&path, 0o644))
            .map_err(|e| ImageError::store("create", &path, e))?;
    }
    set_mode(root, 0o755).map_err(|e| ImageError::store("chmod", root, e))
}
