//! A small root: one static program under several names.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::program;

/// Makes one in `dir` and returns its path.
pub fn make(dir: &Path) -> Result<PathBuf> {
    let busybox = program::find("busybox").context("a small root is needed: apt-get install busybox-static")?;
    let root = dir.join("rootfs");
    for folder in ["bin", "dev", "etc", "proc", "sys", "tmp"] {
        fs::create_dir_all(root.join(folder)).context("making a small root")?;
    }
    fs::copy(busybox, root.join("bin/busybox")).context("copying busybox")?;
    for name in ["true", "sleep", "sh", "echo"] {
        symlink("busybox", root.join("bin").join(name)).context("making a small root")?;
    }
    Ok(root)
}
