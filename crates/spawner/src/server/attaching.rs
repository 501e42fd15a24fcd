//! Giving a sandbox mounts while it lives: a child goes in and attaches them while the loop goes on.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Signal, set_parent_process_death_signal};
use sloplet_sys::clone::{Namespaces, Side, exit_now};

use super::Server;
use crate::container::late::{self, Entrance};
use crate::plan::Mount;
use crate::protocol::{During, Privilege, Problem, Report, receive, send};
use crate::sandbox::kill_and_wait;

const STEP: &str = "attach mounts";

/// A process that gives a sandbox mounts.
pub(super) struct Attaching {
    /// Of the order.
    ticket: u64,
    /// The sandbox's token.
    sandbox: u64,
    pidfd: OwnedFd,
    /// Where it says what it has done.
    result: OwnedFd,
}

impl Server {
    /// Starts the child that attaches.
    pub(super) fn start_attaching(
        &mut self,
        ticket: u64,
        id: &str,
        mounts: &[Mount],
        hostname: Option<&str>,
    ) -> Result<(), Problem> {
        let token = self.tokens.get(id).copied();
        let Some((token, sandbox)) = token.and_then(|token| Some((token, self.sandboxes.get_mut(&token)?))) else {
            return Err(Problem::plain("find the sandbox", "it is gone"));
        };
        // Once: nobody goes in when it is somebody's.
        let claimable = sandbox.claimable.take();
        let claimable = claimable.ok_or_else(|| Problem::plain(STEP, "the sandbox does not wait for any"))?;
        let entrance = match claimable.entrance {
            Some(entrance) => entrance,
            None => Entrance::of(sandbox.pid)?,
        };
        let owner = sandbox.lease.as_ref().map(|lease| (lease.first_id(), claimable.mounts_owner));
        let (result, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).during(STEP)?;
        let pidfd = match self.thread.fork(Namespaces::NONE, None).during(STEP)? {
            Side::Child => {
                let _ = set_parent_process_death_signal(Some(Signal::KILL));
                let [user, mount, uts] = entrance.numbers();
                let keep = [user, mount, uts, theirs.as_raw_fd()];
                let closed = self.thread.close_all_but(&keep).during(STEP);
                let switch_users = self.privilege != Privilege::SingleUser;
                let attach = || late::attach(&self.thread, &entrance, mounts, hostname, owner, switch_users);
                let report = match closed.and_then(|()| attach()) {
                    Ok(()) => Report::Done { ticket },
                    Err(problem) => Report::Refused { ticket, problem },
                };
                exit_now(i32::from(send(&theirs, &report, &[]).is_err()))
            }
            Side::Parent { pidfd, .. } => pidfd,
        };
        drop(theirs);
        match self.watch(&result) {
            Ok(watched) => {
                self.attachings.insert(watched, Attaching { ticket, sandbox: token, pidfd, result });
                Ok(())
            }
            Err(error) => {
                kill_and_wait(&pidfd);
                Err(Problem::new(STEP, error))
            }
        }
    }

    /// The child has said something, or is dead.
    pub(super) fn finish_attaching(&mut self, attaching: Attaching) {
        let Attaching { ticket, pidfd, result, .. } = attaching;
        let _ = epoll::delete(&self.events, &result);
        let report = match receive::<Report>(&result) {
            Ok(Some((report @ (Report::Done { .. } | Report::Refused { .. }), _))) => report,
            _ => Report::Refused { ticket, problem: Problem::plain(STEP, "the attaching process died") },
        };
        kill_and_wait(&pidfd);
        self.report(report);
    }

    /// A sandbox is gone: nobody may stay in its namespaces.
    pub(super) fn stop_attaching(&mut self, sandbox: u64) {
        let its_own = self.attachings.extract_if(|_, attaching| attaching.sandbox == sandbox);
        let ended: Vec<Attaching> = its_own.map(|(_, attaching)| attaching).collect();
        for Attaching { ticket, pidfd, result, .. } in ended {
            let _ = epoll::delete(&self.events, &result);
            kill_and_wait(&pidfd);
            let problem = Problem::plain(STEP, "the sandbox ended meanwhile");
            self.report(Report::Refused { ticket, problem });
        }
    }
}
