//! One running machine.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sloplet_client::{Agent, Connection, Process, ProcessEvent};
use sloplet_engine::driver::{ByteStream, CheckpointReport, Unsupported};
use sloplet_engine::{DriverError, End, Machine, MachineState, Outlets, Overdue, Pending, SnapshotReport, Usage};
use tokio::io::DuplexStream;
use tokio::sync::{Mutex, watch};

use crate::living::Note;
use crate::saved::{self, Record};
use crate::talk::{self, Answer, Ask};
use crate::{failed, qemu};

/// How QEMU's process is marked in its sandbox.
pub const QEMU_TAG: &str = "qemu";

/// How long the guest may take for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a guest may take to hold its sandbox before the whole machine is frozen.
const HOLD: Duration = Duration::from_secs(5);

/// A sandbox in a virtual machine.
pub struct Emulated {
    inner: Arc<Inner>,
    record: Option<Record>,
}

struct Inner {
    outer: Box<dyn Machine>,
    note: Note,
    /// To the agent of QEMU's sandbox.
    agent: Mutex<Option<Agent>>,
    /// To the keeper in the guest.
    control: Mutex<Option<Connection>>,
    /// Whether it is to stand still. Held while that is brought about.
    frozen: Mutex<bool>,
    /// Counts how often it was frozen or thawed.
    turns: watch::Sender<u64>,
}

impl Emulated {
    /// One that was made just now.
    pub(crate) fn new(
        outer: Box<dyn Machine>,
        agent: Agent,
        process: Process,
        control: Connection,
        record: Record,
        note: Note,
    ) -> Self {
        let inner = Inner::new(outer, Some(agent), Some(control), false, note);
        tokio::spawn(inner.clone().follow(Some(process)));
        Self { inner, record: Some(record) }
    }

    /// One that was made for an earlier engine.
    pub(crate) fn adopted(outer: Box<dyn Machine>, frozen: bool, note: Note) -> Self {
        let record = note.read();
        let inner = Inner::new(outer, None, None, frozen, note);
        tokio::spawn(inner.clone().follow(None));
        Self { inner, record }
    }
}

impl Inner {
    fn new(
        outer: Box<dyn Machine>,
        agent: Option<Agent>,
        control: Option<Connection>,
        frozen: bool,
        note: Note,
    ) -> Arc<Self> {
        let (agent, control, frozen) = (Mutex::new(agent), Mutex::new(control), Mutex::new(frozen));
        Arc::new(Self { outer, note, agent, control, frozen, turns: watch::Sender::new(0) })
    }
}

impl Inner {
    /// The agent of QEMU's sandbox. Of one that is frozen, it answers later.
    async fn agent(&self) -> Result<Agent, DriverError> {
        let mut agent = self.agent.lock().await;
        if let Some(agent) = &*agent {
            return Ok(agent.clone());
        }
        let made = Agent::connect_later(self.outer.connect().await?);
        *agent = Some(made.clone());
        Ok(made)
    }

    /// Whether it stands still, by somebody's wish or because its time is over.
    async fn is_frozen(&self) -> bool {
        *self.frozen.lock().await || matches!(*self.outer.state().borrow(), MachineState::Frozen { .. })
    }

    /// Freezes or thaws it. The sandbox in the guest is held first and let go last: so it stands still also while the guest
    /// goes on for a moment, to save what was written. A guest that does not answer is frozen all the same.
    async fn turn(&self, freeze: bool) -> Result<(), DriverError> {
        let mut frozen = self.frozen.lock().await;
        if freeze && !*frozen {
            let _ = tokio::time::timeout(HOLD, self.ask(Ask::Hold(true))).await;
        }
        self.outer.pause(freeze).await?;
        let was = std::mem::replace(&mut *frozen, freeze);
        self.turns.send_modify(|turns| *turns += 1);
        match was && !freeze {
            true => self.ask(Ask::Hold(false)).await.map(drop),
            false => Ok(()),
        }
    }

    /// When QEMU ends, for whatever reason, its sandbox has no purpose any more.
    async fn follow(self: Arc<Self>, process: Option<Process>) {
        let process = match process {
            Some(process) => Some(process),
            None => self.find().await,
        };
        if let Some(mut process) = process {
            last_words(&mut process).await;
        }
        let _ = self.outer.destroy().await;
        self.note.remove();
    }

