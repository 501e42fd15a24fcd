//! What a wall must offer.
//!
//! A driver brings up a machine whose first program is the agent and hands back a byte stream to it. Commands, files
//! and ports are the agent's business, the same behind every wall.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use sloplet_image::Image;
use sloplet_policy::{DriverReport, Feature, Isolation, Limits, Spec};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// A boxed future, so that drivers can be held as trait objects.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Bytes to and from an agent.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A wall.
pub trait Driver: Send + Sync {
    /// Its name, for people and files.
    fn name(&self) -> &'static str;

    /// The level of isolation it provides.
    fn isolation(&self) -> Isolation;

    /// What it enforces on this host, and what not. Asked before every start, so it should be cheap.
    fn report(&self) -> DriverReport;

    /// What must hold for a sandbox to be one; without it a start is refused unless the user accepts less.
    fn required(&self) -> Vec<Feature> {
        Limits::features().into_iter().chain([Feature::NoNetwork, Feature::SyscallFilter]).collect()
    }

    /// A sandbox like this will be asked for in a moment: whatever takes time and does not depend on the image can start.
    fn prepare(&self, spec: &Spec) {
        let _ = spec;
    }

    /// Brings up a machine. On failure nothing of it is left.
    fn create<'a>(
        &'a self,
        id: &'a str,
        spec: &'a Spec,
        image: &'a Image,
    ) -> Pending<'a, Result<Box<dyn Machine>, DriverError>>;

    /// Brings up a machine that outlives the engine: it goes on when this process ends, however it ends, and a later
    /// engine finds it with [`Self::adopt`]. On failure nothing of it is left.
    fn create_lasting<'a>(
        &'a self,
        id: &'a str,
        spec: &'a Spec,
        image: &'a Image,
    ) -> Pending<'a, Result<Box<dyn Machine>, DriverError>> {
        let _ = (id, spec, image);
        Box::pin(async { Err(DriverError::Unsupported(Unsupported("keep a sandbox beyond the engine's end"))) })
    }

    /// Takes over the lasting machines of an engine that is gone. Whoever still talks to them is cut off.
    fn adopt(&self) -> Pending<'_, Result<Adoption, DriverError>> {
        Box::pin(async { Ok(Adoption::default()) })
    }

    /// Makes a file that holds an empty disk of so many bytes, for a volume that is not to grow beyond that.
    fn make_disk(&self, file: &Path, bytes: u64) -> Result<(), DriverError> {
        let _ = (file, bytes);
        Err(DriverError::Unsupported(Unsupported("bound the size of a volume")))
    }

    /// Removes a folder that its sandboxes could write to, whoever inside owns what is in it.
    fn remove_folder(&self, folder: &Path) -> Result<(), DriverError> {
        let failed = |error: std::io::Error| DriverError::Failed {
            step: format!("remove {}", folder.display()),
            detail: error.to_string(),
        };
        std::fs::remove_dir_all(folder).map_err(failed)
    }

    /// Removes what earlier runs left behind; returns how many things that were.
    fn collect(&self) -> Result<usize, DriverError> {
        Ok(0)
    }

    /// Ends helpers and waits for them; the last call to a driver.
    fn shut_down(&self) {}
}

/// One machine behind a wall.
pub trait Machine: Send + Sync {
    /// A stream to its agent. The first call must work; later ones where the wall can.
    fn connect(&self) -> Pending<'_, Result<Box<dyn ByteStream>, DriverError>>;

    /// Freezes (or thaws) every process in it.
    fn pause(&self, frozen: bool) -> Pending<'_, Result<(), DriverError>> {
        let _ = frozen;
        Box::pin(async { Err(DriverError::Unsupported(Unsupported("pause"))) })
    }

    /// Copies what was written in it to `target`, an empty folder: a layer to be put on top of its image's. It stands
    /// still meanwhile, so that the copy is of one moment. On failure or when given up, something may be left in the
    /// folder.
    fn snapshot(&self, target: OwnedFd) -> Pending<'_, Result<SnapshotReport, DriverError>> {
        let _ = target;
        Box::pin(async { Err(DriverError::Unsupported(Unsupported("take snapshots"))) })
    }

    /// Replaces its deadline, counted from now; without one, it has none. It holds whatever becomes of the engine.
    fn set_deadline(&self, after: Option<Duration>, overdue: Overdue) -> Pending<'_, Result<(), DriverError>> {
        let _ = (after, overdue);
        Box::pin(async { Err(DriverError::Unsupported(Unsupported("change a sandbox's deadline"))) })
    }

    /// What it uses.
    fn usage(&self) -> Pending<'_, Result<Usage, DriverError>> {
        Box::pin(async { Err(DriverError::Unsupported(Unsupported("tell what a sandbox uses"))) })
    }

    /// What it is now, and all that it becomes; any number of watchers.
    fn state(&self) -> watch::Receiver<MachineState>;

    /// Waits until it is gone, by itself or by [`Self::destroy`]. Can be given up and asked again.
    fn ended(&self) -> Pending<'_, End> {
        let mut state = self.state();
        Box::pin(async move {
            let ended = state.wait_for(|state| matches!(state, MachineState::Ended(_))).await.map(|state| *state);
            match ended {
                Ok(MachineState::Ended(end)) => end,
                // Nobody is left to tell.
                _ => End { lost: true, ..End::default() },
            }
        })
    }

    /// Kills everything in it and removes all that it held on the host. Idempotent.
    fn destroy(&self) -> Pending<'_, Result<End, DriverError>>;

    /// Where its commands start and keep their files (`HOME`, `TMPDIR`), for a wall without a root of its own; the image
    /// says so otherwise.
    fn home(&self) -> Option<&str> {
        None
    }

    /// The host's pid of its first process, where there is one.
    fn pid(&self) -> Option<i32> {
        None
    }
}

