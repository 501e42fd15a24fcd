//! The spawner's loop.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{
    Signal, WaitId, WaitIdOptions, getegid, geteuid, getpid, pidfd_send_signal, set_child_subreaper,
    set_parent_process_death_signal, setsid, umask, waitid,
};
use rustix::thread::CapabilitySet;
use sloplet_agent::{Config, Identity};
use sloplet_seccomp::Profile;
use sloplet_sys::clone::{Namespaces, Side, SingleThreaded, exit_now};
use sloplet_wire::{Fatal, Kind};

use crate::cgroup::{self, Cgroups, Group};
use crate::container::binds::Templates;
use crate::container::{self, Materials};
use crate::idmap;
use crate::lease::Lease;
use crate::owner::Owner;
use crate::plan::{Plan, Wall};
use crate::privileges::{self, Reach};
use crate::process;
use crate::protocol::{Command, During, Privilege, Problem, Report, Setup, Walls, receive, send};
use crate::stage::Stage;

/// How long nothing must have happened before something is made ahead: long enough for the latest child to build its
/// walls undisturbed.
const LULL: Timespec = Timespec { tv_sec: 0, tv_nsec: 4_000_000 };

/// The conversation's token in the poll set; sandboxes count from 1.
const CONTROL: u64 = 0;

/// Runs a spawner that is told what to do on `control`, and returns when the engine is gone and everything it made is
/// gone, too.
pub fn serve(control: OwnedFd, haste: Haste) -> i32 {
    let Ok(thread) = SingleThreaded::prove() else { return 1 };
    let mut stage = Stage::default();
    if haste == Haste::OneContainer {
        stage.enter_ahead(&thread);
    }
    let setup = match receive::<Setup>(&control) {
        Ok(Some((setup, _))) => setup,
        _ => return 1,
    };
    match Server::set_up(control.as_fd(), setup, thread, stage, haste) {
        Ok(mut server) => {
            let _ = send(&control, &Report::Ready, &[]);
            server.run()
        }
        Err(problem) => {
            let _ = send(&control, &Report::Unable(problem), &[]);
            1
        }
    }
}

/// What is known of the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Haste {
    /// Nothing.
    None,
    /// Most likely one sandbox of the kind `container` will be wanted, at once, and no other.
    OneContainer,
}

struct Server<'a> {
    control: BorrowedFd<'a>,
    thread: SingleThreaded,
    privilege: Privilege,
    walls: Walls,
    cgroups: Cgroups,
    stage: Stage,
    haste: Haste,
    events: OwnedFd,
    sandboxes: HashMap<u64, Sandbox>,
    next_token: u64,
    groups_made: u64,
    spare: Option<Spare>,
    // Last: everything above is gone when the record goes.
    owner: Owner,
}

/// What every sandbox needs, made ahead.
struct Spare {
    lease: Option<Lease>,
    group: Group,
}

/// A living sandbox and what it holds on the host.
struct Sandbox {
    id: String,
    pid: i32,
    pidfd: OwnedFd,
    group: Group,
    frozen: bool,
    tied: bool,
    deadline: Instant,
    timed_out: bool,
    // Before the lease: while the folder exists, nobody else may have the id that owns it.
    scratch: Option<process::Scratch>,
    lease: Option<Lease>,
}

