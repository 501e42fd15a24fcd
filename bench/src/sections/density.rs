//! Many idle sandboxes at once: what each costs, and whether the last ones come slower than the first.

use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::names::{DENSITY_EACH, FIRST_CREATED, LAST_CREATED};
use crate::interrupt;
use crate::measure::Samples;
use crate::options::Options;
use crate::ours::{self, Ours};
use crate::print;
use crate::process_memory::{KernelMemory, of_family, of_kernel};
use crate::report::{Quantity, Report, Table};
use crate::scratch::Scratch;

const MIB: f64 = (1 << 20) as f64;

/// Measures and prints it.
pub fn measure(options: &Options, report: &mut Report, dir: &Scratch) -> Result<()> {
    // Each sandbox has a few descriptors here and some more in its spawner, which inherits this limit.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let count = options.sandboxes();
    let tenth = (count / 10).max(1);
    let ours = Ours::start(dir, 1)?;
    for _ in 0..3 {
        ours.block_on(ours::whole_life)?;
    }
    let before = State::now()?;
    let (mut first, mut last) = (Samples::default(), Samples::default());
    let mut sandboxes = Vec::with_capacity(count);
    ours.block_on(async |engine| {
        for number in 0..count {
            interrupt::check()?;
            tokio::time::sleep(Duration::from_millis(5)).await;
            let started = Instant::now();
            sandboxes.push(ours::create(engine).await?);
            if number < tenth {
                first.add(started.elapsed());
            } else if number >= count - tenth {
                last.add(started.elapsed());
            }
        }
        // What creation leaves to later is done by then.
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(())
    })?;
    let after = State::now()?;
    let destroying = Instant::now();
    ours.block_on(async |_| {
        for sandbox in sandboxes {
            sandbox.destroy().await?;
        }
        Ok(())
    })?;
    let destroyed = destroying.elapsed().as_secs_f64() * 1e3 / count as f64;

    let each = |bytes: f64| bytes / count as f64 / MIB;
    let processes = each(after.processes - before.processes);
    let slab = each(after.kernel.slab - before.kernel.slab);
    let other = each(after.kernel.other - before.kernel.other);
    let files = each(after.kernel.files - before.kernel.files);
    let rows = vec![
        Quantity::new("sandboxes at once", (after.count - before.count) as f64, "processes"),
        Quantity::new("each: processes (PSS, host's side included)", processes, "MiB"),
        Quantity::new("each: slab", slab, "MiB"),
        Quantity::new("each: stacks, page tables, per-CPU data", other, "MiB"),
        Quantity::new("each: files in memory", files, "MiB"),
        Quantity::new(DENSITY_EACH, processes + slab + other + files, "MiB"),
        Quantity::new(
            "each: fall of the machine's available memory",
            each(before.available() - after.available()),
            "MiB",
        ),
        Quantity::new("destroying one", destroyed, "ms"),
    ];
    let table = Table { title: format!("{count} idle sandboxes (noisy if others use the machine)"), rows };
    print::quantities(&table);
    report.quantities.push(table);
    let rows = vec![first.timing(FIRST_CREATED), last.timing(LAST_CREATED)];
    let table = Table { title: format!("Creation of {count} sandboxes, none of them destroyed"), rows };
    print::timings(&table, &[("first", FIRST_CREATED)]);
    report.timings.push(table);
    Ok(())
}

/// Memory of everything, at one moment.
struct State {
    processes: f64,
    count: usize,
    kernel: KernelMemory,
}

impl State {
    fn now() -> Result<Self> {
        let (processes, count) = of_family()?;
        Ok(Self { processes, count, kernel: of_kernel()? })
    }

    fn available(&self) -> f64 {
        self.kernel.available
    }
}
