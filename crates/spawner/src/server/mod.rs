//! The spawner's loop.
//!
//! - `making`: from a plan to a sandbox. `attaching`: what it is given later. `snapshots`: saving what it has written.

mod attaching;
mod making;
mod snapshots;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, accept_with};
use rustix::process::{Resource, Rlimit, getpid, getrlimit, set_child_subreaper, setrlimit, setsid, umask};
use sloplet_policy::Realm;
use sloplet_sys::clone::SingleThreaded;

use crate::cgroup::{self, Cgroups};
use crate::conversation::{Conversation, Heard};
use crate::owner::Owner;
use crate::process;
use crate::protocol::{
    Command, During, Gone, Order, Overdue, Privilege, Problem, Report, Setup, Standing, Walls, receive, send,
};
use crate::sandbox::{HeldLayers, Sandbox, Stage as SandboxStage, kill_and_wait};
use crate::stage::Stage;
use crate::{build, door};
use attaching::Attaching;
use making::Spare;

/// How long nothing must have happened before something is made ahead: long enough for the latest child to build its
/// walls undisturbed.
const LULL: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// How long a lasting spawner waits for an engine when it has no sandbox.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ends of sandboxes that are remembered for the next engine.
const MAX_UNHEARD: usize = 10_000;

/// Tokens in the poll set: the engine, the socket for the next engine; then sandboxes and copying processes.
const ENGINE: u64 = 0;
const DOOR: u64 = 1;
const FIRST: u64 = 2;

