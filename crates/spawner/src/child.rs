//! The forked process, from its first instruction until it is an agent.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::process::{Signal, getegid, geteuid, set_parent_process_death_signal, setsid};
use rustix::thread::CapabilitySet;
use sloplet_agent::{Config, Identity};
use sloplet_seccomp::Profile;
use sloplet_sys::clone::{Namespaces, SingleThreaded, exit_now};
use sloplet_wire::{Fatal, Kind};

use crate::cgroup::Group;
use crate::container::{self, Materials};
use crate::idmap;
use crate::plan::{Container, Plan, Runtime, Wall};
use crate::privileges::{self, Reach};
use crate::process;
use crate::protocol::{During, Privilege, Problem, receive, send};
use crate::runtime::house;
use crate::runtime::keeper::Keeper;

/// The forked process, before it is an agent.
pub struct Child<'a> {
    /// Proof for what follows.
    pub thread: &'a SingleThreaded,
    /// What it is to become.
    pub plan: &'a Plan,
    /// How its users map to users outside.
    pub privilege: &'a Privilege,
    /// Its control group.
    pub group: &'a Group,
    /// User on the host that a process tree runs as, if not the spawner's own.
    pub user: Option<u32>,
    /// Whether the control group bounds processes.
    pub pids_by_cgroup: bool,
    /// Whether it was forked in the [bare](crate::bare) mount namespace.
    pub bare: bool,
}

/// What the build of the walls leaves to the agent.
struct Built {
    identity: Identity,
    root: PathBuf,
    oom_score: Option<File>,
}

