//! `sloplet vm`

use std::path::{Path, PathBuf};

use sloplet_driver_vm::kvm::Kvm;
use sloplet_driver_vm::setup as machines;

use crate::cli::Vm;
use crate::progress::ProgressLine;
use crate::setup;

pub fn run(data: Option<PathBuf>, command: Vm) -> anyhow::Result<u8> {
    let Vm::Setup { package } = command;
    let data = setup::places(data)?.data;
    let line = ProgressLine::of(match &package {
        Some(_) => "unpacking a kernel",
        None => "downloading a kernel",
    });
    let kernel = machines::run(&data, package.as_deref())?;
    line.clear();
    say!("kernel {} in {}", kernel.version, kernel.image.display());
    line.step("starting a machine, to see whether the processor can be virtualised");
    let kvm = machines::try_kvm(&data, &kernel, Path::new(setup::PROGRAM))?;
    drop(line);
    let accel = match kvm {
        Kvm::Works => "virtualised",
        _ => "emulated",
    };
    say!("the processor is {accel}: {}", kvm.describe());
    Ok(0)
}
