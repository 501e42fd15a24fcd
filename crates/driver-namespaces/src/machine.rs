//! One running sandbox.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::net::SocketType;
use rustix::net::sockopt::socket_type;
use sloplet_engine::driver::ByteStream;
use sloplet_engine::{DriverError, End, Machine, MachineState, Outlets, Overdue, Pending, SnapshotReport, Usage};
use sloplet_spawner::handle::{self, Fate, Gone, Spawner};
use sloplet_spawner::protocol::Living;
use tokio::net::UnixStream;
use tokio::sync::watch;

use crate::driver::{failed, problem};

/// A sandbox made of namespaces.
pub struct Namespaced {
    id: String,
    pid: i32,
    spawner: Spawner,
    lasting: bool,
    stream: Mutex<Option<UnixStream>>,
    fate: watch::Receiver<Fate>,
    state: OnceLock<watch::Receiver<MachineState>>,
    outlets: Mutex<Option<Outlets>>,
}

impl Namespaced {
    /// One that was made just now, with its first stream.
    pub(crate) fn new(id: &str, spawner: Spawner, created: handle::Created, stream: UnixStream, lasting: bool) -> Self {
        Self {
            id: id.to_owned(),
            pid: created.pid,
            spawner,
            lasting,
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
            spawner,
            lasting: true,
            stream: Mutex::new(None),
            fate,
            state: OnceLock::new(),
            outlets: Mutex::new(outlets(outlet)),
        }
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
        Box::pin(async move { Ok(Box::new(self.stream()?) as Box<dyn ByteStream>) })
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
            self.spawner.finish(&self.id, &mut fate).await.map(end).map_err(problem)
        })
    }

    fn take_outlets(&self) -> Option<Outlets> {
        self.outlets.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn pid(&self) -> Option<i32> {
        Some(self.pid)
    }
}

/// Sorts sockets by what they are for.
fn outlets(sockets: Vec<OwnedFd>) -> Option<Outlets> {
    let listens = |socket: &OwnedFd| socket_type(socket).is_ok_and(|kind| kind == SocketType::STREAM);
    let (listeners, resolvers) = sockets.into_iter().partition::<Vec<_>, _>(listens);
    (!listeners.is_empty()).then_some(Outlets { listeners, resolvers })
}

pub(crate) fn end(gone: Gone) -> End {
    End { oom_kills: gone.oom_kills, timed_out: gone.timed_out, ..End::default() }
}
