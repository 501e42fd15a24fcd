//! One running container.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bollard::query_parameters::StatsOptions;
use futures_util::StreamExt;
use sloplet_engine::driver::ByteStream;
use sloplet_engine::{DriverError, End, Machine, MachineState, Outlets, Overdue, Pending, Usage};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::host::{explain, status};
use crate::stream::Attached;
use crate::{failed, owner};

/// Beyond this, a deadline is none.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A sandbox that is a container.
pub struct Contained {
    inner: Arc<Inner>,
    first: Mutex<Option<Attached>>,
    lasting: bool,
    follower: JoinHandle<()>,
    deadline: Mutex<Option<JoinHandle<()>>>,
    outlets: Mutex<Option<Outlets>>,
    pid: Option<i32>,
}

struct Inner {
    client: bollard::Docker,
    container: String,
    state: watch::Sender<MachineState>,
    timed_out: AtomicBool,
    /// A folder with what was put into its root.
    files: Option<PathBuf>,
}

/// What a machine is made of.
pub(crate) struct Parts {
    pub(crate) client: bollard::Docker,
    pub(crate) container: String,
    /// The first stream, if it was made just now.
    pub(crate) first: Option<Attached>,
    pub(crate) lasting: bool,
    pub(crate) frozen: bool,
    pub(crate) files: Option<PathBuf>,
    pub(crate) outlets: Option<Outlets>,
    pub(crate) pid: Option<i32>,
}

impl Contained {
    pub(crate) fn new(parts: Parts) -> Self {
        let state = if parts.frozen { MachineState::Frozen { overdue: false } } else { MachineState::Running };
        let inner = Arc::new(Inner {
            client: parts.client,
            container: parts.container,
            state: watch::Sender::new(state),
            timed_out: AtomicBool::new(false),
            files: parts.files,
        });
        Self {
            follower: tokio::spawn(inner.clone().follow()),
            inner,
            first: Mutex::new(parts.first),
            lasting: parts.lasting,
            deadline: Mutex::default(),
            outlets: Mutex::new(parts.outlets),
            pid: parts.pid,
        }
    }

    /// Starts counting; whatever was counted before counts no more.
    pub(crate) fn count_down(&self, after: Option<Duration>, overdue: Overdue) {
        let task = after.filter(|after| *after < LONGEST).map(|after| {
            let inner = self.inner.clone();
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                inner.expire(overdue).await;
            })
        });
        let former = std::mem::replace(&mut *self.deadline.lock().unwrap_or_else(PoisonError::into_inner), task);
        former.inspect(JoinHandle::abort);
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        self.follower.abort();
        self.deadline.lock().unwrap_or_else(PoisonError::into_inner).take().inspect(JoinHandle::abort);
        let ended = matches!(*self.inner.state.borrow(), MachineState::Ended(_));
        if !self.lasting && !ended && tokio::runtime::Handle::try_current().is_ok() {
            // Without this it ends nevertheless: its agent hears that its stream has ended.
            let inner = self.inner.clone();
            tokio::spawn(async move { inner.end().await });
        }
    }
}

impl Inner {
    /// Waits for its end.
    async fn follow(self: Arc<Self>) {
        let mut waiting = self.client.wait_container(&self.container, None);
        // Any answer, also an error, says that it is not there any more; unless the engine itself is gone for a while.
        while let Some(Err(error)) = waiting.next().await {
            match error {
                bollard::errors::Error::DockerContainerWaitError { .. } => break,
                error if status(&error).is_some() => break,
                _ => {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    waiting = self.client.wait_container(&self.container, None);
                }
            }
        }
        let end = self.last_words().await;
        self.finish(end);
    }

    /// What the engine still knows about it.
    async fn last_words(&self) -> End {
        let known = self.client.inspect_container(&self.container, None).await;
        let out_of_memory = known.ok().and_then(|known| known.state?.oom_killed).unwrap_or(false);
        let timed_out = self.timed_out.load(Ordering::Relaxed);
        End { oom_kills: u64::from(out_of_memory), timed_out, ..End::default() }
    }

    fn finish(&self, end: End) {
        self.state.send_if_modified(|state| {
            let first = !matches!(state, MachineState::Ended(_));
            if first {
                *state = MachineState::Ended(end);
            }
            first
        });
    }

    async fn end(&self) -> Result<End, DriverError> {
        let known = match *self.state.borrow() {
            MachineState::Ended(end) => Some(end),
            _ => None,
        };
        let end = match known {
            Some(end) => end,
            None => self.last_words().await,
        };
        let removed = owner::remove(&self.client, &self.container).await;
        removed.map_err(|error| failed("remove the container", explain(&error)))?;
        if let Some(files) = &self.files {
            let _ = std::fs::remove_dir_all(files);
        }
        self.finish(end);
        Ok(end)
    }

