//! The answer to a kill: it comes when the killed are gone.

use std::time::Duration;

use sloplet_wire::{Event, Failure};

use crate::context::Context;
use crate::stream::{Job, Step, StreamIo};

/// How long until another look is taken: those that others reap are not heard of.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Waits until a process, or all of a process group, has been reaped. A killed process takes a moment to end, and whoever killed
/// it would find it still there.
pub(crate) struct Killing {
    /// As `kill` takes it: a group is negative.
    target: i32,
}

impl Killing {
    /// Of a process or a group that was sent SIGKILL; `None` if nothing is left of it.
    pub(crate) fn of(target: i32) -> Option<Self> {
        Some(Self { target }).filter(Self::is_there)
    }

    fn is_there(&self) -> bool {
        sloplet_sys::spawn::send_signal(self.target, 0).is_ok()
    }
}

impl Job for Killing {
    fn step(&mut self, io: &mut StreamIo<'_>, _: &Context) -> Result<Step, Failure> {
        if self.is_there() {
            return Ok(Step::Wait);
        }
        io.event(&Event::Done);
        Ok(Step::Finished)
    }
}
