//! From a plan to a sandbox.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sloplet_sys::clone::{Namespaces, Side};

use super::{Server, from_now};
use crate::bare::FORK;
use crate::cgroup::{self, Group};
use crate::child::Child;
use crate::container::Materials;
use crate::container::binds::Templates;
use crate::container::late::{Claimable, Entrance};
use crate::lease::Lease;
use crate::network::Outlet;
use crate::plan::{Plan, Wall};
use crate::protocol::{During, Overdue, Privilege, Problem, Walls, send};
use crate::sandbox::{Door, HeldLayer, Sandbox, Stage as SandboxStage, kill_and_wait};
use crate::{door, idmap, process};

/// What every sandbox needs, made ahead.
pub(super) struct Spare {
    lease: Option<Lease>,
    group: Group,
}

/// A child that builds its walls.
struct Started {
    pid: i32,
    pidfd: OwnedFd,
    stage: SandboxStage,
    claimable: Option<Claimable>,
}

/// What [`Server::keep`] keeps.
type Kept = (Vec<Rc<HeldLayer>>, Option<OwnedFd>, Option<Door>);

const CONTAINER_NAMESPACES: Namespaces = Namespaces(
    Namespaces::USER.0
        | Namespaces::MOUNT.0
        | Namespaces::PID.0
        | Namespaces::IPC.0
        | Namespaces::UTS.0
        | Namespaces::TIME.0,
);

impl Server {
    /// Gets ready what the next sandbox will need whatever it is. Failures will be told by the next `Create`, which tries
    /// again.
    pub(super) fn prepare_next(&mut self) {
        if self.walls == Walls::Container {
            let _ = self.stage.set(&self.thread, &self.privilege, self.owner.run_dir());
            self.stage.expect_many(&self.thread, &self.privilege);
            // The next one will be like the latest, as far as anybody knows.
            if self.egress_wanted {
                let _ = self.stage.network.prepare_outlet(&self.thread);
            }
        }
        if self.spare.is_none() {
            self.spare = self.make_spare().ok();
        }
    }

    fn make_spare(&mut self) -> Result<Spare, Problem> {
        let lease = match self.privilege {
            Privilege::Root => Some(Lease::take(self.owner.run_dir(), &self.owner.name)?),
            _ => None,
        };
        self.groups_made += 1;
        let mut group = Group::make(&self.cgroups, &self.owner.group_name(self.groups_made))?;
        if matches!(self.privilege, Privilege::SubordinateIds { .. }) {
            group.join_freezer_early()?;
        }
        Ok(Spare { lease, group })
    }

