//! What a wall must offer.
//!
//! A driver brings up a machine whose first program is the agent and hands back a byte stream to it. Commands, files
//! and ports are the agent's business, the same behind every wall.

use std::pin::Pin;

use sloplet_image::Image;
use sloplet_policy::{DriverReport, Feature, Isolation, Limits, Spec};
use tokio::io::{AsyncRead, AsyncWrite};

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

    /// Saves its file system (and memory, if asked) as an image of that name.
    fn snapshot<'a>(&'a self, name: &'a str, memory: bool) -> Pending<'a, Result<(), DriverError>> {
        let _ = (name, memory);
        Box::pin(async { Err(DriverError::Unsupported(Unsupported("snapshot"))) })
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

/// What a machine uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Processor time since its start, in microseconds.
    pub cpu_us: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Most bytes of memory ever, where that is known.
    pub memory_peak: u64,
    /// Bytes of memory that are cache of files and can be given back.
    pub cache: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Bytes of disk.
    pub disk_used: u64,
    /// Bytes of disk that it may use.
    pub disk_total: u64,
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
