//! Which build of the program a spawner is.
//!
//! A lasting spawner goes on as what it was started as when the binary is upgraded. Engines adopt it for the sandboxes
//! that it has, but have new ones made by a spawner of their own build.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What tells one build of `program` from another. Too many differences are harmless, too few are not: so it is about
/// the file, not about its version.
pub fn of(program: &Path) -> String {
    let version = env!("CARGO_PKG_VERSION");
    match fs::metadata(program) {
        Ok(file) => format!("{version} {:x}.{:x}.{:x}.{:x}", file.ino(), file.size(), file.mtime(), file.mtime_nsec()),
        Err(_) => version.to_owned(),
    }
}

/// This process's own build.
pub fn own() -> String {
    of(Path::new("/proc/self/exe"))
}
