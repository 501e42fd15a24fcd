//! One running sandbox.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sloplet_engine::driver::ByteStream;
use sloplet_engine::{DriverError, End, Machine, Pending};
use sloplet_spawner::handle::{Created, Gone, Spawner};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::driver::{failed, problem};
use crate::usage::{self, Allowance};

/// How often the disk usage is measured.
const INTERVAL: Duration = Duration::from_millis(200);

/// The share of one processor that measuring may take is one in this many.
const SHARE: u32 = 5;

/// A sandbox made of a confined process tree.
pub struct Confined {
    id: String,
    pid: i32,
    home: String,
    spawner: Spawner,
    stream: Mutex<Option<UnixStream>>,
    gone: tokio::sync::Mutex<Ending>,
    over_disk: Arc<AtomicBool>,
    watch: Mutex<Option<JoinHandle<()>>>,
}

enum Ending {
    Expected(oneshot::Receiver<Gone>),
    Past(End),
}

impl Confined {
    pub(crate) fn new(
        id: &str,
        spawner: Spawner,
        created: Created,
        stream: UnixStream,
        scratch: PathBuf,
        allowance: Allowance,
    ) -> Self {
        let over_disk = Arc::new(AtomicBool::new(false));
        let home = scratch.display().to_string();
        let watch = tokio::spawn(watch(id.to_owned(), spawner.clone(), scratch, allowance, over_disk.clone()));
        Self {
            id: id.to_owned(),
            pid: created.pid,
            home,
            spawner,
            stream: Mutex::new(Some(stream)),
            gone: tokio::sync::Mutex::new(Ending::Expected(created.gone)),
            over_disk,
            watch: Mutex::new(Some(watch)),
        }
    }

    fn take_watch(&self) -> Option<JoinHandle<()>> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits, because the watch shares the spawner, which cannot be shut down before.
    async fn end_watch(&self) {
        if let Some(watch) = self.take_watch() {
            watch.abort();
            let _ = watch.await;
        }
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        if let Some(watch) = self.take_watch() {
            watch.abort();
        }
    }
}

/// Ends the sandbox when it holds more than its allowance.
async fn watch(id: String, spawner: Spawner, scratch: PathBuf, allowance: Allowance, over_disk: Arc<AtomicBool>) {
    let mut pause = INTERVAL;
    loop {
        tokio::time::sleep(pause).await;
        let started = Instant::now();
        if exceeds(&scratch, allowance).await {
            over_disk.store(true, Ordering::Relaxed);
            // If that fails, the spawner is gone, and all its sandboxes with it.
            let _ = spawner.destroy(&id).await;
            return;
        }
        pause = INTERVAL.max(started.elapsed() * SHARE);
    }
}

async fn exceeds(scratch: &Path, allowance: Allowance) -> bool {
    let scratch = scratch.to_owned();
    tokio::task::spawn_blocking(move || usage::exceeds(&scratch, allowance)).await.unwrap_or(false)
}

impl Machine for Confined {
    fn connect(&self) -> Pending<'_, Result<Box<dyn ByteStream>, DriverError>> {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        let stream = stream.ok_or_else(|| failed("connect to the agent", "its only stream is in use"));
        Box::pin(async move { Ok(Box::new(stream?) as Box<dyn ByteStream>) })
    }

    fn pause(&self, frozen: bool) -> Pending<'_, Result<(), DriverError>> {
        Box::pin(async move { self.spawner.pause(&self.id, frozen).await.map_err(problem) })
    }

    fn destroy(&self) -> Pending<'_, Result<End, DriverError>> {
        Box::pin(async move {
            let mut ending = self.gone.lock().await;
            let gone = match &mut *ending {
                Ending::Past(end) => return Ok(*end),
                Ending::Expected(gone) => gone,
            };
            self.end_watch().await;
            let gone = self.spawner.finish(&self.id, gone).await.map_err(problem)?;
            let over_disk = self.over_disk.load(Ordering::Relaxed);
            let end = End { oom_kills: gone.oom_kills, timed_out: gone.timed_out, over_disk, lost: false };
            *ending = Ending::Past(end);
            Ok(end)
        })
    }

    fn home(&self) -> Option<&str> {
        Some(&self.home)
    }

    fn pid(&self) -> Option<i32> {
        Some(self.pid)
    }
}
