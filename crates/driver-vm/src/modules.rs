//! Modules of a kernel, in the order in which they can be loaded.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use sloplet_engine::DriverError;

use crate::failed;
use crate::kernel::{Kernel, read_packed};

/// What drives disks.
pub const DISKS: &str = "virtio_blk";

/// What every machine needs.
const NEEDED: [&str; 5] = ["virtio_mmio", DISKS, "virtio_console", "erofs", "overlay"];

/// What the way out needs, where the kernel has it.
const WAY_OUT: [&str; 5] = ["nf_tables", "nft_tproxy", "nft_reject_ipv4", "nft_reject_ipv6", "nft_reject"];

/// A module.
#[derive(Debug)]
pub struct Module {
    /// Its name.
    pub name: String,
    /// Its code.
    pub code: Vec<u8>,
}

/// The modules that a guest loads, each after those that it needs.
pub fn of(kernel: &Kernel) -> Result<Vec<Module>, DriverError> {
    let mut search = Search { files: BTreeMap::new(), done: BTreeSet::new(), found: Vec::new() };
    walk(&kernel.modules.join("kernel"), 0, &mut search.files);
    let builtin = fs::read_to_string(kernel.modules.join("modules.builtin")).unwrap_or_default();
    search.done = builtin.lines().filter_map(|line| name_of(Path::new(line))).collect();
    for name in NEEDED {
        if !search.add(name)? {
            let detail = format!("the kernel {} has no {name}: use a cloud kernel", kernel.version);
            return Err(failed("gather the guest's modules", detail));
        }
    }
    for name in WAY_OUT {
        search.add(name)?;
    }
    // Checksums that ext4 and nf_tables ask for by name.
    search.add("crc32c_generic")?;
    Ok(search.found)
}

/// What the kernel lacks for a way out.
pub fn lacks_way_out(kernel: &Kernel) -> Option<&'static str> {
    let mut files = BTreeMap::new();
    walk(&kernel.modules.join("kernel"), 0, &mut files);
    let builtin = fs::read_to_string(kernel.modules.join("modules.builtin")).unwrap_or_default();
    let builtin: BTreeSet<String> = builtin.lines().filter_map(|line| name_of(Path::new(line))).collect();
    WAY_OUT.into_iter().find(|name| !files.contains_key(*name) && !builtin.contains(*name))
}

struct Search {
    files: BTreeMap<String, PathBuf>,
    done: BTreeSet<String>,
    found: Vec<Module>,
}

impl Search {
    /// Whether the kernel has it.
    fn add(&mut self, name: &str) -> Result<bool, DriverError> {
        if self.done.contains(name) {
            return Ok(true);
        }
        let Some(path) = self.files.get(name) else { return Ok(false) };
        self.done.insert(name.to_owned());
        let code = read_packed(path)?;
        for needed in needs(&code) {
            self.add(&needed)?;
        }
        self.found.push(Module { name: name.to_owned(), code });
        Ok(true)
    }
}

/// The modules that one says it needs.
fn needs(code: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = code.windows(KEY.len()).position(|part| part == KEY) else { return Vec::new() };
    let rest = &code[at + KEY.len()..];
    let text = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

fn name_of(path: &Path) -> Option<String> {
    let (name, _) = path.file_name()?.to_str()?.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

fn walk(dir: &Path, depth: usize, files: &mut BTreeMap<String, PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth < 12 => walk(&path, depth + 1, files),
            Ok(kind) if kind.is_file() => {
                if let Some(name) = name_of(&path) {
                    files.insert(name, path);
                }
            }
            _ => {}
        }
    }
}
