//! `sloplet vm`

use std::path::{Path, PathBuf};

use sloplet_driver_vm::kvm::Kvm;
use sloplet_driver_vm::setup as machines;

use crate::cli::Vm;
use crate::setup;

pub fn run(data: Option<PathBuf>, command: Vm) -> anyhow::Result<u8> {
    let Vm::Setup { package } = command;
    let data = setup::places(data)?.data;
    let kernel = machines::run(&data, package.as_deref())?;
    say!("kernel {} in {}", kernel.version, kernel.image.display());
    let kvm = machines::try_kvm(&data, &kernel, Path::new(setup::PROGRAM))?;
    let accel = match kvm {
        Kvm::Works => "virtualised",
        _ => "emulated",
    };
    say!("the processor is {accel}: {}", kvm.describe());
    Ok(0)
}
