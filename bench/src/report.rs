//! The results.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

/// All results.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The machine.
    pub machine: Machine,
    /// Tables of times.
    pub timings: Vec<Table<Timing>>,
    /// Tables of other quantities.
    pub quantities: Vec<Table<Quantity>>,
    /// What was promised, and whether it holds.
    pub targets: Vec<Target>,
}

/// Where it was measured.
#[derive(Debug, Serialize)]
pub struct Machine {
    pub kernel: String,
    pub cpus: usize,
    /// Load average of the last minute, at the start: what else was going on.
    pub load: String,
}

/// One table.
#[derive(Debug, Clone, Serialize)]
pub struct Table<T> {
    pub title: String,
    pub rows: Vec<T>,
}

/// A row of times.
#[derive(Debug, Clone, Serialize)]
pub struct Timing {
    pub name: String,
    pub samples: usize,
    pub failures: usize,
    pub best_ms: f64,
    pub p50_ms: f64,
    pub p95_ms: f64,
    /// Why there are none.
    pub missing: Option<String>,
}

/// A row of another quantity.
#[derive(Debug, Clone, Serialize)]
pub struct Quantity {
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
}

impl Quantity {
    pub fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { name: name.into(), value, unit }
    }
}

/// A promise.
#[derive(Debug, Clone, Serialize)]
pub struct Target {
    pub promise: String,
    pub measured: String,
    /// `None` if it could not be measured.
    pub kept: Option<bool>,
}

impl Report {
    /// An empty one.
    pub fn new() -> Self {
        let system = rustix::system::uname();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let machine = Machine {
            kernel: system.release().to_string_lossy().into_owned(),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            load: load.split(' ').next().unwrap_or_default().to_owned(),
        };
        Self { machine, timings: Vec::new(), quantities: Vec::new(), targets: Vec::new() }
    }

    /// The median of a row, if it was measured.
    pub fn p50(&self, name: &str) -> Option<f64> {
        let mut rows = self.timings.iter().flat_map(|table| &table.rows);
        rows.find(|row| row.name == name).map(|row| row.p50_ms).filter(|p50| p50.is_finite())
    }

    /// Another quantity, if it was measured.
    pub fn value(&self, name: &str) -> Option<f64> {
        let mut rows = self.quantities.iter().flat_map(|table| &table.rows);
        rows.find(|row| row.name == name).map(|row| row.value)
    }

    /// Writes it as JSON.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
    }
}
