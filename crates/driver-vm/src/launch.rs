//! Starts QEMU in its sandbox.

use sloplet_client::wire::{Exec, Target};
use sloplet_client::{Agent, Process};
use sloplet_engine::{DriverError, Machine};

use crate::machine::QEMU_TAG;
use crate::qemu::Qemu;
use crate::saved::{self, Record};
use crate::{boot, failed, guest, outer, qcow2, qemu, relay};

/// Starts QEMU and the relay beside it in a sandbox that was made for them, for a machine with a disk of so many bytes.
pub(crate) async fn launch(
    sandbox: &dyn Machine,
    qemu: &Qemu,
    record: &Record,
    disk_bytes: u64,
    from: qemu::From,
) -> Result<(Agent, Process), DriverError> {
    let step = "start QEMU in its sandbox";
    let agent = Agent::connect(sandbox.connect().await?).await.map_err(|error| failed(step, error))?;
    let (below, format) = match record.disks_below.checked_sub(1) {
        Some(number) => (format!("{}/{}", outer::SAVED, saved::disk(number)), "qcow2"),
        None => (outer::EMPTY.to_owned(), "raw"),
    };
    let disk = qcow2::overlay(disk_bytes, &below, format);
    let target = Target { path: outer::DISK.as_bytes().to_vec().into(), ..Target::default() };
    let mut upload = agent.write(target, 0o600, false).await.map_err(|error| failed(step, error))?;
    upload.write(disk).await.map_err(|error| failed(step, error))?;
    upload.finish().await.map_err(|error| failed(step, error))?;
    let exec = Exec {
        argv: words(qemu, record, from).into_iter().map(|word| word.into_bytes().into()).collect(),
        env: vec![b"PATH=/usr/bin".to_vec().into()],
        cwd: Some(b"/tmp".to_vec().into()),
        background: true,
        tag: Some(QEMU_TAG.into()),
        ..Exec::default()
    };
    let process = agent.exec(exec).await.map_err(|error| failed(step, error))?;
    Ok((agent, process))
}

/// The relay with its arguments, and QEMU with its own.
fn words(qemu: &Qemu, record: &Record, from: qemu::From) -> Vec<String> {
    let disks: Vec<(String, String)> =
        record.disks.iter().map(|(name, _)| (name.clone(), outer::place(name))).collect();
    let start = qemu::Start {
        accel: record.accel,
        parallel: qemu.parallel,
        whole: record.whole,
        memory: record.memory,
        cpus: record.cpus,
        disks: &disks,
        disk: outer::DISK,
        kernel: &format!("{}/{}", outer::BOOT, boot::KERNEL),
        initrd: &format!("{}/{}", outer::BOOT, boot::INITRD),
        from,
    };
    let (none, saved) = (|| "-".to_owned(), |name| format!("{}/{name}", outer::SAVED));
    let (input, library, memory) = match from {
        qemu::From::Boot => (none(), none(), none()),
        qemu::From::Copy => (saved(saved::STATE), none(), saved(saved::RAM)),
        qemu::From::State => (saved(saved::STATE), none(), none()),
        qemu::From::Memory => (saved(saved::STATE), format!("{}/{}", outer::BOOT, boot::SHIM), none()),
    };
    let mut words = vec![
        format!("{}/{}", outer::BOOT, boot::HELPER),
        guest::SUBCOMMAND.into(),
        relay::WORD.into(),
        record.password.clone(),
        input,
        library,
        memory,
    ];
    words.extend(qemu::arguments(&qemu.program, &start));
    words
}
