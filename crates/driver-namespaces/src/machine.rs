//! One running sandbox.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Gid, Mode, OFlags, Uid, fchmod, fchown};
use rustix::net::SocketType;
use rustix::net::sockopt::socket_type;
use sloplet_engine::driver::ByteStream;
use sloplet_engine::{
    CheckpointReport, DriverError, End, Machine, MachineState, Outlets, Overdue, Pending, SnapshotReport, Unsupported,
    Usage,
};
use sloplet_policy::{Bind, Limits};
use sloplet_spawner::cgroup;
use sloplet_spawner::handle::{self, Fate, Gone, Spawner};
use sloplet_spawner::protocol::Living;
use tokio::net::UnixStream;
use tokio::sync::watch;

use crate::driver::{failed, problem};
use crate::late::LateStream;
use crate::planning;

/// A sandbox made of namespaces.
pub struct Namespaced {
    id: String,
    pid: i32,
    spawner: Spawner,
    lasting: bool,
    has_runtime: bool,
    has_outlet: bool,
    stream: Mutex<Option<UnixStream>>,
    fate: watch::Receiver<Fate>,
    state: OnceLock<watch::Receiver<MachineState>>,
    outlets: Mutex<Option<Outlets>>,
}

impl Namespaced {
    /// One that was made just now, with its first stream.
    pub(crate) fn new(
        id: &str,
        spawner: Spawner,
        created: handle::Created,
        stream: UnixStream,
        lasting: bool,
        has_runtime: bool,
    ) -> Self {
        Self {
            id: id.to_owned(),
            pid: created.pid,
            spawner,
            lasting,
            has_runtime,
            has_outlet: !created.outlet.is_empty(),
            stream: Mutex::new(Some(stream)),
            fate: created.fate,
            state: OnceLock::new(),
            outlets: Mutex::new(outlets(created.outlet)),
        }
    }

    /// One that was made for an earlier engine.
    pub(crate) fn adopted(
        living: &Living,
        spawner: Spawner,
        fate: watch::Receiver<Fate>,
        outlet: Vec<OwnedFd>,
    ) -> Self {
        Self {
            id: living.id.clone(),
            pid: living.pid,
            has_runtime: spawner.has_keeper(&living.id),
            spawner,
            lasting: true,
            has_outlet: !outlet.is_empty(),
            stream: Mutex::new(None),
            fate,
            state: OnceLock::new(),
            outlets: Mutex::new(outlets(outlet)),
        }
    }

    /// A stream to the agent behind a runtime, from the keeper of it. If there is none, the first stream tells why.
    fn late_stream(&self) -> LateStream {
        let first = self.stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (spawner, id) = (self.spawner.clone(), self.id.clone());
        LateStream::new(async move {
            let asked = async { spawner.keeper(&id)?.connect().await };
            match (asked.await, first) {
                (Ok(stream), _) => Ok(stream),
                (Err(_), Some(first)) => Ok(first),
                (Err(problem), None) => Err(std::io::Error::other(problem.to_string())),
            }
        })
    }

    /// Saves the processes behind a runtime with their memory, and what was written, while they stand still.
    async fn save(&self, memory: &Path, files: OwnedFd) -> Result<CheckpointReport, DriverError> {
        let step = "save the sandbox's memory";
        // What writes there is nobody outside, and has only this descriptor: the folder above is closed to everybody.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(memory, flags, Mode::empty()).map_err(|error| failed(step, error))?;
        fchmod(&folder, Mode::from_raw_mode(0o777)).map_err(|error| failed(step, error))?;
        let since = Instant::now();
        let keeper = self.spawner.keeper(&self.id).map_err(problem)?;
        let saved = keeper.checkpoint(folder.try_clone().map_err(|error| failed(step, error))?).await;
        let copied = match saved {
            Ok(()) => self.snapshot(files).await,
            Err(error) => Err(problem(error)),
        };
        let sealed = seal(memory, &folder).map_err(|error| failed(step, error));
        let resumed = match &copied {
            Ok(_) => keeper.resume().await.map_err(problem),
            Err(_) => Ok(()),
        };
        let (files, memory_bytes) = (copied?, sealed?);
        resumed?;
        Ok(CheckpointReport { files: SnapshotReport { frozen_for: since.elapsed(), ..files }, memory_bytes })
    }

    /// The first stream, which is there from the beginning, or another.
    fn stream(&self) -> Result<UnixStream, DriverError> {
        if let Some(stream) = self.stream.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Ok(stream);
        }
        if !self.lasting {
            return Err(failed("connect to the agent", "its only stream is in use"));
        }
        self.spawner.connect(&self.id).map_err(problem)
    }
}

