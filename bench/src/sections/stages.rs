//! The steps of a sandbox's life in the library.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::interrupt;
use crate::measure::Samples;
use crate::options::Options;
use crate::ours::{self, Ours};
use crate::print;
use crate::report::{Report, Table};
use crate::scratch::Scratch;

const STAGES: [&str; 5] = ["create → ready", "first exec", "second exec", "ping", "destroy"];

/// Measures and prints it.
pub fn measure(options: &Options, report: &mut Report, dir: &Scratch) -> Result<()> {
    let ours = Ours::start(dir, 1)?;
    ours.block_on(ours::whole_life)?;
    let mut samples: [Samples; STAGES.len()] = Default::default();
    for _ in 0..options.rounds() {
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(12));
        ours.block_on(async |engine| {
            let mut since = Instant::now();
            let mut lap = |stage: &mut Samples| {
                stage.add(since.elapsed());
                since = Instant::now();
            };
            let [create, first, second, ping, destroy] = &mut samples;
            let sandbox = ours::create(engine).await?;
            lap(create);
            ours::exec_true(&sandbox).await?;
            lap(first);
            ours::exec_true(&sandbox).await?;
            lap(second);
            sandbox.agent().ping().await?;
            lap(ping);
            sandbox.destroy().await?;
            lap(destroy);
            Ok(())
        })?;
    }
    let rows = STAGES.iter().zip(samples).map(|(name, samples)| samples.timing(name)).collect();
    let table = Table { title: "A sandbox's life in the library, step by step".into(), rows };
    print::timings(&table, &[]);
    report.timings.push(table);
    Ok(())
}
