//! `sloplet vm`

use std::path::PathBuf;

use sloplet_driver_vm::setup as machines;

use crate::cli::Vm;
use crate::setup;

pub fn run(data: Option<PathBuf>, command: Vm) -> anyhow::Result<u8> {
    let Vm::Setup { package } = command;
    let kernel = machines::run(&setup::places(data)?.data, package.as_deref())?;
    say!("kernel {} in {}", kernel.version, kernel.image.display());
    Ok(0)
}
