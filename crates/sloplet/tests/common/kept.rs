//! What a data folder holds besides records.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Layers, names of images, imports under way, volumes, memories and disks: a line for each.
pub fn kept(data: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for folder in ["images/layers", "images/names", "images/tmp", "volumes", "memory", "disks"] {
        for entry in fs::read_dir(data.join(folder)).into_iter().flatten().flatten() {
            found.insert(format!("{folder}/{}", entry.file_name().display()));
        }
    }
    // Empty disks are made once for each size.
    found.retain(|path| !path.starts_with("disks/ext4-"));
    found
}
