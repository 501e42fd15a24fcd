//! What is measured: a file for each table.

pub mod names;

mod agent;
mod density;
mod egress;
mod exec;
mod machine;
mod mask;
mod pools;
mod rate;
mod serve;
mod stages;
mod streaming;
mod whole;

use anyhow::Result;

use crate::options::{Options, SectionName};
use crate::print;
use crate::report::Report;
use crate::scratch::Scratch;

/// Measures and prints everything that is wanted.
pub fn run_all(options: &Options, report: &mut Report) -> Result<()> {
    print::machine(&report.machine);
    let dir = &Scratch::make()?;
    if [SectionName::Whole, SectionName::Exec, SectionName::Serve].into_iter().any(|section| options.wants(section)) {
        with_competitors(options, report, dir)?;
    }
    if options.wants(SectionName::Stages) {
        stages::measure(options, report, dir)?;
    }
    if options.wants(SectionName::Rate) {
        rate::measure(options, report, dir)?;
    }
    if options.wants(SectionName::Density) {
        density::measure(options, report, dir)?;
    }
    if options.wants(SectionName::Streaming) {
        streaming::measure(options, report, dir)?;
    }
    if options.wants(SectionName::Agent) {
        agent::measure(report, dir)?;
    }
    if options.wants(SectionName::Egress) {
        egress::measure(options, report, dir)?;
    }
    if options.wants(SectionName::Pools) {
        pools::measure(options, report, dir)?;
    }
    if options.wants(SectionName::Machine) {
        machine::measure(options, report, dir)?;
    }
    if options.wants(SectionName::Mask) {
        mask::measure(options, report, dir)?;
    }
    Ok(())
}

/// The sections that need the others: their engine is started once, and is gone before we measure memory.
fn with_competitors(options: &Options, report: &mut Report, dir: &Scratch) -> Result<()> {
    let rootfs = crate::competitors::rootfs::make(dir.disk());
    let docker = match &rootfs {
        Ok(rootfs) => crate::competitors::docker::Docker::start(dir.disk(), rootfs),
        Err(error) => Err(anyhow::anyhow!("{error:#}")),
    };
    if options.wants(SectionName::Whole) {
        whole::measure(options, report, dir, &rootfs, &docker)?;
    }
    if options.wants(SectionName::Exec) {
        exec::measure(options, report, dir, &rootfs, &docker)?;
    }
    if options.wants(SectionName::Serve) {
        serve::measure(options, report, dir, &docker)?;
    }
    Ok(())
}
