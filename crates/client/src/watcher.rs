//! Changes in a folder.

use std::future::poll_fn;

use sloplet_wire::{Change, ChangeKind, Event};

use crate::ClientError;
use crate::stream::StreamHandle;

/// A watched folder. Dropping it stops watching.
pub struct Watcher {
    stream: StreamHandle,
}

impl Watcher {
    pub(crate) fn new(stream: StreamHandle) -> Self {
        Self { stream }
    }

    /// The next change. If changes come faster than they are taken, the oldest are dropped and
    /// [`ChangeKind::Overflow`] says so.
    pub async fn recv(&mut self) -> Result<Change, ClientError> {
        if self.stream.take_lost() {
            return Ok(Change { kind: ChangeKind::Overflow, path: Vec::new().into() });
        }
        match poll_fn(|cx| self.stream.poll_event(cx)).await? {
            Event::Change(change) => Ok(change),
            event => match self.stream.expect::<()>(event) {
                Err(error) => Err(error),
                Ok(()) => Err(self.stream.violation("`Done` while watching")),
            },
        }
    }
}
