//! Virtual machines: from nothing to an agent that serves, against bare QEMU up to its first program. Ours start from a copy of
//! one that was booted before, which bare QEMU boots; the first machine, which has that one booted, is not counted.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, anyhow};
use sloplet_policy::{Isolation, Spec};

use super::names::{MACHINE, QEMU};
use crate::competitors::qemu::Qemu;
use crate::competitors::rootfs;
use crate::measure::{Contender, take_turns};
use crate::options::Options;
use crate::ours::{self, Ours};
use crate::print;
use crate::report::{Report, Table};
use crate::scratch::Scratch;

/// Measures and prints it.
pub fn measure(options: &Options, report: &mut Report, dir: &Scratch) -> Result<()> {
    let machines = prepare(options, dir);
    let contenders = match &machines {
        Ok((ours, bare, image)) => vec![
            Contender::new(QEMU, || bare.boot()),
            Contender::new(MACHINE, || {
                let started = Instant::now();
                let machine = ours.block_on(async |engine| ours::create_like(engine, machine(image)).await)?;
                let took = started.elapsed();
                ours.block_on(async |_| Ok(machine.destroy().await?))?;
                Ok(took)
            }),
        ],
        Err(error) => [QEMU, MACHINE].map(|name| Contender::missing(name, anyhow!("{error:#}"))).into(),
    };
    // Each takes seconds where the processor is emulated.
    let rows = take_turns(options.rounds().div_ceil(20), contenders)?;
    let table = Table { title: "A virtual machine".into(), rows };
    print::timings(&table, &[("bare", QEMU)]);
    report.timings.push(table);
    Ok(())
}

fn machine(image: &str) -> Spec {
    Spec { isolation: Isolation::Vm, image: image.to_owned(), ..Spec::default() }
}

/// An engine, a competitor with as much of everything, and an image. One machine is made before: the first has its disks made.
fn prepare(options: &Options, dir: &Scratch) -> Result<(Ours, Qemu, String)> {
    let binary = ours::find_binary(options.sloplet.as_deref())?;
    let image = rootfs::make(&dir.disk().join("machine"))?.display().to_string();
    let ours = Ours::with_machines(dir, Path::new(&binary))?;
    let first = ours.block_on(async |engine| ours::create_like(engine, machine(&image)).await)?;
    let limits = first.spec().limits.clone();
    ours.block_on(async |_| Ok(first.destroy().await?))?;
    let data = ours.block_on(async |engine| Ok(engine.places().data.clone()))?;
    let bare = Qemu::prepare(dir.disk(), &data, limits.memory.0, 2)?;
    Ok((ours, bare, image))
}