    async fn expire(&self, overdue: Overdue) {
        match overdue {
            Overdue::Destroy => {
                self.timed_out.store(true, Ordering::Relaxed);
                let _ = self.client.kill_container(&self.container, None).await;
            }
            Overdue::Freeze => {
                if self.freeze(true).await.is_ok() {
                    self.set_frozen(true, true);
                }
            }
        }
    }

    async fn freeze(&self, frozen: bool) -> Result<(), DriverError> {
        let (step, done) = match frozen {
            true => ("freeze the container", self.client.pause_container(&self.container).await),
            false => ("thaw the container", self.client.unpause_container(&self.container).await),
        };
        let Err(error) = done else { return Ok(()) };
        // It may be as wanted already.
        let known = self.client.inspect_container(&self.container, None).await;
        match known.ok().and_then(|known| known.state?.paused) == Some(frozen) {
            true => Ok(()),
            false => Err(failed(step, explain(&error))),
        }
    }

    fn set_frozen(&self, frozen: bool, overdue: bool) {
        self.state.send_if_modified(|state| {
            let next = if frozen { MachineState::Frozen { overdue } } else { MachineState::Running };
            let changes = !matches!(state, MachineState::Ended(_)) && *state != next;
            if changes {
                *state = next;
            }
            changes
        });
    }

    /// Joins a stream to the agent as soon as the container is not frozen: the engine starts no relay in one that is.
    async fn lead(self: Arc<Self>, mut stream: tokio::io::DuplexStream) {
        let mut state = self.state.subscribe();
        if state.wait_for(|state| !matches!(state, MachineState::Frozen { .. })).await.is_err() {
            return;
        }
        if let Ok(mut relay) = Attached::by_relay(&self.client, &self.container).await {
            let _ = tokio::io::copy_bidirectional_with_sizes(&mut stream, &mut relay, 65_536, 65_536).await;
        }
    }
}

impl Machine for Contained {
    fn connect(&self) -> Pending<'_, Result<Box<dyn ByteStream>, DriverError>> {
        Box::pin(async move {
            if let Some(first) = self.first.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return Ok(Box::new(first) as Box<dyn ByteStream>);
            }
            if !self.lasting {
                return Err(failed("connect to the agent", "its only stream is in use"));
            }
            let (ours, theirs) = tokio::io::duplex(256 * 1024);
            tokio::spawn(self.inner.clone().lead(theirs));
            Ok(Box::new(ours) as Box<dyn ByteStream>)
        })
    }

    fn pause(&self, frozen: bool) -> Pending<'_, Result<(), DriverError>> {
        Box::pin(async move {
            self.inner.freeze(frozen).await?;
            self.inner.set_frozen(frozen, false);
            Ok(())
        })
    }

    fn set_deadline(&self, after: Option<Duration>, overdue: Overdue) -> Pending<'_, Result<(), DriverError>> {
        self.count_down(after, overdue);
        Box::pin(async { Ok(()) })
    }

    fn usage(&self) -> Pending<'_, Result<Usage, DriverError>> {
        Box::pin(async move {
            let options = StatsOptions { stream: false, one_shot: true };
            let told = self.inner.client.stats(&self.inner.container, Some(options)).next().await;
            let told = told.ok_or_else(|| failed("ask what the container uses", "the engine does not answer"))?;
            let told = told.map_err(|error| failed("ask what the container uses", explain(&error)))?;
            let memory = told.memory_stats.unwrap_or_default();
            let counted = memory.stats.unwrap_or_default();
            // By version 2 of cgroups, or by version 1.
            let count = |names: [&str; 2]| names.iter().find_map(|name| counted.get(*name).copied()).unwrap_or(0);
            let (droppable, cache) = (count(["inactive_file", "total_inactive_file"]), count(["file", "total_cache"]));
            let used = memory.usage.unwrap_or(0);
            Ok(Usage {
                cpu_us: told.cpu_stats.and_then(|cpu| cpu.cpu_usage?.total_usage).unwrap_or(0) / 1000,
                memory: used.saturating_sub(droppable),
                memory_peak: memory.max_usage.unwrap_or(used),
                pids: told.pids_stats.and_then(|pids| pids.current).unwrap_or(0),
                cache,
                ..Usage::default()
            })
        })
    }

    fn state(&self) -> watch::Receiver<MachineState> {
        self.inner.state.subscribe()
    }

    fn destroy(&self) -> Pending<'_, Result<End, DriverError>> {
        Box::pin(async move {
            self.count_down(None, Overdue::Destroy);
            self.outlets.lock().unwrap_or_else(PoisonError::into_inner).take();
            self.inner.end().await
        })
    }

    fn take_outlets(&self) -> Option<Outlets> {
        self.outlets.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn pid(&self) -> Option<i32> {
        self.pid
    }
}