impl Machine for Namespaced {
    fn connect(&self) -> Pending<'_, Result<Box<dyn ByteStream>, DriverError>> {
        Box::pin(async move {
            if self.has_runtime && self.lasting {
                return Ok(Box::new(self.late_stream()) as Box<dyn ByteStream>);
            }
            Ok(Box::new(self.stream()?) as Box<dyn ByteStream>)
        })
    }

    fn checkpoint<'a>(
        &'a self,
        memory: &'a Path,
        files: OwnedFd,
    ) -> Pending<'a, Result<CheckpointReport, DriverError>> {
        Box::pin(async move {
            match self.has_runtime && self.lasting {
                // The runtime would end: connections of the host's kernel cannot be saved.
                true if self.has_outlet => {
                    Err(Unsupported("take snapshots with memory of a sandbox that has a way out").into())
                }
                true => self.save(memory, files).await,
                false => Err(Unsupported("take snapshots with memory").into()),
            }
        })
    }

    fn pause(&self, frozen: bool) -> Pending<'_, Result<(), DriverError>> {
        Box::pin(async move { self.spawner.pause(&self.id, frozen).await.map_err(problem) })
    }

    fn snapshot(&self, target: OwnedFd) -> Pending<'_, Result<SnapshotReport, DriverError>> {
        Box::pin(async move {
            let saved = self.spawner.snapshot(&self.id, target).await.map_err(problem)?;
            let frozen_for = Duration::from_micros(saved.frozen_us);
            Ok(SnapshotReport { bytes: saved.bytes, files: saved.files, skipped: saved.skipped, frozen_for })
        })
    }

    fn set_deadline(&self, after: Option<Duration>, overdue: Overdue) -> Pending<'_, Result<(), DriverError>> {
        let overdue = match overdue {
            Overdue::Destroy => handle::Overdue::Destroy,
            Overdue::Freeze => handle::Overdue::Freeze,
        };
        Box::pin(async move { self.spawner.set_deadline(&self.id, after, overdue).await.map_err(problem) })
    }

    fn set_limits<'a>(&'a self, limits: &'a Limits) -> Pending<'a, Result<(), DriverError>> {
        let bounds = cgroup::Limits { memory: limits.memory.0, cpu_millis: limits.cpus.millis, pids: limits.pids };
        Box::pin(async move { self.spawner.set_limits(&self.id, bounds).await.map_err(problem) })
    }

    fn attach<'a>(&'a self, mounts: &'a [Bind], hostname: Option<&'a str>) -> Pending<'a, Result<(), DriverError>> {
        Box::pin(async move {
            if self.has_runtime {
                return Err(Unsupported("attach mounts behind a runtime").into());
            }
            let mounts = mounts.iter().map(|bind| planning::mount(bind, false)).collect::<Result<_, _>>()?;
            self.spawner.attach(&self.id, mounts, hostname.map(str::to_owned)).await.map_err(problem)
        })
    }

    fn usage(&self) -> Pending<'_, Result<Usage, DriverError>> {
        Box::pin(async move {
            let used = self.spawner.usage(&self.id).await.map_err(problem)?;
            Ok(Usage {
                cpu_us: used.cpu_us,
                memory: used.memory,
                memory_peak: used.memory_peak,
                pids: used.pids,
                disk_used: used.disk_used,
                disk_total: used.disk_total,
                files_used: used.files_used,
                files_total: used.files_total,
                cache: used.cache.unwrap_or(0),
            })
        })
    }

    fn state(&self) -> watch::Receiver<MachineState> {
        let translate = |fate: &Fate| match fate {
            Fate::Living { frozen: false, .. } => MachineState::Running,
            Fate::Living { frozen: true, overdue } => MachineState::Frozen { overdue: *overdue },
            Fate::Gone(gone) => MachineState::Ended(end(*gone)),
        };
        self.state.get_or_init(|| MachineState::follow(self.fate.clone(), translate)).clone()
    }

    fn destroy(&self) -> Pending<'_, Result<End, DriverError>> {
        Box::pin(async move {
            let mut fate = self.fate.clone();
            if let Fate::Gone(gone) = *fate.borrow() {
                return Ok(end(gone));
            }
            match self.spawner.finish(&self.id, &mut fate).await {
                Ok(gone) => Ok(end(gone)),
                // All that a spawner has made dies with it; what is left is removed by whoever cleans up.
                Err(_) if self.spawner.has_ended() => Ok(End { lost: true, ..End::default() }),
                Err(error) => Err(problem(error)),
            }
        })
    }

    fn take_outlets(&self) -> Option<Outlets> {
        self.outlets.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn pid(&self) -> Option<i32> {
        Some(self.pid)
    }
}

/// Takes a saved memory away from whoever has written it; returns its size.
fn seal(path: &Path, folder: &OwnedFd) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let file = rustix::fs::open(entry.path(), OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        if rustix::process::geteuid().is_root() {
            fchown(&file, Some(Uid::ROOT), Some(Gid::ROOT))?;
        }
        // Whoever goes on from it has other ids, and reads it through a descriptor.
        let _ = fchmod(&file, Mode::from_raw_mode(0o644));
        bytes += std::os::unix::fs::MetadataExt::blocks(&entry.metadata()?) * 512;
    }
    fchmod(folder, Mode::from_raw_mode(0o755))?;
    Ok(bytes)
}

/// Sorts sockets by what they are for.
fn outlets(sockets: Vec<OwnedFd>) -> Option<Outlets> {
    let listens = |socket: &OwnedFd| socket_type(socket).is_ok_and(|kind| kind == SocketType::STREAM);
    let (listeners, resolvers) = sockets.into_iter().partition::<Vec<_>, _>(listens);
    (!listeners.is_empty() || !resolvers.is_empty()).then_some(Outlets { listeners, resolvers })
}

pub(crate) fn end(gone: Gone) -> End {
    End { oom_kills: gone.oom_kills, timed_out: gone.timed_out, ..End::default() }
}
