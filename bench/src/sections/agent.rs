//! Memory of an idle agent.

use std::time::Duration;

use anyhow::{Context, Result};

use super::names::AGENT_PRIVATE;
use crate::ours::{self, Ours};
use crate::print;
use crate::process_memory;
use crate::report::{Quantity, Report, Table};
use crate::scratch::Scratch;

const MIB: f64 = (1 << 20) as f64;

/// Measures and prints it.
pub fn measure(report: &mut Report, dir: &Scratch) -> Result<()> {
    let ours = Ours::start(dir, 1)?;
    let (idle, used) = ours.block_on(async |engine| {
        let sandbox = ours::create(engine).await?;
        let pid = sandbox.pid().context("the sandbox has no pid")? as u32;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let idle = process_memory::of(pid)?;
        ours::exec_true(&sandbox).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let used = process_memory::of(pid)?;
        sandbox.destroy().await?;
        Ok((idle, used))
    })?;
    let rows = vec![
        Quantity::new(AGENT_PRIVATE, idle.private / MIB, "MiB"),
        Quantity::new("its share of everything it maps", idle.proportional / MIB, "MiB"),
        Quantity::new("private memory after a command", used.private / MIB, "MiB"),
    ];
    let table = Table { title: "An idle agent".into(), rows };
    print::quantities(&table);
    report.quantities.push(table);
    Ok(())
}
