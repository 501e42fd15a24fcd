//! A machine with its memory, saved in a folder: `state` (memory and devices), `disk` (what was written), `machine.json`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;
use sloplet_client::wire::{Exec, Target};
use sloplet_client::{Agent, ProcessEvent};
use sloplet_engine::DriverError;
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use crate::monitor::Monitor;
use crate::{boot, failed, guest, outer, qemu};

/// Memory and devices.
pub const STATE: &str = "state";
/// What was written.
pub const DISK: &str = "disk";
const RECORD: &str = "machine.json";

/// What a machine was made of: it can go on only with the same.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// Bytes of memory.
    pub memory: u64,
    /// Processors.
    pub cpus: u32,
    /// The folder that it was booted from.
    pub boot: PathBuf,
    /// The empty disk below what was written.
    pub empty: PathBuf,
    /// Its read-only disks.
    pub disks: Vec<(String, PathBuf)>,
    /// What the guest knows a visitor of its port by.
    pub password: String,
}

impl Record {
    /// Reads the record of a saved machine, and sees to it that all it names is there.
    pub fn read(folder: &Path) -> Result<Self, DriverError> {
        let step = "go on from a saved machine";
        let bytes = fs::read(folder.join(RECORD)).map_err(|error| failed(step, error))?;
        let record: Self = serde_json::from_slice(&bytes).map_err(|error| failed(step, error))?;
        let parts = record.disks.iter().map(|(_, path)| path).chain([&record.boot, &record.empty]);
        if let Some(gone) = parts.into_iter().find(|path| !path.exists()) {
            let detail =
                format!("{} is gone, with which it was made (by another build?): save it anew", gone.display());
            return Err(failed(step, detail));
        }
        Ok(record)
    }
}

/// Saves a machine that stands still meanwhile and goes on afterwards. Returns how many bytes the folder has then.
pub async fn save(agent: &Agent, record: &Record, folder: &Path) -> io::Result<u64> {
    let mut monitor = Monitor::open(agent).await?;
    monitor.run("stop", json!({})).await?;
    let moved = move_out(agent, &mut monitor, folder).await;
    // Whatever happened, it goes on.
    let went_on = monitor.run("cont", json!({})).await;
    let bytes = moved?;
    went_on?;
    fs::write(folder.join(RECORD), serde_json::to_vec(record)?)?;
    Ok(bytes)
}

async fn move_out(agent: &Agent, monitor: &mut Monitor, folder: &Path) -> io::Result<u64> {
    let other = |error: sloplet_client::ClientError| io::Error::other(error.to_string());
    let words = [
        format!("{}/{}", outer::BOOT, boot::HELPER),
        guest::SUBCOMMAND.into(),
        guest::CATCH.into(),
        qemu::CATCH_PORT.to_string(),
    ];
    let exec = Exec { argv: words.into_iter().map(|word| word.into_bytes().into()).collect(), ..Exec::default() };
    let mut helper = agent.exec(exec).await.map_err(other)?;
    let mut state = File::create(folder.join(STATE)).await?;
    let mut bytes = 0;
    let mut begun = false;
    while let Some(event) = helper.next().await {
        match event.map_err(other)? {
            ProcessEvent::Stdout(piece) if !begun => {
                if piece.as_ref() != b"ready\n" {
                    return Err(io::Error::other("the helper beside QEMU said something odd"));
                }
                begun = true;
                monitor.run("migrate-set-parameters", json!({ "max-bandwidth": 1u64 << 40 })).await?;
                monitor.run("migrate", json!({ "uri": format!("tcp:127.0.0.1:{}", qemu::CATCH_PORT) })).await?;
            }
            ProcessEvent::Stdout(piece) => {
                bytes += piece.len() as u64;
                state.write_all(&piece).await?;
            }
            ProcessEvent::Stderr(_) => {}
            ProcessEvent::Exited(exit) if exit.code == Some(0) || begun => break,
            ProcessEvent::Exited(_) => return Err(io::Error::other("the helper beside QEMU failed")),
        }
    }
    state.flush().await?;
    monitor.moved().await?;
    let target = Target { path: outer::DISK.as_bytes().to_vec().into(), ..Target::default() };
    let (_, mut content) = agent.read(target, 0, None).await.map_err(other)?;
    let mut disk = File::create(folder.join(DISK)).await?;
    while let Some(piece) = content.chunk().await.map_err(other)? {
        bytes += piece.len() as u64;
        disk.write_all(&piece).await?;
    }
    disk.flush().await?;
    Ok(bytes)
}

/// Lets a QEMU that waits for a saved state have it, and go on.
pub async fn restore(agent: &Agent) -> io::Result<()> {
    let mut monitor = Monitor::open(agent).await?;
    monitor.run("migrate-incoming", json!({ "uri": "fd:0" })).await?;
    monitor.moved().await?;
    monitor.run("cont", json!({})).await?;
    Ok(())
}