    async fn find(&self) -> Option<Process> {
        let agent = self.agent().await.ok()?;
        let processes = agent.processes().await.ok()?;
        let qemu = processes.iter().find(|process| process.tag.as_deref() == Some(QEMU_TAG))?;
        agent.attach(qemu.pid).await.ok()
    }

    /// Asks the keeper.
    async fn ask(&self, ask: Ask) -> Result<Answer, DriverError> {
        let step = "ask the guest";
        let mut control = self.control.lock().await;
        let mut connection = match control.take() {
            Some(connection) => connection,
            None => dial(&self.agent().await?, qemu::CONTROL_PORT).await.map_err(|error| failed(step, error))?,
        };
        let talked = tokio::time::timeout(PATIENCE, async {
            talk::send(&mut connection, &ask).await?;
            talk::receive::<Answer>(&mut connection).await
        });
        let answer =
            talked.await.map_err(|_| failed(step, "it does not answer"))?.map_err(|error| failed(step, error))?;
        // Kept only if the answer was whole: the next question must not get the rest of this one's.
        *control = Some(connection);
        Ok(answer)
    }
}

impl Inner {
    /// Copies what was written to a folder. A frozen machine is thawed for that, but not the sandbox in it; whoever wakes it
    /// meanwhile gives the copying up.
    async fn save(&self, target: OwnedFd) -> Result<SnapshotReport, DriverError> {
        let mut turns = self.turns.subscribe();
        let frozen = {
            let frozen = self.frozen.lock().await;
            if *frozen {
                self.outer.pause(false).await?;
            }
            *frozen
        };
        let began = std::time::Instant::now();
        let saved = tokio::select! {
            saved = self.receive(target) => saved,
            _ = turns.changed() => Err(failed("save what was written", "it was woken or frozen meanwhile")),
        };
        if *self.frozen.lock().await {
            self.outer.pause(true).await?;
        }
        let saved = saved?;
        let frozen_for = if frozen { Duration::ZERO } else { began.elapsed() };
        Ok(SnapshotReport { bytes: saved.bytes, files: saved.files, skipped: saved.skipped, frozen_for })
    }

    async fn receive(&self, target: OwnedFd) -> Result<talk::Saved, DriverError> {
        let step = "save what was written";
        let fault = |error: io::Error| failed(step, error);
        let mut control = self.control.lock().await;
        let mut connection = match control.take() {
            Some(connection) => connection,
            None => dial(&self.agent().await?, qemu::CONTROL_PORT).await.map_err(fault)?,
        };
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(fault)?;
        ours.set_nonblocking(true).map_err(fault)?;
        let mut ours = tokio::net::UnixStream::from_std(ours).map_err(fault)?;
        let unpacking = tokio::task::spawn_blocking(move || sloplet_image::unpack_layer(theirs, &target));
        let carried = async {
            talk::send(&mut connection, &Ask::Save).await?;
            loop {
                let piece = tokio::time::timeout(PATIENCE, talk::receive_bytes(&mut connection));
                let piece = piece.await.map_err(|_| io::Error::other("the guest does not answer"))??;
                if piece.is_empty() {
                    break;
                }
                tokio::io::AsyncWriteExt::write_all(&mut ours, &piece).await?;
            }
            talk::receive::<Answer>(&mut connection).await
        };
        let answer = carried.await;
        drop(ours);
        let unpacked = unpacking.await.map_err(|error| failed(step, error))?;
        let unpacked = unpacked.map_err(|error| failed(step, error))?;
        match answer.map_err(fault)? {
            Answer::Saved(saved) => {
                *control = Some(connection);
                // Counted here: what the guest says is its own word.
                Ok(talk::Saved { bytes: unpacked.bytes, skipped: saved.skipped + unpacked.skipped, ..saved })
            }
            Answer::Failed { detail, .. } => Err(failed(step, detail)),
            _ => Err(failed(step, "the guest gave an odd answer")),
        }
    }
}

/// What belongs to this machine alone, and not to one that it was saved from.
pub(crate) fn own(identity: Option<(String, Vec<talk::PutFile>)>) -> io::Result<talk::Resume> {
    let mut entropy = vec![0; 64];
    rustix::rand::getrandom(&mut entropy, rustix::rand::GetRandomFlags::empty())?;
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok(talk::Resume { now, entropy, identity })
}

