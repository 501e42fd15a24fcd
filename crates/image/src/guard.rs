//! The last look at an image before it is stored: what a sandbox mounts over must be real directories.
//!
//! A symbolic link in such a place sends a runtime's own mounts or writes elsewhere (CVE-2019-19921 for /proc,
//! CVE-2025-31133 and CVE-2025-52565 for /dev/null and /dev/pts, CVE-2025-52881 for fake proc files). The look is at
//! the merged tree, since each layer alone may be innocent.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::ImageError;
use crate::unpack::OPAQUE_XATTR;

/// Must be directories, or absent.
const DIRECTORIES: [&str; 10] =
    ["proc", "sys", "dev", "dev/pts", "dev/shm", "dev/mqueue", "dev/net", "etc", "tmp", "run"];

/// Must not be symbolic links.
const NO_LINKS: [&str; 8] =
    ["dev/null", "dev/zero", "dev/full", "dev/random", "dev/urandom", "dev/tty", "dev/console", "dev/kmsg"];

/// Refuses the image when the tree merged from `layers` (top first) has a trap in it.
pub(crate) fn check_mount_points(layers: &[PathBuf]) -> Result<(), ImageError> {
    for (paths, only_directories) in [(&DIRECTORIES[..], true), (&NO_LINKS[..], false)] {
        for path in paths {
            let Some(found) = merged(layers, Path::new(path)) else {
                continue;
            };
            if found.is_symlink() {
                return Err(ImageError::refused(path.as_bytes(), "a symbolic link where a sandbox mounts its own"));
            }
            if only_directories && !found.is_dir() {
                return Err(ImageError::refused(
                    path.as_bytes(),
                    "not a directory, but a sandbox mounts its own there",
                ));
            }
        }
    }
    Ok(())
}

/// What `path` is in the merged tree, without following links.
pub(crate) fn merged(layers: &[PathBuf], path: &Path) -> Option<std::fs::FileType> {
    for layer in layers {
        let mut at = layer.clone();
        let mut hides_lower = false;
        let mut depth = 0;
        let total = path.components().count();
        for component in path.components() {
            at.push(component);
            let Ok(metadata) = std::fs::symlink_metadata(&at) else {
                break;
            };
            let kind = metadata.file_type();
            depth += 1;
            if kind.is_char_device() && metadata.rdev() == 0 {
                return None; // whiteout
            }
            if depth == total || !kind.is_dir() {
                // A link or file above the wanted path is what a walker would meet there.
                return Some(kind);
            }
            hides_lower |= is_opaque(&at);
        }
        if hides_lower {
            return None;
        }
    }
    None
}

pub(crate) fn is_opaque(dir: &Path) -> bool {
    let mut value = [0u8; 8];
    matches!(rustix::fs::lgetxattr(dir, OPAQUE_XATTR, &mut value[..]), Ok(n) if value[..n] == *b"y")
}
