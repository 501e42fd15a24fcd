//! Bare QEMU: a kernel, and a first program that says that it is there.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sloplet_driver_vm::accel::Accel;
use sloplet_driver_vm::cpio::Archive;
use sloplet_driver_vm::{kernel, qemu};

use super::program;

/// What the first program says.
const READY: &str = "ready";

/// A machine of one program.
pub struct Qemu {
    program: PathBuf,
    kernel: PathBuf,
    initrd: PathBuf,
    memory: u64,
    cpus: u32,
}

impl Qemu {
    /// With the kernel that `data` would boot, and so much of everything.
    pub fn prepare(dir: &Path, data: &Path, memory: u64, cpus: u32) -> Result<Self> {
        let program = qemu::find().context("qemu-system-x86_64 is not installed")?;
        let found = kernel::find(data)?;
        let packed = fs::read(&found.image).context("reading the kernel")?;
        let (kernel, initrd) = (dir.join("kernel"), dir.join("initrd"));
        // As ours is: unpacking it in the guest would take longer than all the rest.
        fs::write(&kernel, kernel::unpack(&packed).unwrap_or(packed)).context("keeping the kernel")?;
        let busybox = fs::read(program::find("busybox")?).context("reading busybox")?;
        let mut archive = Archive::new(File::create(&initrd).context("making a first root")?);
        archive.folder("dev")?;
        archive.folder("bin")?;
        archive.device("dev/console", 5, 1)?;
        archive.file("bin/busybox", &busybox)?;
        archive.file(
            "init",
            format!("#!/bin/busybox sh\n/bin/busybox echo {READY}\nexec /bin/busybox sleep 60\n").as_bytes(),
        )?;
        archive.finish()?.flush()?;
        Ok(Self { program, kernel, initrd, memory, cpus })
    }

    /// From nothing to the first program's word, with the flags and the kernel's options of our own machines.
    pub fn boot(&self) -> Result<Duration> {
        let mut command = Command::new(&self.program);
        command.args(
            "-nodefaults -no-user-config -display none -no-reboot -accel tcg,thread=multi,tb-size=128".split(' '),
        );
        command
            .args("-machine microvm,acpi=on,pcie=off,usb=off,pit=off,pic=off,rtc=on,graphics=off -cpu max".split(' '));
        command.args(["-m", &format!("{}B", self.memory), "-smp", &self.cpus.to_string(), "-serial", "stdio"]);
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.initrd);
        command.arg("-append").arg(Accel::Tcg.kernel_options());
        let started = Instant::now();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut said = false;
        if let Some(stdout) = child.stdout.take() {
            said = BufReader::new(stdout).lines().map_while(Result::ok).any(|line| line.contains(READY));
        }
        let took = started.elapsed();
        let _ = child.kill();
        let _ = child.wait();
        ensure!(said, "the guest ended without a word");
        Ok(took)
    }
}
