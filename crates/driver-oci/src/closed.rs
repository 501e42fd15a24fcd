//! A copy of a program that whoever does not own it can execute and not read.
//!
//! The kernel gives the memory of a process, and with it its entries in `/proc`, to the user namespace in which somebody could
//! have read its program. The host's binary is readable to all; this copy is not.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// For its owner everything, for others execution.
const MODE: u32 = 0o711;

/// The copy of this very version of `program`, made if there is none; older ones go. Whoever runs from one keeps it.
pub fn copy(program: &Path, data: &Path) -> io::Result<PathBuf> {
    let meta = fs::metadata(program)?;
    let name = format!("{}-{}-{}-{}", meta.len(), meta.mtime(), meta.mtime_nsec(), meta.ino());
    let folder = data.join("agents");
    let file = folder.join(&name);
    let whole = |found: &fs::Metadata| found.len() == meta.len() && found.permissions().mode() & 0o777 == MODE;
    if fs::symlink_metadata(&file).is_ok_and(|found| found.is_file() && whole(&found)) {
        return Ok(file);
    }
    fs::create_dir_all(&folder)?;
    let draft = folder.join(format!("{name}.{}", std::process::id()));
    fs::copy(program, &draft)?;
    fs::set_permissions(&draft, Permissions::from_mode(MODE))?;
    fs::rename(&draft, &file)?;
    // Drafts of other processes have a dot.
    for other in fs::read_dir(&folder)?.flatten().filter(|other| !other.file_name().to_string_lossy().contains('.')) {
        if other.path() != file {
            let _ = fs::remove_file(other.path());
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_made_once_and_replaced_with_its_program() {
        let data = tempfile::tempdir().unwrap();
        let program = data.path().join("program");
        fs::write(&program, "first").unwrap();
        let first = copy(&program, data.path()).unwrap();
        assert_eq!(fs::metadata(&first).unwrap().permissions().mode() & 0o777, MODE);
        let made = fs::metadata(&first).unwrap().modified().unwrap();
        assert_eq!(copy(&program, data.path()).unwrap(), first);
        assert_eq!(fs::metadata(&first).unwrap().modified().unwrap(), made);
        fs::write(&program, "another").unwrap();
        let second = copy(&program, data.path()).unwrap();
        assert_eq!(fs::read(&second).unwrap(), b"another");
        assert!(first == second || !first.exists(), "the old one is left");
    }
}