impl Child<'_> {
    /// Builds the walls and serves, to the end of the process.
    pub fn become_agent(
        &self,
        supplies: OwnedFd,
        stream: OwnedFd,
        listener: Option<OwnedFd>,
        memory: Option<OwnedFd>,
    ) -> ! {
        if let Wall::Container(container) = &self.plan.wall
            && let Some(runtime) = &container.runtime
        {
            self.become_keeper(container, runtime, supplies, stream, listener, memory)
        }
        let keep = [Some(stream.as_fd()), listener.as_ref().map(AsFd::as_fd)];
        let keep: Vec<i32> = keep.iter().flatten().map(AsRawFd::as_raw_fd).collect();
        let code = match self.build(supplies, keep) {
            Ok(Built { identity, root, oom_score }) => {
                let filters = self.plan.filters_commands() && !self.plan.lacks("set-id-filter");
                let filter = filters.then(sloplet_seccomp::set_id::program);
                let (command_filter, spare_filter) = match self.plan.wall.writes_to_host() {
                    true => (filter, None),
                    false => (None, filter),
                };
                let config = Config {
                    stream: Some(stream),
                    pipes: None,
                    device: None,
                    listener,
                    door: None,
                    identity,
                    root,
                    oom_score,
                    command_filter,
                    spare_filter,
                };
                i32::from(sloplet_agent::serve(config).is_err())
            }
            Err(problem) => {
                tell(&stream, problem);
                1
            }
        };
        exit_now(code)
    }

    /// Builds the walls and starts the runtime that has the agent behind it.
    fn become_keeper(
        &self,
        container: &Container,
        runtime: &Runtime,
        supplies: OwnedFd,
        stream: OwnedFd,
        listener: Option<OwnedFd>,
        memory: Option<OwnedFd>,
    ) -> ! {
        let keep = [Some(stream.as_fd()), listener.as_ref().map(AsFd::as_fd), memory.as_ref().map(AsFd::as_fd)];
        let keep: Vec<i32> = keep.iter().flatten().map(AsRawFd::as_raw_fd).collect();
        if let Err(problem) = self.house(container, runtime, supplies, &keep) {
            tell(&stream, problem);
            exit_now(1)
        }
        let copy = stream.try_clone();
        let kept = Keeper::start(runtime, stream, self.plan.lasting, memory.as_ref());
        let code = match (kept, copy) {
            (Ok(keeper), _) => match keeper.keep(listener) {
                Ok(()) => 0,
                Err((stream, problem)) => {
                    tell(&stream, problem);
                    1
                }
            },
            (Err(problem), Ok(stream)) => {
                tell(&stream, problem);
                1
            }
            (Err(_), Err(_)) => 1,
        };
        exit_now(code)
    }

    fn house(
        &self,
        container: &Container,
        runtime: &Runtime,
        supplies: OwnedFd,
        keep_open: &[i32],
    ) -> Result<(), Problem> {
        if *self.privilege == Privilege::SingleUser {
            return Err(Problem::plain("run a runtime", "it needs subordinate ids: see 'sloplet doctor'"));
        }
        self.group.join().during("join the cgroup")?;
        let Some((has_score, mut fds)) = receive::<bool>(&supplies).during("receive mounts")? else {
            exit_now(1) // the spawner gave up and has told why
        };
        if has_score {
            fds.pop(); // the runtime has a score of its own
        }
        let materials = Materials::from_fds(container, fds)?;
        let hand_out = |upper: OwnedFd| send(&supplies, &0u8, &[upper.as_fd()]).during("hand out the stage");
        let hand_out = self.plan.lasting.then_some(&hand_out as container::HandOut<'_>);
        if !self.plan.lacks("cgroup-namespace") {
            self.thread.unshare(Namespaces::CGROUP).during("make a cgroup namespace")?;
        }
        house::enclose(container, self.plan, runtime, materials, hand_out)?;
        drop(supplies); // before it is closed behind its back
        detach_from_parent(self.thread, keep_open)?;
        set_parent_process_death_signal(Some(Signal::KILL)).during("tie the sandbox to its spawner")
    }

    fn build(&self, supplies: OwnedFd, mut keep_open: Vec<i32>) -> Result<Built, Problem> {
        self.group.join().during("join the cgroup")?;
        let Some((has_score, mut fds)) = receive::<bool>(&supplies).during("receive mounts")? else {
            exit_now(1) // the spawner gave up and has told why
        };
        let oom_score = has_score.then(|| fds.pop()).flatten().map(File::from);
        keep_open.extend(oom_score.as_ref().map(AsRawFd::as_raw_fd));
        let switch_users = *self.privilege != Privilege::SingleUser;
        let (identity, keep, profile, reach) = match &self.plan.wall {
            Wall::Container(plan) => {
                let materials = Materials::from_fds(plan, fds)?;
                // Where the spawner finds what is written inside. It reads that when it needs it.
                let hand_out = |upper: OwnedFd| send(&supplies, &0u8, &[upper.as_fd()]).during("hand out the stage");
                let hand_out = self.plan.lasting.then_some(&hand_out as container::HandOut<'_>);
                container::enclose(plan, self.plan, materials, switch_users, self.bare, hand_out)?;
                if !self.plan.lacks("cgroup-namespace") {
                    self.thread.unshare(Namespaces::CGROUP).during("make a cgroup namespace")?;
                }
                let (identity, keep) = if switch_users {
                    (Identity::Switch { default_user: plan.default_user.clone() }, privileges::ROOT_INSIDE)
                } else {
                    let (uid, name, home) = (idmap::USER, "user".to_owned(), "/home/user".into());
                    (Identity::Fixed { uid, gid: uid, name, home }, CapabilitySet::empty())
                };
                let profile = if plan.aio { Profile::ContainerAio } else { Profile::Container };
                (identity, keep, profile, Reach::root())
            }
            Wall::Process(plan) => {
                let reach = process::enclose(plan, self.plan, self.user, self.pids_by_cgroup)?;
                let home = OsStr::from_bytes(&plan.scratch).into();
                let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
                let identity = Identity::Fixed { uid, gid, name: "user".to_owned(), home };
                (identity, CapabilitySet::empty(), Profile::Process, reach)
            }
        };
        drop(supplies); // before it is closed behind its back
        keep_open.extend(reach.open().map(AsRawFd::as_raw_fd));
        detach_from_parent(self.thread, &keep_open)?;
        let lacks = |protection: &str| self.plan.lacks(protection);
        privileges::renounce(keep, profile, &reach, self.plan.filters_commands(), &lacks)?;

        // After the last change of credentials, which would clear it.
        set_parent_process_death_signal(Some(Signal::KILL)).during("tie the sandbox to its spawner")?;
        // A process tree's files have the same paths for the agent as for its commands: Landlock is the wall for both.
        Ok(Built { identity, root: PathBuf::from("/"), oom_score })
    }
}

/// A session of its own, nothing of the host's on the standard descriptors, no other descriptor but the agent's.
fn detach_from_parent(thread: &SingleThreaded, keep_open: &[i32]) -> Result<(), Problem> {
    let _ = setsid();
    let null = File::options().read(true).write(true).open("/dev/null").during("open /dev/null")?;
    thread.replace_standard_fds(null.as_fd()).during("detach the standard descriptors")?;
    drop(null); // before it is closed behind its back
    thread.close_all_but(keep_open).during("close inherited descriptors")
}

/// Tells the engine on the agent's stream why there will be no agent.
fn tell(stream: &OwnedFd, problem: Problem) {
    let fatal = Fatal { step: problem.step, errno: problem.errno, detail: problem.detail };
    let mut frame = Vec::new();
    sloplet_wire::frame::encode(&mut frame, Kind::Fatal, 0, 0, &sloplet_wire::to_bytes(&fatal));
    let _ = rustix::io::write(stream, &frame);
}