impl<'a> Server<'a> {
    fn set_up(
        control: BorrowedFd<'a>,
        setup: Setup,
        thread: SingleThreaded,
        mut stage: Stage,
        haste: Haste,
    ) -> Result<Self, Problem> {
        // A Ctrl-C at the terminal is for the command inside, by way of the engine, not for this process.
        let _ = setsid();
        // Devices and folders get exactly the modes they are made with.
        umask(Mode::empty());
        let cgroups = Cgroups::detect();
        let owner = Owner::register(Path::new(&setup.run_dir), &cgroups)?;
        match setup.walls {
            Walls::Container => stage.set(&thread, &setup.privilege, owner.run_dir())?,
            // What outlives an agent comes to this process, see `process::kill_all`.
            Walls::Process => set_child_subreaper(Some(getpid())).during("become a reaper of orphans")?,
        }
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).during("make a poll set")?;
        let watch = epoll::EventData::new_u64(CONTROL);
        epoll::add(&events, control, watch, epoll::EventFlags::IN).during("watch the engine")?;
        Ok(Self {
            control,
            thread,
            privilege: setup.privilege,
            walls: setup.walls,
            cgroups,
            stage,
            haste,
            events,
            sandboxes: HashMap::new(),
            next_token: CONTROL + 1,
            groups_made: 0,
            spare: None,
            owner,
        })
    }

    fn run(&mut self) -> i32 {
        let mut engine_alive = true;
        let mut ready = Vec::with_capacity(32);
        while engine_alive || !self.sandboxes.is_empty() {
            ready.clear();
            // Nothing to do for a moment: get ready for the next sandbox meanwhile. One says nothing of a next one, two do.
            match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut ready), Some(&LULL)) {
                Ok(0) => {
                    if engine_alive && self.next_token > CONTROL + 2 {
                        self.prepare_next();
                    }
                    let wait = self.until_next_deadline();
                    match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut ready), wait.as_ref()) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(_) => return 1,
                    }
                    self.kill_overdue();
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return 1,
            }
            for event in ready.drain(..) {
                match event.data.u64() {
                    CONTROL => {
                        engine_alive = engine_alive && self.obey();
                        if !engine_alive {
                            let _ = epoll::delete(&self.events, self.control);
                            self.abandon();
                        }
                    }
                    token => {
                        self.bury(token);
                        // The one sandbox is over: whoever waits for the end of this process need not ask for it.
                        if self.haste == Haste::OneContainer && self.sandboxes.is_empty() {
                            return 0;
                        }
                    }
                }
            }
        }
        0
    }

    fn until_next_deadline(&self) -> Option<Timespec> {
        let next =
            self.sandboxes.values().filter(|sandbox| !sandbox.timed_out).map(|sandbox| sandbox.deadline).min()?;
        let rest = next.saturating_duration_since(Instant::now());
        Some(Timespec { tv_sec: rest.as_secs().min(1 << 30) as i64, tv_nsec: i64::from(rest.subsec_nanos()) })
    }

    fn kill_overdue(&mut self) {
        let now = Instant::now();
        for sandbox in self.sandboxes.values_mut().filter(|sandbox| sandbox.deadline <= now && !sandbox.timed_out) {
            sandbox.timed_out = true;
            sandbox.kill();
        }
    }

    /// Carries out one command; false when the engine is gone.
    fn obey(&mut self) -> bool {
        match receive::<Command>(self.control) {
            Ok(Some((Command::Create { id, plan }, fds))) => match self.create(&id, &plan, fds) {
                Ok((pid, token)) => {
                    let pidfd = self.sandboxes.get(&token).map(|sandbox| sandbox.pidfd.as_fd());
                    let _ = send(self.control, &Report::Created { id, pid }, &pidfd.into_iter().collect::<Vec<_>>());
                    if self.haste == Haste::OneContainer {
                        self.stage.leave(&self.thread);
                    }
                }
                Err(problem) => self.report(&Report::Failed { id, problem }),
            },
            Ok(Some((Command::Destroy { id }, _))) => {
                if let Some(sandbox) = self.sandboxes.values_mut().find(|sandbox| sandbox.id == id) {
                    sandbox.kill();
                }
            }
            Ok(Some((Command::Pause { id, frozen }, _))) => {
                let result = match self.sandboxes.values_mut().find(|sandbox| sandbox.id == id) {
                    Some(sandbox) => sandbox.group.freeze(frozen).map(|()| sandbox.frozen = frozen),
                    None => Err(Problem { step: "find the sandbox".into(), detail: "it is gone".into(), errno: 0 }),
                };
                self.report(&Report::Paused { id, problem: result.err() });
            }
            Ok(None) | Err(_) => return false,
        }
        true
    }

    fn report(&self, report: &Report) {
        // If the engine is gone, the loop will see it.
        let _ = send(self.control, report, &[]);
    }

    /// The engine is gone: so are its sandboxes, except those made to outlive it.
    fn abandon(&mut self) {
        let (tied, free) = std::mem::take(&mut self.sandboxes).into_iter().partition(|(_, sandbox)| sandbox.tied);
        self.sandboxes = tied;
        // What they hold on the host stays with them.
        std::mem::forget::<HashMap<u64, Sandbox>>(free);
        self.spare = None;
        self.sandboxes.values_mut().for_each(Sandbox::kill);
    }

    /// Gets ready what the next sandbox will need whatever it is. Failures will be told by the next `Create`, which tries
    /// again.
    fn prepare_next(&mut self) {
        if self.walls == Walls::Container {
            let _ = self.stage.set(&self.thread, &self.privilege, self.owner.run_dir());
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
        let group = Group::make(&self.cgroups, &self.owner.group_name(self.groups_made))?;
        Ok(Spare { lease, group })
    }

    fn create(&mut self, id: &str, plan: &Plan, fds: Vec<OwnedFd>) -> Result<(i32, u64), Problem> {
        match (self.walls, &plan.wall) {
            (Walls::Container, Wall::Container(_)) => {
                self.stage.set(&self.thread, &self.privilege, self.owner.run_dir())?;
            }
            (Walls::Process, Wall::Process(_)) => {}
            _ => return Err(io::Error::other("this spawner is for another kind of wall")).during("start"),
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
        let started = group.limit(limits).and_then(|()| self.start(plan, fds, &group, lease.as_ref()));
        let (pid, pidfd) = started?;
        group.started();
        let token = self.next_token;
        self.next_token += 1;
        let watch = epoll::EventData::new_u64(token);
        epoll::add(&self.events, &pidfd, watch, epoll::EventFlags::IN).during("watch the sandbox")?;
        let sandbox = Sandbox {
            id: id.to_owned(),
            pid,
            pidfd,
            group,
            frozen: false,
            tied: plan.tied,
            deadline: Instant::now() + Duration::from_millis(bounds.lifetime_ms),
            timed_out: false,
            scratch,
            lease,
        };
        self.sandboxes.insert(token, sandbox);
        Ok((pid, token))
    }

    /// Forks the child and hands it what it needs.
    fn start(
        &mut self,
        plan: &Plan,
        fds: Vec<OwnedFd>,
        group: &Group,
        lease: Option<&Lease>,
    ) -> Result<(i32, OwnedFd), Problem> {
        let mut fds = fds.into_iter();
        let stream = fds.next().ok_or_else(|| std::io::Error::other("no stream was passed")).during("start")?;
        let disk =
            matches!(&plan.wall, Wall::Container(container) if container.disk_on_file).then(|| fds.next()).flatten();
        let listener = fds.next();
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .during("make a socket pair")?;
        let namespaces = match &plan.wall {
            Wall::Container(_) => CONTAINER_NAMESPACES,
            Wall::Process(_) => Namespaces::NONE,
        };
        match self.thread.fork(namespaces, group.fork_into()).during("fork into new namespaces")? {
            Side::Child => {
                drop(ours);
                let user = lease.map(process::user_of);
                let pids_by_cgroup = self.cgroups.check(cgroup::Controller::Pids).is_ok();
                let child =
                    Child { thread: &self.thread, plan, privilege: &self.privilege, group, user, pids_by_cgroup };
                child.become_agent(theirs, stream, listener)
            }
            Side::Parent { pid, pidfd } => {
                drop(theirs);
                self.stage.network.used();
                let supplied = self.supply(pid, plan, lease, disk.as_ref(), ours.as_fd());
                if supplied.is_err() {
                    kill_and_wait(&pidfd);
                }
                supplied.map(|()| (pid, pidfd))
            }
        }
    }

    /// Maps the child's ids and passes it its mounts.
    fn supply(
        &self,
        pid: i32,
        plan: &Plan,
        lease: Option<&Lease>,
        disk: Option<&OwnedFd>,
        to: BorrowedFd<'_>,
    ) -> Result<(), Problem> {
        let Wall::Container(container) = &plan.wall else {
            return send(to, &0u8, &[]).during("let the child go on");
        };
        idmap::write(pid, &idmap::for_sandbox(&self.privilege, lease))?;
        let namespace = idmap::namespace_of(pid)?;
        let templates = Templates { devices: &self.stage.devices(), masks: &self.stage.masks() };
        let materials =
            Materials::open(&self.thread, container, &self.privilege, templates, lease, namespace.as_fd(), disk)?;
        send(to, &0u8, &materials.fds()).during("pass mounts to the child")
    }

    /// A sandbox's first process is dead, and with it all others if it had a PID namespace: clean up.
    fn bury(&mut self, token: u64) {
        let Some(mut sandbox) = self.sandboxes.remove(&token) else {
            return;
        };
        let _ = epoll::delete(&self.events, &sandbox.pidfd);
        kill_and_wait(&sandbox.pidfd);
        let oom_kills = sandbox.group.oom_kills();
        if sandbox.scratch.is_some() {
            let others: Vec<i32> = self.sandboxes.values().map(|sandbox| sandbox.pid).collect();
            process::kill_all(&self.thread, sandbox.lease.as_ref().map(process::user_of), &others);
        }
        sandbox.group.remove();
        let (id, timed_out) = (std::mem::take(&mut sandbox.id), sandbox.timed_out);
        drop(sandbox);
        self.report(&Report::Gone { id, oom_kills, timed_out });
    }
}

impl Sandbox {
    fn kill(&mut self) {
        if std::mem::take(&mut self.frozen) {
            // On cgroup v1, a frozen process does not die.
            let _ = self.group.freeze(false);
        }
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

const CONTAINER_NAMESPACES: Namespaces = Namespaces(
    Namespaces::USER.0
        | Namespaces::MOUNT.0
        | Namespaces::PID.0
        | Namespaces::IPC.0
        | Namespaces::UTS.0
        | Namespaces::TIME.0,
);

fn kill_and_wait(pidfd: &OwnedFd) {
    let _ = pidfd_send_signal(pidfd, Signal::KILL);
    while matches!(waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED), Err(Errno::INTR)) {}
}

/// The forked process, before it is an agent.
struct Child<'a> {
    thread: &'a SingleThreaded,
    plan: &'a Plan,
    privilege: &'a Privilege,
    group: &'a Group,
    /// User on the host that a process tree runs as, if not the spawner's own.
    user: Option<u32>,
    pids_by_cgroup: bool,
}

impl Child<'_> {
    fn become_agent(&self, supplies: OwnedFd, stream: OwnedFd, listener: Option<OwnedFd>) -> ! {
        // Now, while it is still this process's own: its next users belong to another namespace.
        let oom_score = File::options().read(true).write(true).open("/proc/self/oom_score_adj").ok();
        let keep = [Some(stream.as_fd()), listener.as_ref().map(AsFd::as_fd), oom_score.as_ref().map(AsFd::as_fd)];
        let keep: Vec<i32> = keep.iter().flatten().map(AsRawFd::as_raw_fd).collect();
        let code = match self.build(supplies, &keep) {
            Ok((identity, root)) => {
                let command_filter = self.plan.wall.writes_to_host().then(sloplet_seccomp::set_id::program);
                let config = Config { stream, listener, identity, root, oom_score, command_filter };
                i32::from(sloplet_agent::serve(config).is_err())
            }
            Err(problem) => {
                tell(&stream, problem);
                1
            }
        };
        exit_now(code)
    }

    fn build(&self, supplies: OwnedFd, keep_open: &[i32]) -> Result<(Identity, PathBuf), Problem> {
        self.group.join().during("join the cgroup")?;
        let Some((_, fds)) = receive::<u8>(&supplies).during("receive mounts")? else {
            exit_now(1) // the spawner gave up and has told why
        };
        drop(supplies);
        let switch_users = *self.privilege != Privilege::SingleUser;
        let (identity, keep, profile, reach) = match &self.plan.wall {
            Wall::Container(plan) => {
                container::enclose(plan, &self.plan.bounds, Materials::from_fds(plan, fds)?, switch_users)?;
                self.thread.unshare(Namespaces::CGROUP).during("make a cgroup namespace")?;
                let (identity, keep) = if switch_users {
                    (Identity::Switch { default_user: plan.default_user.clone() }, privileges::ROOT_INSIDE)
                } else {
                    let (uid, name, home) = (idmap::USER, "user".to_owned(), "/home/user".into());
                    (Identity::Fixed { uid, gid: uid, name, home }, CapabilitySet::empty())
                };
                (identity, keep, Profile::Container, Reach::root())
            }
            Wall::Process(plan) => {
                let reach = process::enclose(plan, self.plan, self.user, self.pids_by_cgroup)?;
                let home = OsStr::from_bytes(&plan.scratch).into();
                let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
                let identity = Identity::Fixed { uid, gid, name: "user".to_owned(), home };
                (identity, CapabilitySet::empty(), Profile::Process, reach)
            }
        };
        detach_from_parent(self.thread, keep_open)?;
        privileges::renounce(keep, profile, &reach, self.plan.wall.writes_to_host())?;
        if self.plan.tied {
            // After the last change of credentials, which would clear it.
            set_parent_process_death_signal(Some(Signal::KILL)).during("tie the sandbox to its spawner")?;
        }
        // A process tree's files have the same paths for the agent as for its commands: Landlock is the wall for both.
        Ok((identity, PathBuf::from("/")))
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
