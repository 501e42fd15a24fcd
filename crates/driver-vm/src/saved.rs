//! A machine with its memory, saved in a folder: `ram` (its memory), `state` (its devices), `disk0` (what was
//! written), `machine.json`. All machines that go on from there map the same `ram`, and have what they change for themselves. The memory
//! of such a one is no file of its own: if it is saved again, its memory is in `state`, and read from there.

use std::fs;
use std::io::{self, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;
use sloplet_client::wire::{Exec, Target};
use sloplet_client::{Agent, Process, ProcessEvent};
use sloplet_engine::DriverError;
use tokio::fs::File;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};

use crate::accel::Accel;
use crate::monitor::Monitor;
use crate::{boot, failed, guest, outer, qemu};

/// Memory.
pub const RAM: &str = "ram";
/// Devices; also the memory, if it was no file.
pub const STATE: &str = "state";
const RECORD: &str = "machine.json";

/// What was written before the machine was saved for the first, second … time: each shows those before it.
pub fn disk(number: u32) -> String {
    format!("disk{number}")
}

/// What a machine was made of: it can go on only with the same.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// What runs its instructions.
    #[serde(default)]
    pub accel: Accel,
    /// Whether it is a whole machine, with an init system in place of a sandbox.
    #[serde(default)]
    pub whole: bool,
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
    /// Whether its memory is that of a saved one with changes of its own.
    pub private_memory: bool,
    /// How many saved disks are below its own.
    pub disks_below: u32,
}

impl Record {
    /// Whether there are disks of mounts, which exist only as long as the machine does.
    pub fn has_mounts(&self) -> bool {
        self.disks.iter().any(|(name, _)| name.starts_with(outer::MOUNT))
    }

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
    let moved = move_out(agent, &mut monitor, record, folder).await;
    // Whatever happened, it goes on.
    let went_on = monitor.run("cont", json!({})).await;
    moved?;
    went_on?;
    fs::write(folder.join(RECORD), serde_json::to_vec(record)?)?;
    let files = fs::read_dir(folder)?.flatten().filter_map(|entry| entry.metadata().ok());
    Ok(files.map(|file| std::os::unix::fs::MetadataExt::blocks(&file) * 512).sum())
}

async fn move_out(agent: &Agent, monitor: &mut Monitor, record: &Record, folder: &Path) -> io::Result<()> {
    monitor.ignore_shared(!record.private_memory).await?;
    let mut state = File::create(folder.join(STATE)).await?;
    let mut helper = Helper::start(agent, &[guest::CATCH, &qemu::CATCH_PORT.to_string()]).await?;
    if helper.next().await?.as_deref() != Some(guest::READY) {
        return Err(io::Error::other("the helper beside QEMU said something odd"));
    }
    monitor.run("migrate-set-parameters", json!({ "max-bandwidth": 1u64 << 40 })).await?;
    monitor.run("migrate", json!({ "uri": format!("tcp:127.0.0.1:{}", qemu::CATCH_PORT) })).await?;
    while let Some(piece) = helper.next().await? {
        state.write_all(&piece).await?;
    }
    state.flush().await?;
    monitor.moved().await?;
    if !record.private_memory {
        let mut helper = Helper::start(agent, &[guest::SEND, outer::RAM]).await?;
        receive_sparse(&mut helper, &folder.join(RAM), record.memory).await?;
    }
    for number in 0..record.disks_below {
        let name = disk(number);
        copy_out(agent, &format!("{}/{name}", outer::SAVED), &folder.join(name)).await?;
    }
    copy_out(agent, outer::DISK, &folder.join(disk(record.disks_below))).await
}

async fn copy_out(agent: &Agent, from: &str, to: &Path) -> io::Result<()> {
    let other = |error: sloplet_client::ClientError| io::Error::other(error.to_string());
    let target = Target { path: from.as_bytes().to_vec().into(), ..Target::default() };
    let (_, mut content) = agent.read(target, 0, None).await.map_err(other)?;
    let mut file = File::create(to).await?;
    while let Some(piece) = content.chunk().await.map_err(other)? {
        file.write_all(&piece).await?;
    }
    file.flush().await
}

/// This program beside QEMU.
struct Helper(Process);

impl Helper {
    async fn start(agent: &Agent, words: &[&str]) -> io::Result<Self> {
        let program = format!("{}/{}", outer::BOOT, boot::HELPER);
        let words = [program.as_str(), guest::SUBCOMMAND].into_iter().chain(words.iter().copied());
        let exec = Exec { argv: words.map(|word| word.as_bytes().to_vec().into()).collect(), ..Exec::default() };
        agent.exec(exec).await.map(Self).map_err(|error| io::Error::other(error.to_string()))
    }

    /// The next of what it says; `None` when it has done its work.
    async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut complaint = Vec::new();
        loop {
            match self.0.next().await {
                Some(Ok(ProcessEvent::Stdout(piece))) => return Ok(Some(piece.to_vec())),
                Some(Ok(ProcessEvent::Stderr(piece))) => complaint.extend_from_slice(&piece[..piece.len().min(200)]),
                Some(Ok(ProcessEvent::Exited(exit))) if exit.code == Some(0) => return Ok(None),
                Some(Ok(ProcessEvent::Exited(_))) | None => {
                    let why = String::from_utf8_lossy(&complaint).trim().to_owned();
                    return Err(io::Error::other(format!("the helper beside QEMU failed: {why}")));
                }
                Some(Err(error)) => return Err(io::Error::other(error.to_string())),
            }
        }
    }
}

/// Writes a file of which only the pages are sent that are not empty: for each stretch, where it is and how long.
async fn receive_sparse(helper: &mut Helper, path: &Path, size: u64) -> io::Result<()> {
    let mut file = File::create(path).await?;
    file.set_len(size).await?;
    let odd = || io::Error::other("the helper beside QEMU said something odd");
    let (mut head, mut left) = (Vec::new(), 0u64);
    while let Some(piece) = helper.next().await? {
        let mut rest = &piece[..];
        while !rest.is_empty() {
            if left == 0 {
                let (taken, others) = rest.split_at(rest.len().min(16 - head.len()));
                head.extend_from_slice(taken);
                rest = others;
                if let Some((at, length)) = head.split_first_chunk::<8>().filter(|_| head.len() == 16) {
                    let at = u64::from_le_bytes(*at);
                    left = u64::from_le_bytes(length.try_into().map_err(io::Error::other)?);
                    if left == 0 || at.checked_add(left).is_none_or(|end| end > size) {
                        return Err(odd());
                    }
                    file.seek(SeekFrom::Start(at)).await?;
                    head.clear();
                }
                continue;
            }
            let (taken, others) = rest.split_at(rest.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
            file.write_all(taken).await?;
            left -= taken.len() as u64;
            rest = others;
        }
    }
    if left > 0 || !head.is_empty() {
        return Err(odd());
    }
    file.flush().await
}

/// Lets a QEMU that waits for a saved state have it, and go on.
pub async fn restore(agent: &Agent, has_memory: bool) -> io::Result<()> {
    let mut monitor = Monitor::open(agent).await?;
    monitor.ignore_shared(has_memory).await?;
    monitor.run("migrate-incoming", json!({ "uri": "fd:0" })).await?;
    monitor.moved().await?;
    monitor.run("cont", json!({})).await?;
    Ok(())
}
