//! Saving what a sandbox has written: a child copies while the loop goes on and the sandbox stands still.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Signal, set_parent_process_death_signal};
use sloplet_sys::clone::{Namespaces, Side, exit_now};

use super::Server;
use crate::copier::{self, Owners};
use crate::protocol::{During, Problem, Report, receive, send};
use crate::sandbox::Copying;

const STEP: &str = "take a snapshot";

impl Server {
    /// Freezes the sandbox, if it is not frozen, and starts the copying child.
    pub(super) fn start_copy(&mut self, ticket: u64, id: &str, fds: Vec<OwnedFd>) -> Result<(), Problem> {
        let target = fds.into_iter().next().ok_or_else(|| Problem::no_descriptors(STEP))?;
        let found = self.sandboxes.iter_mut().find(|(_, sandbox)| sandbox.id == id);
        let Some((&token, sandbox)) = found else {
            return Err(Problem::plain("find the sandbox", "it is gone"));
        };
        if sandbox.copying.is_some() {
            return Err(Problem::plain(STEP, "another one is being taken"));
        }
        let owners = sandbox.lease.as_ref().map_or(Owners::Copier, |lease| Owners::Inside(lease.first_id()));
        let upper = sandbox.stage.upper().ok_or_else(|| Problem::plain(STEP, "the sandbox is not ready for it"))?;
        let upper = upper.try_clone().during(STEP)?;
        let (result, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).during(STEP)?;
        let frozen_at = (!sandbox.frozen).then(Instant::now);
        if frozen_at.is_some() {
            sandbox.group.freeze(true)?;
        }
        let pidfd = match self.thread.fork(Namespaces::NONE, None) {
            Ok(Side::Child) => {
                // Not before it would be too late: the parent is alive and waits for this one.
                let _ = set_parent_process_death_signal(Some(Signal::KILL));
                let keep = [upper.as_raw_fd(), target.as_raw_fd(), theirs.as_raw_fd()];
                let copied = self.thread.close_all_but(&keep).during(STEP);
                let report = match copied.and_then(|()| copier::copy(upper, target, owners)) {
                    Ok(saved) => Report::Saved { ticket, saved },
                    Err(problem) => Report::Refused { ticket, problem },
                };
                exit_now(i32::from(send(&theirs, &report, &[]).is_err()))
            }
            Ok(Side::Parent { pidfd, .. }) => pidfd,
            Err(error) => {
                if frozen_at.is_some() {
                    let _ = sandbox.group.freeze(false);
                }
                return Err(Problem::new(STEP, error));
            }
        };
        drop(theirs);
        let watched = self.watch(&result);
        let copying = Copying { ticket, pidfd, result, frozen_at };
        let Some(sandbox) = self.sandboxes.get_mut(&token) else { return Ok(()) };
        match watched {
            Ok(copy) => {
                sandbox.copying = Some(copying);
                self.copies.insert(copy, token);
                Ok(())
            }
            Err(error) => {
                sandbox.end_copying(copying);
                Err(Problem::new(STEP, error))
            }
        }
    }

    /// The copying child has said something, or is dead.
    pub(super) fn finish_copy(&mut self, token: u64) {
        let Some(sandbox) = self.sandboxes.get_mut(&token) else { return };
        let Some(copying) = sandbox.copying.take() else { return };
        let _ = epoll::delete(&self.events, &copying.result);
        let said = receive::<Report>(&copying.result);
        let ticket = copying.ticket;
        let frozen = sandbox.end_copying(copying);
        let report = match said {
            Ok(Some((Report::Saved { mut saved, .. }, _))) => {
                saved.frozen_us = frozen.as_micros().try_into().unwrap_or(u64::MAX);
                Report::Saved { ticket, saved }
            }
            Ok(Some((refused @ Report::Refused { .. }, _))) => refused,
            _ => Report::Refused { ticket, problem: Problem::plain(STEP, "the copying process died") },
        };
        self.report(report);
    }
}