/// A stream to a port beside the machine. What is there may only just be starting.
pub(crate) async fn dial(agent: &Agent, port: u16) -> io::Result<Connection> {
    loop {
        match agent.dial(port).await {
            Ok(connection) => return Ok(connection),
            Err(sloplet_client::ClientError::Failed(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => return Err(io::Error::other(error.to_string())),
        }
    }
}

/// Connects a stream with the agent in the guest.
async fn lead(agent: Agent, mut stream: DuplexStream) -> io::Result<()> {
    let mut connection = dial(&agent, qemu::AGENT_PORT).await?;
    tokio::io::copy_bidirectional_with_sizes(&mut stream, &mut connection, 65_536, 65_536).await.map(drop)
}

/// Waits for the end of a process, and returns the last of what it said.
pub(crate) async fn last_words(process: &mut Process) -> String {
    let mut said: Vec<u8> = Vec::new();
    while let Some(Ok(event)) = process.next().await {
        match event {
            ProcessEvent::Stdout(bytes) | ProcessEvent::Stderr(bytes) => {
                said.extend_from_slice(&bytes);
                let over = said.len().saturating_sub(2048);
                said.drain(..over);
            }
            ProcessEvent::Exited(exit) => said.extend_from_slice(format!(" (QEMU ended: {exit:?})").as_bytes()),
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}

impl Machine for Emulated {
    fn connect(&self) -> Pending<'_, Result<Box<dyn ByteStream>, DriverError>> {
        Box::pin(async move {
            let agent = self.inner.agent().await?;
            // It may be frozen: the stream is there at once, and leads somewhere later.
            let (ours, theirs) = tokio::io::duplex(256 * 1024);
            tokio::spawn(lead(agent, theirs));
            Ok(Box::new(ours) as Box<dyn ByteStream>)
        })
    }

    fn pause(&self, frozen: bool) -> Pending<'_, Result<(), DriverError>> {
        Box::pin(self.inner.turn(frozen))
    }

    fn snapshot(&self, target: OwnedFd) -> Pending<'_, Result<SnapshotReport, DriverError>> {
        Box::pin(self.inner.save(target))
    }

    fn checkpoint<'a>(
        &'a self,
        memory: &'a Path,
        files: OwnedFd,
    ) -> Pending<'a, Result<CheckpointReport, DriverError>> {
        drop(files); // what was written is on the disk that is saved with the memory
        Box::pin(async move {
            let Some(record) = &self.record else {
                let why = "save the memory of a machine of which nobody knows what it is made of";
                return Err(DriverError::Unsupported(Unsupported(why)));
            };
            if record.has_mounts() {
                let why = "save the memory of a machine that folders of the host were copied into";
                return Err(DriverError::Unsupported(Unsupported(why)));
            }
            if self.inner.is_frozen().await {
                let why = "save the memory of a machine that is frozen: resume it first";
                return Err(DriverError::Unsupported(Unsupported(why)));
            }
            let began = std::time::Instant::now();
            let agent = self.inner.agent().await?;
            let saved = saved::save(&agent, record, memory).await;
            let memory_bytes = saved.map_err(|error| failed("save the machine's memory", error))?;
            let files = SnapshotReport { frozen_for: began.elapsed(), ..SnapshotReport::default() };
            Ok(CheckpointReport { files, memory_bytes })
        })
    }

    fn set_deadline(&self, after: Option<Duration>, overdue: Overdue) -> Pending<'_, Result<(), DriverError>> {
        self.inner.outer.set_deadline(after, overdue)
    }

    fn usage(&self) -> Pending<'_, Result<Usage, DriverError>> {
        Box::pin(async move {
            let outer = self.inner.outer.usage().await?;
            if !self.inner.is_frozen().await
                && let Ok(Answer::Usage(used)) = self.inner.ask(Ask::Usage).await
            {
                return Ok(used.with(outer));
            }
            Ok(outer)
        })
    }

    fn state(&self) -> watch::Receiver<MachineState> {
        self.inner.outer.state()
    }

    fn destroy(&self) -> Pending<'_, Result<End, DriverError>> {
        Box::pin(async move {
            let end = self.inner.outer.destroy().await?;
            self.inner.note.remove();
            Ok(end)
        })
    }

    fn take_outlets(&self) -> Option<Outlets> {
        self.inner.outer.take_outlets()
    }

    fn pid(&self) -> Option<i32> {
        self.inner.outer.pid()
    }
}
