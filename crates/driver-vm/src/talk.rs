//! What the driver and the keeper in the guest say to each other: a question, an answer, each a frame of JSON with its
//! length before it. The guest's end is hostile once something ran there.

use std::io;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sloplet_engine::Usage;
use sloplet_image::ImageConfig;
use sloplet_policy::Spec;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Most bytes of a frame.
pub const MAX_FRAME: usize = 4 << 20;

/// The machine's port.
pub const PORT: &str = "host";

/// What streams are for: one to the agent.
pub const AGENT: &str = "agent";
/// Questions to the keeper.
pub const CONTROL: &str = "control";
/// A connection to the address that follows.
pub const TCP: &str = "tcp";
/// One question to the resolver at the address that follows.
pub const QUESTION: &str = "question";

/// What the host asks.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Bring up the sandbox.
    Begin(Box<Order>),
    /// What it uses.
    Usage,
    /// This machine goes on from a saved one: these are its own.
    Resume(Resume),
    /// Let all processes of the sandbox stand still, or go on.
    Hold(bool),
    /// Send what was written, as an archive: chunks follow, an empty one ends it, then the answer.
    Save,
}

/// The sandbox to be brought up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Its id.
    pub id: String,
    /// What it is asked to be; its mounts are disks.
    pub spec: Spec,
    /// How many layers there are, each a disk.
    pub layers: usize,
    /// Folders of the image that are disks of their own.
    pub system: Vec<String>,
    /// Which of the mounts are single files, by name.
    pub mounts: Vec<Option<String>>,
    /// How the image wants programs started.
    pub config: ImageConfig,
    /// Whether it has a way out.
    pub egress: bool,
    /// Files that the host puts into its root.
    pub files: Vec<PutFile>,
}

/// A file that the host puts into the root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutFile {
    /// Paths, and on what condition (`always`, `absent`, `present`).
    pub places: Vec<(String, String)>,
    /// Its content, in hexadecimal digits.
    pub content: String,
    /// What comes before it.
    pub after: Vec<String>,
    /// Permissions.
    pub mode: u32,
}

/// What is different after a machine was woken from a saved one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Resume {
    /// The time, since 1970.
    pub now: Duration,
    /// Random bytes.
    pub entropy: Vec<u8>,
    /// For one that goes on from a saved one: its host name, and the files that the host puts into its root.
    pub identity: Option<(String, Vec<PutFile>)>,
}

/// What the guest answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Done.
    Done,
    /// It uses so much.
    Usage(Used),
    /// So much was sent.
    Saved(Saved),
    /// It did not work.
    Failed {
        /// What was tried.
        step: String,
        /// Why it failed.
        detail: String,
    },
}

/// What an archive holds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Saved {
    pub bytes: u64,
    pub files: u64,
    pub skipped: u64,
}

/// What a sandbox uses, as the guest's kernel counts it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Used {
    pub memory: u64,
    pub memory_peak: u64,
    pub pids: u64,
    pub disk_used: u64,
    pub disk_total: u64,
    pub files_used: u64,
    pub files_total: u64,
    pub cache: u64,
}

impl Used {
    /// With the processor time that the host counted.
    pub fn with(self, outer: Usage) -> Usage {
        Usage {
            cpu_us: outer.cpu_us,
            memory: self.memory,
            memory_peak: self.memory_peak,
            pids: self.pids,
            disk_used: self.disk_used,
            disk_total: self.disk_total,
            files_used: self.files_used,
            files_total: self.files_total,
            cache: self.cache,
        }
    }
}

/// Sends a frame.
pub async fn send<T: Serialize>(stream: &mut (impl AsyncWrite + Unpin), message: &T) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&length.to_le_bytes()).await?;
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// Receives bytes with their length before them.
pub async fn receive_bytes(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = stream.read_u32_le().await? as usize;
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame that is too long"));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Receives a frame.
pub async fn receive<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    Ok(serde_json::from_slice(&receive_bytes(stream).await?)?)
}