/// Runs a spawner that is told what to do on `control`, and returns when the engine is gone and everything it made is
/// gone, too.
pub fn serve(control: OwnedFd, haste: Haste) -> i32 {
    let Ok(thread) = SingleThreaded::prove() else { return 1 };
    let mut stage = Stage::default();
    if haste != Haste::None {
        stage.enter_ahead(&thread, haste == Haste::OneContainerWithOutlet);
    }
    let setup = match receive::<Setup>(&control) {
        Ok(Some((setup, _))) => setup,
        _ => return 1,
    };
    match Server::set_up(&setup, thread, stage, haste).and_then(|server| server.meet(control.try_clone())) {
        Ok(mut server) => {
            drop(control);
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
    /// The same, with a way out.
    OneContainerWithOutlet,
}

struct Server {
    engine: Option<Conversation>,
    thread: SingleThreaded,
    privilege: Privilege,
    walls: Walls,
    cgroups: Cgroups,
    stage: Stage,
    haste: Haste,
    events: OwnedFd,
    sandboxes: HashMap<u64, Sandbox>,
    /// Their tokens, by id.
    tokens: HashMap<String, u64>,
    /// Tokens of copying processes, with those of their sandboxes.
    copies: HashMap<u64, u64>,
    /// Processes that give a sandbox mounts, by their tokens.
    attachings: HashMap<u64, Attaching>,
    layers: HeldLayers,
    next_token: u64,
    groups_made: u64,
    sandboxes_made: u64,
    /// Whether the latest sandbox wanted a way out.
    egress_wanted: bool,
    spare: Option<Spare>,
    /// Where the next engine comes in, if this spawner waits for one.
    door: Option<OwnedFd>,
    build: String,
    /// Ends of lasting sandboxes that no engine has heard of.
    unheard: Vec<Report>,
    /// Since when there has been nothing to do.
    idle_since: Instant,
    retired: bool,
    // Last: everything above is gone when the record goes.
    owner: Owner,
}

impl Server {
    fn set_up(setup: &Setup, thread: SingleThreaded, mut stage: Stage, haste: Haste) -> Result<Self, Problem> {
        // A Ctrl-C at the terminal is for the command inside, by way of the engine, not for this process.
        let _ = setsid();
        // Devices and folders get exactly the modes they are made with.
        umask(Mode::empty());
        // Kept for the agents, which ask for it when they list processes: kernels before 6.4 tell it only in a file that
        // is closed to them.
        let _ = rustix::param::page_size();
        if setup.lasting {
            let null = File::options().read(true).write(true).open("/dev/null").during("open /dev/null")?;
            thread.replace_standard_fds(null.as_fd()).during("detach the standard descriptors")?;
            raise_file_limit();
        }
        // A confined server's word is not enough.
        let cgroups = match Realm::get() {
            Some(realm) => {
                realm.check_run(Path::new(&setup.run_dir)).during("use the run folder")?;
                if setup.walls == Walls::Process {
                    return Err(Problem::plain("start", "a server has no walls of this kind"));
                }
                Cgroups::of(&cgroup::Tables::read())
            }
            None => Cgroups::of(&setup.tables),
        };
        let owner = Owner::register(Path::new(&setup.run_dir), &cgroups)?;
        match setup.walls {
            Walls::Container => {
                stage.set(&thread, &setup.privilege, owner.run_dir())?;
                if haste == Haste::OneContainerWithOutlet {
                    // If that fails, it will again when it is asked for, and then it is told.
                    let _ = stage.network.expect_outlet(&thread);
                }
            }
            // What outlives an agent comes to this process, see `process::kill_all`.
            Walls::Process => set_child_subreaper(Some(getpid())).during("become a reaper of orphans")?,
        }
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).during("make a poll set")?;
        let door = match setup.lasting {
            true => Some(open_door(&owner, &events).during("wait for the next engine")?),
            false => None,
        };
        Ok(Self {
            engine: None,
            thread,
            privilege: setup.privilege.clone(),
            walls: setup.walls,
            cgroups,
            stage,
            haste,
            events,
            sandboxes: HashMap::new(),
            tokens: HashMap::new(),
            copies: HashMap::new(),
            attachings: HashMap::new(),
            layers: HeldLayers::default(),
            next_token: FIRST,
            groups_made: 0,
            sandboxes_made: 0,
            egress_wanted: false,
            spare: None,
            door,
            build: if setup.lasting { build::own() } else { String::new() },
            unheard: Vec::new(),
            idle_since: Instant::now(),
            retired: false,
            owner,
        })
    }

    /// The first engine.
    fn meet(mut self, control: io::Result<OwnedFd>) -> Result<Self, Problem> {
        self.welcome(control.during("watch the engine")?).during("watch the engine")?;
        Ok(self)
    }

    /// An engine comes in. Whoever was there before is gone, or will see that it is no longer heard.
    fn welcome(&mut self, socket: OwnedFd) -> rustix::io::Result<()> {
        self.lose_engine();
        self.engine = Some(Conversation::begin(socket, &self.events, ENGINE)?);
        let unheard = std::mem::take(&mut self.unheard);
        let lasting = |sandbox: &&Sandbox| sandbox.lasting;
        let living = self.sandboxes.values().filter(lasting).count() as u32;
        self.report(Report::Ready(Standing {
            owner: self.owner.name.clone(),
            build: self.build.clone(),
            privilege: self.privilege.clone(),
            walls: self.walls,
            living,
            unheard: unheard.len() as u32,
        }));
        if let Some(engine) = &mut self.engine {
            for sandbox in self.sandboxes.values().filter(lasting) {
                engine.say(Report::Living(sandbox.describe()), &sandbox.sockets(), &self.events, ENGINE);
            }
        }
        unheard.into_iter().for_each(|report| self.report(report));
        Ok(())
    }

    fn run(&mut self) -> i32 {
        let mut ready = Vec::with_capacity(32);
        while !self.is_over() {
            ready.clear();
            // Nothing to do for a moment: get ready for the next sandbox meanwhile. One says nothing of a next one, two do.
            match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut ready), Some(&LULL)) {
                Ok(0) => {
                    if self.engine.is_some() && self.sandboxes_made > 1 && !self.retired {
                        self.prepare_next();
                    }
                    let wait = self.until_something_is_due();
                    match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut ready), wait.as_ref()) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(_) => return 1,
                    }
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return 1,
            }
            for event in ready.drain(..) {
                match event.data.u64() {
                    ENGINE => self.attend(event.flags),
                    DOOR => self.admit(),
                    token => {
                        if let Some(sandbox) = self.copies.remove(&token) {
                            self.finish_copy(sandbox);
                            continue;
                        }
                        if let Some(attaching) = self.attachings.remove(&token) {
                            self.finish_attaching(attaching);
                            continue;
                        }
                        self.bury(token);
                        // The one sandbox is over: whoever waits for the end of this process need not ask for it.
                        if self.haste != Haste::None && self.sandboxes.is_empty() {
                            return 0;
                        }
                    }
                }
            }
            self.keep_deadlines();
        }
        0
    }

    /// Whether nothing will be asked of this process any more.
    fn is_over(&self) -> bool {
        if !self.sandboxes.is_empty() {
            return false;
        }
        match &self.engine {
            Some(engine) => self.retired && engine.is_quiet(),
            None => self.door.is_none() || self.retired || self.idle_since.elapsed() >= PATIENCE,
        }
    }

    fn until_something_is_due(&self) -> Option<Timespec> {
        let deadlines = self.sandboxes.values().filter(|sandbox| !sandbox.timed_out).filter_map(|it| it.deadline);
        let give_up = (self.engine.is_none() && self.sandboxes.is_empty()).then(|| self.idle_since + PATIENCE);
        let next = deadlines.chain(give_up).min()?;
        let rest = next.saturating_duration_since(Instant::now());
        Some(Timespec { tv_sec: rest.as_secs().min(1 << 30) as i64, tv_nsec: i64::from(rest.subsec_nanos()) })
    }

    fn keep_deadlines(&mut self) {
        let now = Instant::now();
        let mut frozen = Vec::new();
        for sandbox in self.sandboxes.values_mut() {
            if sandbox.timed_out || sandbox.deadline.is_none_or(|deadline| deadline > now) {
                continue;
            }
            sandbox.deadline = None;
            if sandbox.overdue == Overdue::Freeze && sandbox.set_frozen(true).is_ok() {
                frozen.push(Report::Frozen { id: sandbox.id.clone(), frozen: true, overdue: true });
            } else {
                // Also what cannot be frozen: its time is over.
                sandbox.timed_out = true;
                sandbox.kill();
            }
        }
        frozen.into_iter().for_each(|report| self.report(report));
    }

    /// The engine has said something, or has made room.
    fn attend(&mut self, flags: epoll::EventFlags) {
        let Some(engine) = &mut self.engine else { return };
        if flags.contains(epoll::EventFlags::OUT) {
            engine.flush(&self.events, ENGINE);
        }
        if flags == epoll::EventFlags::OUT {
            return;
        }
        match engine.hear() {
            Heard::Order(order, fds) => self.obey(order, fds),
            Heard::Nothing => {}
            Heard::End => self.lose_engine(),
        }
    }

    /// The next engine is at the door.
    fn admit(&mut self) {
        let accepted = self.door.as_ref().map(|door| accept_with(door, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK));
        if let Some(Ok(socket)) = accepted
            && door::is_own(&socket)
        {
            // Without a poll set nothing works here at all; the engine sees that its connection is closed.
            let _ = self.welcome(socket);
        }
    }

    /// The engine is gone: so are its sandboxes, except those made to last, and what it wanted to have copied.
    fn lose_engine(&mut self) {
        let Some(engine) = self.engine.take() else { return };
        let missed = engine.end(&self.events);
        self.remember(missed);
        self.idle_since = Instant::now();
        self.spare = None;
        self.stage.network.forget_spare();
        for (_, token) in std::mem::take(&mut self.copies) {
            if let Some(sandbox) = self.sandboxes.get_mut(&token)
                && let Some(copying) = sandbox.copying.take()
            {
                let _ = epoll::delete(&self.events, &copying.result);
                sandbox.end_copying(copying);
            }
        }
        self.sandboxes.values_mut().filter(|sandbox| !sandbox.lasting).for_each(Sandbox::kill);
    }

    fn remember(&mut self, gone: Vec<Report>) {
        self.unheard.extend(gone);
        let surplus = self.unheard.len().saturating_sub(MAX_UNHEARD);
        self.unheard.drain(..surplus);
    }

    /// Carries out one order.
    fn obey(&mut self, order: Order, fds: Vec<OwnedFd>) {
        let ticket = order.ticket;
        let answer = match order.command {
            Command::Create { id, plan } => match self.create(&id, &plan, fds) {
                Ok((pid, token)) => {
                    if let (Some(engine), Some(sandbox)) = (&mut self.engine, self.sandboxes.get(&token)) {
                        let fds = [&[sandbox.pidfd.as_fd()], &sandbox.sockets()[..]].concat();
                        engine.say(Report::Created { ticket, id, pid }, &fds, &self.events, ENGINE);
                    }
                    if self.haste != Haste::None {
                        self.stage.leave(&self.thread);
                    }
                    return;
                }
                Err(problem) => Err(problem),
            },
            Command::Retire => {
                self.retired = true;
                self.spare = None;
                self.stage.network.forget_spare();
                Ok(Report::Done { ticket })
            }
            Command::Destroy { id } => {
                if let Ok(sandbox) = self.find(&id) {
                    sandbox.kill();
                }
                return;
            }
            Command::Pause { id, frozen } => self.find(&id).and_then(|sandbox| sandbox.set_frozen(frozen)).map(|()| {
                self.report(Report::Frozen { id, frozen, overdue: false });
                Report::Done { ticket }
            }),
            Command::SetDeadline { id, after_ms, overdue } => self.find(&id).map(|sandbox| {
                sandbox.deadline = after_ms.and_then(from_now);
                sandbox.overdue = overdue;
                Report::Done { ticket }
            }),
            Command::SetLimits { id, memory, cpu_millis, pids } => self
                .find(&id)
                .and_then(|sandbox| sandbox.group.change(cgroup::Limits { memory, cpu_millis, pids }))
                .map(|()| Report::Done { ticket }),
            Command::Usage { id } => self.find(&id).map(|sandbox| Report::Used { ticket, usage: sandbox.usage() }),
            Command::Snapshot { id } => match self.start_copy(ticket, &id, fds) {
                Ok(()) => return,
                Err(problem) => Err(problem),
            },
            Command::Attach { id, mounts, hostname } => {
                match self.start_attaching(ticket, &id, &mounts, hostname.as_deref()) {
                    Ok(()) => return,
                    Err(problem) => Err(problem),
                }
            }
        };
        self.report(answer.unwrap_or_else(|problem| Report::Refused { ticket, problem }));
    }

    fn find(&mut self, id: &str) -> Result<&mut Sandbox, Problem> {
        let found = self.tokens.get(id).and_then(|token| self.sandboxes.get_mut(token));
        found.ok_or_else(|| Problem::plain("find the sandbox", "it is gone"))
    }

    fn report(&mut self, report: Report) {
        if let Some(engine) = &mut self.engine {
            engine.say(report, &[], &self.events, ENGINE);
        } else if matches!(report, Report::Gone { .. }) {
            self.remember(vec![report]);
        }
    }

    /// Has the loop watch a descriptor; returns its token.
    fn watch(&mut self, fd: impl AsFd) -> rustix::io::Result<u64> {
        let token = self.next_token;
        self.next_token += 1;
        epoll::add(&self.events, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        Ok(token)
    }

    /// A sandbox's first process is dead, and with it all others if it had a PID namespace: clean up.
    fn bury(&mut self, token: u64) {
        let Some(mut sandbox) = self.sandboxes.remove(&token) else {
            return;
        };
        self.tokens.remove(&sandbox.id);
        let _ = epoll::delete(&self.events, &sandbox.pidfd);
        kill_and_wait(&sandbox.pidfd);
        if let Some(copying) = sandbox.copying.take() {
            let _ = epoll::delete(&self.events, &copying.result);
            self.copies.retain(|_, owner| *owner != token);
            let ticket = copying.ticket;
            sandbox.end_copying(copying);
            let problem = Problem::plain("take a snapshot", "the sandbox ended meanwhile");
            self.report(Report::Refused { ticket, problem });
        }
        self.stop_attaching(token);
        let oom_kills = sandbox.group.oom_kills();
        if sandbox.scratch.is_some() {
            let others: Vec<i32> = self.sandboxes.values().map(|sandbox| sandbox.pid).collect();
            process::kill_all(&self.thread, sandbox.lease.as_ref().map(process::user_of), &others);
        }
        sandbox.stage = SandboxStage::Unknown;
        sandbox.group.remove();
        let (id, lasting) = (std::mem::take(&mut sandbox.id), sandbox.lasting);
        let end = Gone { oom_kills, timed_out: sandbox.timed_out };
        drop(sandbox);
        self.idle_since = Instant::now();
        if lasting || self.engine.is_some() {
            self.report(Report::Gone { id, end });
        }
    }
}

/// So long from now that nobody can tell is never.
fn from_now(after_ms: u64) -> Option<Instant> {
    Instant::now().checked_add(Duration::from_millis(after_ms))
}

fn open_door(owner: &Owner, events: &OwnedFd) -> io::Result<OwnedFd> {
    let door = door::open_door(&owner.dir(), door::CONTROL, SocketType::SEQPACKET)?;
    epoll::add(events, &door, epoll::EventData::new_u64(DOOR), epoll::EventFlags::IN)?;
    Ok(door)
}

/// A few descriptors for each sandbox: as many as this process may have.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