    pub(super) fn create(&mut self, id: &str, plan: &Plan, fds: Vec<OwnedFd>) -> Result<(i32, u64), Problem> {
        match (self.walls, &plan.wall) {
            (Walls::Container, Wall::Container(_)) => {
                self.stage.set(&self.thread, &self.privilege, self.owner.run_dir())?;
            }
            (Walls::Process, Wall::Process(_)) => {}
            _ => return Err(io::Error::other("this spawner is for another kind of wall")).during("start"),
        }
        if self.retired {
            return Err(Problem::plain("start", "this spawner makes no more sandboxes"));
        }
        if self.find(id).is_ok() {
            return Err(Problem::plain("start", "there is a sandbox of that id already"));
        }
        let Spare { lease, mut group } = match self.spare.take() {
            Some(spare) => spare,
            None => self.make_spare()?,
        };
        let scratch = match &plan.wall {
            Wall::Container(_) => None,
            Wall::Process(process) => {
                let record = self.owner.run_dir().join(&self.owner.name);
                Some(process::Scratch::make(process, &record, id, lease.as_ref().map(process::user_of))?)
            }
        };
        let bounds = &plan.bounds;
        let limits = cgroup::Limits { memory: bounds.memory, cpu_millis: bounds.cpu_millis, pids: bounds.pids };
        let (layers, listener, door) = match plan.lasting {
            true => self.keep(id, plan)?,
            false => Default::default(),
        };
        self.egress_wanted = plan.egress;
        let outlet = match (plan.egress, self.walls) {
            (true, Walls::Container) => self.stage.network.open_outlet(&self.thread)?.sockets,
            (true, Walls::Process) => return Err(Problem::plain("start", "this kind of wall has no way out")),
            (false, Walls::Container) => {
                self.stage.network.expect_none(&self.thread)?;
                // What is not heard is not recorded; what runs is not stopped for that.
                if plan.ear { Outlet::ear().into_iter().collect() } else { Vec::new() }
            }
            (false, Walls::Process) => Vec::new(),
        };
        let started = group.limit(limits).and_then(|()| self.start(plan, fds, listener, &group, lease.as_ref()));
        let Started { pid, pidfd, stage, claimable } = started?;
        group.started();
        self.sandboxes_made += 1;
        let token = self.watch(&pidfd).during("watch the sandbox")?;
        let sandbox = Sandbox {
            id: id.to_owned(),
            pid,
            pidfd,
            stage,
            copying: None,
            group,
            frozen: false,
            lasting: plan.lasting,
            born: Instant::now(),
            deadline: from_now(bounds.lifetime_ms),
            overdue: Overdue::Destroy,
            timed_out: false,
            layers,
            outlet,
            claimable,
            door,
            scratch,
            lease,
        };
        self.tokens.insert(id.to_owned(), token);
        self.sandboxes.insert(token, sandbox);
        Ok((pid, token))
    }

    /// What a lasting sandbox needs besides: its layers held, and a socket for its agent.
    fn keep(&mut self, id: &str, plan: &Plan) -> Result<Kept, Problem> {
        if self.door.is_none() {
            return Err(Problem::plain("start", "this spawner does not outlive its engine"));
        }
        let paths = match &plan.wall {
            Wall::Container(container) => &container.layers[..],
            Wall::Process(_) => &[],
        };
        let path = |bytes: &minicbor::bytes::ByteVec| PathBuf::from(OsStr::from_bytes(bytes));
        let layers = paths.iter().map(|layer| self.layers.hold(&path(layer))).collect::<Result<_, _>>()?;
        let has_runtime = matches!(&plan.wall, Wall::Container(container) if container.runtime.is_some());
        let (name, kind) = match has_runtime {
            true => (door::of_keeper(id), SocketType::SEQPACKET),
            false => (door::of_agent(id), SocketType::STREAM),
        };
        let dir = self.owner.dir();
        let listener = door::open_door(&dir, &name, kind).during("make the agent's socket")?;
        Ok((layers, Some(listener), Some(Door(dir.join(name)))))
    }