/// What a machine is at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineState {
    /// Its processes run.
    Running,
    /// All its processes stand still.
    Frozen {
        /// Because its deadline came.
        overdue: bool,
    },
    /// It is gone.
    Ended(End),
}

impl MachineState {
    /// The states of a machine, out of what its keeper tells in words of its own. When that one falls silent, the machine
    /// is lost. Must be called within a runtime.
    pub fn follow<T: Send + Sync + 'static>(
        mut told: watch::Receiver<T>,
        translate: impl Fn(&T) -> Self + Send + 'static,
    ) -> watch::Receiver<Self> {
        let first = translate(&told.borrow_and_update());
        let (sender, receiver) = watch::channel(first);
        tokio::spawn(async move {
            while !matches!(*sender.borrow(), Self::Ended(_)) {
                let next = match told.changed().await {
                    Ok(()) => translate(&told.borrow_and_update()),
                    Err(_) => Self::Ended(End { lost: true, ..End::default() }),
                };
                sender.send_replace(next);
            }
        });
        receiver
    }
}

/// What happens to a machine at its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overdue {
    /// Everything in it is killed.
    Destroy,
    /// It is frozen, and has no deadline any more.
    Freeze,
}

/// What a machine uses; 0 where its host does not count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Processor time so far, in microseconds.
    pub cpu_us: u64,
    /// Bytes of memory, without what the kernel could drop at once. What is written counts, where that is kept in memory.
    pub memory: u64,
    /// The most it ever had, with what the kernel could have dropped.
    pub memory_peak: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Bytes written that are still there.
    pub disk_used: u64,
    /// Bytes it may write.
    pub disk_total: u64,
    /// Files made that are still there.
    pub files_used: u64,
    /// Files it may make.
    pub files_total: u64,
    /// Bytes of memory that hold copies of files on disks.
    pub cache: u64,
}

/// A finished snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotReport {
    /// Bytes of file content, without holes.
    pub bytes: u64,
    /// Files, folders, links and marks of removed ones.
    pub files: u64,
    /// Sockets, which are left out.
    pub skipped: u64,
    /// For how long it stood still because of that; nothing if it was frozen anyway.
    pub frozen_for: Duration,
}

/// What an engine that is gone has left.
#[derive(Default)]
pub struct Adoption {
    /// Machines that live.
    pub living: Vec<Adopted>,
    /// Machines that ended while there was no engine, as far as is known.
    pub ended: Vec<(String, End)>,
}

/// A machine that outlived its engine.
pub struct Adopted {
    /// Its sandbox's id.
    pub id: String,
    /// The machine.
    pub machine: Box<dyn Machine>,
    /// Whether it is frozen.
    pub frozen: bool,
    /// How long ago it was made.
    pub age: Duration,
}

/// How a machine ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct End {
    /// Processes that were killed for want of memory during its life.
    pub oom_kills: u64,
    /// It was killed because its life was over.
    pub timed_out: bool,
    /// It was killed because it wrote more than it may, where that is watched and not enforced.
    pub over_disk: bool,
    /// Nobody knows: whoever watched over it died (and it with him), or takes orders from another engine now.
    pub lost: bool,
}

/// A wall was asked for something it cannot do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this driver cannot {0}")]
pub struct Unsupported(pub &'static str);

/// What went wrong behind a wall.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// It cannot do that.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A step failed.
    #[error("cannot {step}: {detail}")]
    Failed {
        /// What was tried, as a verb phrase.
        step: String,
        /// Why it failed, and what to do.
        detail: String,
    },
}
