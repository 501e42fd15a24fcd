//! One running sandbox.

use std::sync::{Mutex, PoisonError};

use sloplet_engine::driver::ByteStream;
use sloplet_engine::{DriverError, End, Machine, Pending};
use sloplet_spawner::handle::{Created, Gone, Spawner};
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use crate::driver::{failed, problem};

/// A sandbox made of namespaces.
pub struct Namespaced {
    id: String,
    pid: i32,
    spawner: Spawner,
    stream: Mutex<Option<UnixStream>>,
    gone: tokio::sync::Mutex<Ending>,
}

enum Ending {
    Expected(oneshot::Receiver<Gone>),
    Past(End),
}

impl Namespaced {
    pub(crate) fn new(id: &str, spawner: Spawner, created: Created, stream: UnixStream) -> Self {
        Self {
            id: id.to_owned(),
            pid: created.pid,
            spawner,
            stream: Mutex::new(Some(stream)),
            gone: tokio::sync::Mutex::new(Ending::Expected(created.gone)),
        }
    }
}

impl Machine for Namespaced {
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
            let gone = self.spawner.finish(&self.id, gone).await.map_err(problem)?;
            let end = End { oom_kills: gone.oom_kills, timed_out: gone.timed_out, over_disk: false, lost: false };
            *ending = Ending::Past(end);
            Ok(end)
        })
    }

    fn pid(&self) -> Option<i32> {
        Some(self.pid)
    }
}