    /// Forks the child and hands it what it needs.
    fn start(
        &mut self,
        plan: &Plan,
        fds: Vec<OwnedFd>,
        listener: Option<OwnedFd>,
        group: &Group,
        lease: Option<&Lease>,
    ) -> Result<Started, Problem> {
        let mut fds = fds.into_iter();
        let stream = fds.next().ok_or_else(|| Problem::no_descriptors("start"))?;
        let disk =
            matches!(&plan.wall, Wall::Container(container) if container.disk_on_file).then(|| fds.next()).flatten();
        let restores = |container: &crate::plan::Container| container.runtime.as_ref().is_some_and(|it| it.restore);
        let memory =
            matches!(&plan.wall, Wall::Container(container) if restores(container)).then(|| fds.next()).flatten();
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .during("make a socket pair")?;
        let namespaces = match &plan.wall {
            Wall::Container(_) => weakened(plan, CONTAINER_NAMESPACES),
            Wall::Process(_) => Namespaces::NONE,
        };
        if plan.lacks("network-namespace") {
            let parent = rustix::process::getppid().map_or(1, |pid| pid.as_raw_nonzero().get());
            let host = File::open(format!("/proc/{parent}/ns/net")).during("find the host's network")?;
            self.thread.enter(host.as_fd()).during("enter the host's network")?;
        }
        let bare = self
            .stage
            .bare()
            .filter(|_| matches!(&plan.wall, Wall::Container(container) if container.runtime.is_none()));
        let side = match bare {
            Some(bare) => bare.fork(&self.thread, namespaces, group.fork_into())?,
            None => self.thread.fork(namespaces, group.fork_into()).during(FORK)?,
        };
        match side {
            Side::Child => {
                drop(ours);
                let user = lease.map(process::user_of);
                let pids_by_cgroup = self.cgroups.check(cgroup::Controller::Pids).is_ok();
                let child = Child {
                    thread: &self.thread,
                    plan,
                    privilege: &self.privilege,
                    group,
                    user,
                    pids_by_cgroup,
                    bare: bare.is_some(),
                };
                child.become_agent(theirs, stream, listener, memory)
            }
            Side::Parent { pid, pidfd } => {
                drop(theirs);
                self.stage.network.used(&self.thread);
                let supplied = self.supply(pid, plan, lease, disk.as_ref(), ours.as_fd());
                if supplied.is_err() {
                    kill_and_wait(&pidfd);
                }
                let stage = if plan.lasting { SandboxStage::Coming(ours) } else { SandboxStage::Unknown };
                supplied.map(|claimable| Started { pid, pidfd, stage, claimable })
            }
        }
    }

    /// Maps the child's ids and passes it its mounts; returns how it can be given more of them later, if it can.
    fn supply(
        &self,
        pid: i32,
        plan: &Plan,
        lease: Option<&Lease>,
        disk: Option<&OwnedFd>,
        to: BorrowedFd<'_>,
    ) -> Result<Option<Claimable>, Problem> {
        // While that is still its own: its next users belong to another namespace, and it may see no `/proc` with itself in it.
        let score = File::options().read(true).write(true).open(format!("/proc/{pid}/oom_score_adj")).ok();
        let container = match &plan.wall {
            Wall::Container(container) => container,
            Wall::Process(_) => {
                let score: Vec<_> = score.iter().map(AsFd::as_fd).collect();
                return send(to, &!score.is_empty(), &score).during("let the child go on").map(|()| None);
            }
        };
        let lines = match plan.lacks("own-ids") {
            true => vec![idmap::Line { inside: 0, outside: 0, count: 65_536 }],
            false => idmap::for_sandbox(&self.privilege, lease),
        };
        idmap::write(pid, &lines)?;
        let namespace = idmap::namespace_of(pid)?;
        let templates = Templates { devices: &self.stage.devices(), masks: &self.stage.masks() };
        let materials =
            Materials::open(&self.thread, plan, &self.privilege, templates, lease, namespace.as_fd(), disk)?;
        let mut fds = materials.fds();
        fds.extend(score.iter().map(AsFd::as_fd));
        // Soon it is closed to inspection by all but real root, who opens this only if it is needed: whoever has it keeps all
        // mounts in the kernel.
        let ahead = plan.claimable && self.privilege != Privilege::Root;
        let entrance = ahead.then(|| Entrance::of(pid)).transpose()?;
        send(to, &score.is_some(), &fds).during("pass mounts to the child")?;
        let can_be = plan.claimable && plan.weaken.is_none() && container.runtime.is_none();
        Ok(can_be.then_some(Claimable { mounts_owner: container.mounts_owner, entrance }))
    }
}

/// The namespaces without the one that a test takes away.
fn weakened(plan: &Plan, all: Namespaces) -> Namespaces {
    let kinds = [("ipc-namespace", Namespaces::IPC), ("uts-namespace", Namespaces::UTS)];
    let missing = kinds.iter().filter(|(name, _)| plan.lacks(name)).fold(0, |bits, (_, kind)| bits | kind.0);
    Namespaces(all.0 & !missing)
}
