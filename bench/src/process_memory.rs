//! What processes and the kernel hold, from `/proc`.

use std::collections::{HashMap, HashSet};
use std::fs;

use anyhow::{Context, Result};

const KIB: f64 = 1024.0;

/// Memory of a process, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessMemory {
    /// Its share of everything it maps.
    pub proportional: f64,
    /// What only it maps.
    pub private: f64,
}

/// Memory of one process.
pub fn of(pid: u32) -> Result<ProcessMemory> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let fields = fields(&fs::read_to_string(&path).with_context(|| format!("reading {path}"))?);
    let field = |name: &str| fields.get(name).copied().unwrap_or_default();
    Ok(ProcessMemory { proportional: field("Pss"), private: field("Private_Clean") + field("Private_Dirty") })
}

/// Shares of this process and all its descendants together, in bytes, and how many these are.
pub fn of_family() -> Result<(f64, usize)> {
    let mut parents: HashMap<u32, u32> = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // The name in the second field may contain anything: count from its closing parenthesis.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let mut family = HashSet::from([std::process::id()]);
    loop {
        let more: Vec<u32> = parents
            .iter()
            .filter(|(pid, parent)| family.contains(parent) && !family.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            break;
        }
        family.extend(more);
    }
    let total = family.iter().filter_map(|pid| of(*pid).ok()).map(|memory| memory.proportional).sum();
    Ok((total, family.len()))
}

/// What the kernel holds, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct KernelMemory {
    /// Objects: inodes, dentries, mounts, sockets, tasks.
    pub slab: f64,
    /// Stacks, page tables, per-processor data.
    pub other: f64,
    /// Files in memory.
    pub files: f64,
    /// What could be had without swapping.
    pub available: f64,
}

/// What the kernel holds now.
pub fn of_kernel() -> Result<KernelMemory> {
    let fields = fields(&fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?);
    let field = |name: &str| fields.get(name).copied().unwrap_or_default();
    Ok(KernelMemory {
        slab: field("Slab"),
        other: field("KernelStack") + field("PageTables") + field("Percpu"),
        files: field("Shmem"),
        available: field("MemAvailable"),
    })
}

/// Resident memory of this process, in bytes: now, and the most since [`forget_peak`].
pub fn resident() -> Result<(f64, f64)> {
    let fields = fields(&fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?);
    let field = |name: &str| fields.get(name).copied().unwrap_or_default();
    Ok((field("VmRSS"), field("VmHWM")))
}

/// Starts anew to look for the peak.
pub fn forget_peak() -> Result<()> {
    fs::write("/proc/self/clear_refs", "5").context("resetting the peak of resident memory")
}

/// Lines of the form `Name:  123 kB`.
fn fields(text: &str) -> HashMap<String, f64> {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_owned(), value.trim().strip_suffix(" kB")?.parse::<f64>().ok()? * KIB))
        })
        .collect()
}
