//! The event loop.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use sloplet_sys::spawn;
use sloplet_wire::{Event, Exit, Failure, Kind};

use crate::connection::{Connection, Received};
use crate::context::Context;
use crate::door;
use crate::exec;
use crate::killing::{self, Killing};
use crate::lingering::Lingering;
use crate::poll::{Part, Readiness, StreamKey, Token};
use crate::process::{Next, Phase, Process};
use crate::stream::{Body, Step, StreamIo};
use crate::{Config, OUTPUT_GRACE};

/// Bytes read from a connection or thrown away at once.
const SCRATCH_BYTES: usize = 256 * 1024;

/// Bytes read from a connection that has not filled as many yet: most requests are small, and after a rest each page of this
/// costs a fault.
const FIRST_BYTES: usize = 16 * 1024;

/// Zombies reaped in one turn.
const REAPED_PER_TURN: usize = 1024;

/// Connections at once.
const MAX_CONNECTIONS: usize = 64;

/// Ended background processes whose exit status is kept.
const MAX_FINISHED: usize = 256;

/// Output kept of all ended background processes together.
const MAX_FINISHED_BYTES: usize = 512 * 1024;

/// After this long without work, buffers go back to the kernel.
const IDLE: Duration = Duration::from_millis(500);

/// For this long a pipe that is being flooded is left to fill: long enough to gather small writes, short enough that
/// even a fast writer does not fill it.
const PACE_NS: i64 = 150_000;

/// Something that has a slice of work to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Runnable {
    /// Frames to read.
    Connection(u32),
    /// A job.
    Stream(StreamKey),
    /// Output or input of a process to move.
    Process(u32),
    /// Leftover output to throw away.
    Lingering(u32, Part),
    /// Children to reap.
    Reap,
}

/// Runnables in the order of their turns, each once.
#[derive(Debug, Default)]
struct Queue {
    order: VecDeque<Runnable>,
    members: BTreeSet<Runnable>,
}

impl Queue {
    fn push(&mut self, runnable: Runnable) {
        if self.members.insert(runnable) {
            self.order.push_back(runnable);
        }
    }

    /// For those who had to skip their turn: before whoever took the room.
    fn push_first(&mut self, runnable: Runnable) {
        if !self.members.insert(runnable) {
            self.order.retain(|queued| *queued != runnable);
        }
        self.order.push_front(runnable);
    }

    fn pop(&mut self) -> Option<Runnable> {
        let runnable = self.order.pop_front()?;
        self.members.remove(&runnable);
        Some(runnable)
    }
}

/// What a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// The process runs for too long.
    Deadline,
    /// The process has ended but its output is still open.
    Grace,
    /// Somebody waits for the end of what they killed.
    Killing,
}

pub(crate) struct Server {
    pub(crate) context: Context,
    pub(crate) connections: BTreeMap<u32, Connection>,
    pub(crate) processes: BTreeMap<u32, Process>,
    /// Unreaped processes by pid.
    pub(crate) by_pid: BTreeMap<i32, u32>,
    /// Ended background processes, oldest first.
    pub(crate) finished: VecDeque<u32>,
    lingering: Lingering,
    /// Streams that wait for the end of what they killed.
    killings: Vec<StreamKey>,
    queue: Queue,
    timers: BinaryHeap<Reverse<(Instant, u32, Timer)>>,
    /// Processes whose pipes are filling, until `pacer` rings.
    held: Vec<u32>,
    pacer: OwnedFd,
    children: OwnedFd,
    listener: Option<OwnedFd>,
    /// While nobody is connected to it.
    device: Option<OwnedFd>,
    has_device: bool,
    /// The socket's name and the signal to let go of it.
    door: Option<(PathBuf, OwnedFd)>,
    null: OwnedFd,
    scratch: Vec<u8>,
    last_id: u32,
}

impl Server {
    pub(crate) fn new(config: Config) -> std::io::Result<Self> {
        spawn::ignore_failed_writes();
        rustix::process::umask(Mode::empty());
        // Where the agent is not the first process of a pid namespace, orphans come to it nevertheless.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let children = spawn::child_signals()?;
        let context = Context::new(&config)?;
        context.poll.add(&children, Token::Children)?;
        let pacer =
            rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        context.poll.add(&pacer, Token::Pacer)?;
        if let Some(listener) = &config.listener {
            rustix::io::ioctl_fionbio(listener, true)?;
            context.poll.add(listener, Token::Listener)?;
        }
        let door = match config.door {
            Some(path) => Some((path, spawn::await_signal(door::LET_GO)?)),
            None => None,
        };
        if let Some((_, signal)) = &door {
            context.poll.add_input(signal, Token::LetGo)?;
        }
        let open = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let device = config.device.as_ref().map(|path| rustix::fs::open(path, open, Mode::empty())).transpose()?;
        if let Some(device) = &device {
            context.poll.add(device, Token::Device)?;
        }
        let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
        let mut server = Self {
            context,
            connections: BTreeMap::new(),
            processes: BTreeMap::new(),
            by_pid: BTreeMap::new(),
            finished: VecDeque::new(),
            lingering: Lingering::default(),
            killings: Vec::new(),
            queue: Queue::default(),
            timers: BinaryHeap::new(),
            held: Vec::new(),
            pacer,
            children,
            listener: config.listener,
            door,
            has_device: device.is_some(),
            device,
            null,
            scratch: Vec::new(),
            last_id: 0,
        };
        if let Some(stream) = config.stream {
            server.connect(stream)?;
        }
        if let Some((input, output)) = config.pipes {
            server.connect_pipes(input, output)?;
        }
        Ok(server)
    }

    pub(crate) fn run(mut self) -> std::io::Result<()> {
        let mut events = Vec::new();
        let mut idle = false;
        loop {
            self.flush();
            if self.connections.is_empty() && self.listener.is_none() && !self.has_device {
                return Ok(());
            }
            let until = if !self.queue.order.is_empty() {
                Some(Instant::now())
            } else {
                let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
                let shrink = (!idle).then(|| Instant::now() + IDLE);
                [timer, shrink].into_iter().flatten().min()
            };
            self.context.poll.wait(until, &mut events)?;
            if events.is_empty() && self.queue.order.is_empty() {
                idle = self.shrink();
            } else {
                idle = false;
            }
            for (token, readiness) in events.drain(..) {
                self.ready(token, readiness);
            }
            self.run_timers();
            // One slice each for those who are ready now; what they enqueue again has its turn after the others.
            for _ in 0..self.queue.order.len() {
                let Some(runnable) = self.queue.pop() else { break };
                self.run_slice(runnable);
            }
        }
    }

    pub(crate) fn enqueue(&mut self, runnable: Runnable) {
        self.queue.push(runnable);
    }

    pub(crate) fn next_id(&mut self) -> u32 {
        self.last_id = self.last_id.wrapping_add(1);
        self.last_id
    }

    fn ready(&mut self, token: Token, readiness: Readiness) {
        match token {
            Token::Children => self.enqueue(Runnable::Reap),
            Token::Pacer => self.release(),
            Token::Listener => self.accept(),
            // A hang-up alone says that nobody is there yet.
            Token::Device if readiness.hangup => {}
            Token::Device => self.connect_device(),
            Token::LetGo => self.let_go(),
            Token::Connection(id) => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.hangup |= readiness.hangup;
                    if readiness.read {
                        self.enqueue(Runnable::Connection(id));
                    }
                    // Writing is tried at the end of every turn.
                }
            }
            Token::Process(id, part) => {
                let Some(process) = self.processes.get_mut(&id) else {
                    self.enqueue(Runnable::Lingering(id, part));
                    return;
                };
                match part {
                    Part::Output => {
                        process.output.ready(readiness);
                        if process.terminal.is_some() {
                            process.input.ready(readiness);
                        }
                    }
                    Part::Error => process.error.ready(readiness),
                    Part::Input => process.input.ready(readiness),
                    Part::Status => return self.settle_start(id),
                }
                self.enqueue(Runnable::Process(id));
                self.enqueue(Runnable::Lingering(id, part));
            }
            Token::Stream(key) => {
                let stream = self.connections.get_mut(&key.connection).and_then(|c| c.streams.get_mut(&key.stream));
                if let Some(Body::Job(job)) = stream.map(|stream| &mut stream.body) {
                    job.ready(readiness);
                    self.enqueue(Runnable::Stream(key));
                }
            }
        }
    }

    fn run_slice(&mut self, runnable: Runnable) {
        match runnable {
            Runnable::Connection(id) => self.run_connection(id),
            Runnable::Stream(key) => self.run_job(key),
            Runnable::Process(id) => self.run_process(id),
            Runnable::Lingering(id, part) => {
                if self.lingering.holds(id, part) {
                    widen(&mut self.scratch, SCRATCH_BYTES);
                    if self.lingering.drain(id, part, &mut self.scratch, &self.context) {
                        self.enqueue(runnable);
                    }
                }
            }
            Runnable::Reap => self.reap(),
        }
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        let mut accepted = Vec::new();
        // All of them: there is no new edge for those already waiting.
        loop {
            match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
                Ok(socket) => accepted.push(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => break,
            }
        }
        for socket in accepted {
            if self.connections.len() < MAX_CONNECTIONS {
                let _ = self.connect(socket);
            }
        }
    }

    fn connect(&mut self, socket: OwnedFd) -> Result<(), Errno> {
        let id = self.next_id();
        self.context.poll.add_input(&socket, Token::Connection(id))?;
        self.connections.insert(id, Connection::new(socket)?);
        self.enqueue(Runnable::Connection(id));
        Ok(())
    }

    fn connect_pipes(&mut self, input: OwnedFd, output: OwnedFd) -> Result<(), Errno> {
        let id = self.next_id();
        self.context.poll.add_input(&input, Token::Connection(id))?;
        self.context.poll.add(&output, Token::Connection(id))?;
        self.connections.insert(id, Connection::over_pipes(input, output)?);
        self.enqueue(Runnable::Connection(id));
        Ok(())
    }

    /// Closes all sockets that lead out, and listens again when that is allowed. Nothing else happens meanwhile, but
    /// processes run on.
    fn let_go(&mut self) {
        let Some((path, signal)) = &self.door else { return };
        let path = path.clone();
        while rustix::io::read(signal, &mut [0; 128]).is_ok() {}
        self.connections.values_mut().for_each(|connection| connection.dead = true);
        self.flush();
        self.listener = None;
        let listener = door::wait_and_listen(&path);
        let listening = rustix::io::ioctl_fionbio(&listener, true);
        if listening.and_then(|()| self.context.poll.add(&listener, Token::Listener)).is_ok() {
            self.listener = Some(listener);
        }
    }

    /// Somebody has opened the other end of the device.
    fn connect_device(&mut self) {
        let Some(device) = self.device.take() else { return };
        let id = self.next_id();
        if self.context.poll.pass_on(&device, Token::Connection(id)).is_ok() {
            self.connections.insert(id, Connection::on_device(device));
            self.enqueue(Runnable::Connection(id));
        } else {
            self.device = Some(device);
        }
    }

    fn run_connection(&mut self, id: u32) {
        widen(&mut self.scratch, FIRST_BYTES);
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let received = connection.receive(&mut self.scratch);
        // Frames borrow from the decoder while requests change the server.
        let mut decoder = std::mem::take(&mut connection.decoder);
        let fine = loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => {
                    if self.handle(id, frame.header, frame.payload).is_err() {
                        break false;
                    }
                }
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.decoder = decoder;
        connection.dead |= !fine || received == Received::Over;
        if received == Received::More && fine {
            self.enqueue(Runnable::Connection(id));
            widen(&mut self.scratch, SCRATCH_BYTES);
        }
    }

    fn run_job(&mut self, key: StreamKey) {
        let Some(connection) = self.connections.get_mut(&key.connection) else {
            return;
        };
        let Some(stream) = connection.streams.get_mut(&key.stream) else {
            return;
        };
        let Body::Job(job) = &mut stream.body else { return };
        let mut io = StreamIo { key, out: &mut connection.out, flow: &mut stream.flow };
        let result = job.step(&mut io, &self.context);
        match result {
            Ok(Step::Again) => self.enqueue(Runnable::Stream(key)),
            Ok(Step::Wait) if !connection.out.has_room() => connection.wait_for_room(Runnable::Stream(key)),
            Ok(Step::Wait) => {}
            Ok(Step::Finished) => {
                connection.streams.remove(&key.stream);
            }
            Err(failure) => {
                connection.out.event(key.stream, &Event::Failed(failure));
                connection.streams.remove(&key.stream);
            }
        }
    }

    fn run_process(&mut self, id: u32) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        if matches!(process.phase, Phase::Starting(_)) {
            return;
        }
        let mut over = false;
        let attached = process.attached.and_then(|key| {
            let connection = self.connections.get_mut(&key.connection)?;
            connection.streams.contains_key(&key.stream).then_some((key, connection))
        });
        let next = match attached {
            Some((key, connection)) => {
                let Some(stream) = connection.streams.get_mut(&key.stream) else {
                    return;
                };
                let mut io = StreamIo { key, out: &mut connection.out, flow: &mut stream.flow };
                let had_room = io.out.has_room();
                let more = process.pump_attached(&mut io, &self.context);
                if let Some(exit) = process.complete() {
                    io.event(&Event::Exited(exit.clone()));
                    connection.streams.remove(&key.stream);
                    process.attached = None;
                    over = true;
                }
                // Whoever has had its slice goes behind those who have waited for room without one.
                if more == Next::Again && !had_room {
                    connection.wait_for_room(Runnable::Process(id));
                    Next::Wait
                } else {
                    more
                }
            }
            None => {
                widen(&mut self.scratch, SCRATCH_BYTES);
                let more = process.pump_detached(&mut self.scratch, &self.context);
                over = process.complete().is_some();
                more
            }
        };
        for (part, output) in [(Part::Output, &mut process.output), (Part::Error, &mut process.error)] {
            if let Some(pipe) = output.leftover.take() {
                self.lingering.add(id, part, pipe);
                self.queue.push(Runnable::Lingering(id, part));
            }
        }
        if over {
            self.retire(id);
        } else {
            match next {
                Next::Again => self.enqueue(Runnable::Process(id)),
                Next::Pace => self.hold(id),
                Next::Wait => {}
            }
        }
    }

    /// Lets a pipe fill for a moment.
    fn hold(&mut self, id: u32) {
        if self.held.is_empty() {
            let pause = Timespec { tv_sec: 0, tv_nsec: PACE_NS };
            let once = Itimerspec { it_interval: Timespec::default(), it_value: pause };
            if rustix::time::timerfd_settime(&self.pacer, TimerfdTimerFlags::empty(), &once).is_err() {
                self.enqueue(Runnable::Process(id));
            }
        }
        if !self.held.contains(&id) {
            self.held.push(id);
        }
    }

    /// Continues those that were held.
    fn release(&mut self) {
        let _ = rustix::io::read(&self.pacer, &mut [0; 8]);
        for id in std::mem::take(&mut self.held) {
            if let Some(process) = self.processes.get_mut(&id) {
                process.output.release();
                process.error.release();
                self.enqueue(Runnable::Process(id));
            }
        }
    }

    /// Forgets an ended foreground process; keeps what a late attach to a background one needs.
    fn retire(&mut self, id: u32) {
        if !self.processes.get(&id).is_some_and(|process| process.background) {
            self.processes.remove(&id);
            return;
        }
        if !self.finished.contains(&id) {
            self.finished.push_back(id);
        }
        if let Some(process) = self.processes.get_mut(&id) {
            process.terminal = None;
            process.held.shrink();
        }
        if self.finished.len() > MAX_FINISHED
            && let Some(oldest) = self.finished.pop_front()
        {
            self.processes.remove(&oldest);
        }
        // The newest keep their output.
        let mut total = 0;
        for id in self.finished.iter().rev() {
            if let Some(process) = self.processes.get_mut(id) {
                total += process.held.len();
                if total > MAX_FINISHED_BYTES {
                    process.held.forget();
                }
            }
        }
    }

    fn reap(&mut self) {
        // Before waiting: a signal that is still pending when the next child ends makes no new edge.
        let mut signal = [0; 128];
        while rustix::io::read(&self.children, &mut signal).is_ok() {}
        for _ in 0..REAPED_PER_TURN {
            let Some(ended) = spawn::reap() else { return self.look_at_killings() };
            if let Some(id) = self.by_pid.get(&ended.pid).copied() {
                // Its report is complete by now.
                self.settle_start(id);
                self.by_pid.remove(&ended.pid);
                self.ended(id, &ended);
            }
        }
        self.enqueue(Runnable::Reap);
    }

    /// Answers when nothing is left of what was killed.
    pub(crate) fn await_end(&mut self, key: StreamKey, killing: Killing) {
        self.open(key, Body::Job(Box::new(killing)));
        if self.killings.is_empty() {
            self.timers.push(Reverse((Instant::now() + killing::LOOK_AGAIN, 0, Timer::Killing)));
        }
        self.killings.push(key);
    }

    fn look_at_killings(&mut self) {
        let connections = &self.connections;
        let is_open = |key: &StreamKey| {
            connections.get(&key.connection).is_some_and(|connection| connection.streams.contains_key(&key.stream))
        };
        self.killings.retain(is_open);
        for key in self.killings.clone() {
            self.enqueue(Runnable::Stream(key));
        }
    }

    fn ended(&mut self, id: u32, ended: &spawn::Ended) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        process.phase = Phase::Ended(Exit {
            code: ended.code,
            signal: ended.signal,
            timed_out: process.timed_out,
            cpu_us: ended.cpu_us,
            max_rss_kib: ended.max_rss_kib,
        });
        process.input.close();
        if process.attached.is_none() && !process.background {
            self.processes.remove(&id);
            return;
        }
        if process.complete().is_none() {
            self.timers.push(Reverse((Instant::now() + OUTPUT_GRACE, id, Timer::Grace)));
        }
        self.enqueue(Runnable::Process(id));
    }

    /// Learns whether a program has been executed.
    fn settle_start(&mut self, id: u32) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let Phase::Starting(status) = &process.phase else {
            return;
        };
        let mut report = [0; 16];
        let outcome = match rustix::io::read(status, &mut report) {
            Ok(len) => spawn::outcome(&report[..len]),
            // Not yet.
            Err(_) => return,
        };
        let key = process.attached;
        match outcome {
            Ok(()) => {
                process.phase = Phase::Running;
                let pid = process.pid;
                self.tell(key, &Event::Started { pid: pid as u32, held: None });
                self.enqueue(Runnable::Process(id));
            }
            Err(error) => {
                let failure = exec::explain(process, error);
                self.by_pid.remove(&process.pid);
                self.processes.remove(&id);
                self.end_stream(key, failure);
            }
        }
    }

    pub(crate) fn exec(&mut self, key: StreamKey, exec: sloplet_wire::Exec) -> Result<(), Failure> {
        let id = self.next_id();
        let timeout = exec.timeout_ms;
        let process = exec::start(&self.context, &self.null, id, exec, key)?;
        if let Some(timeout) = timeout {
            // A hundred years is for ever.
            let timeout = Duration::from_millis(timeout.min(3_153_600_000_000));
            self.timers.push(Reverse((Instant::now() + timeout, id, Timer::Deadline)));
        }
        self.by_pid.insert(process.pid, id);
        self.processes.insert(id, process);
        self.open(key, Body::Process(id));
        Ok(())
    }

    fn run_timers(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, id, timer))) = self.timers.peek().copied() {
            if at > now {
                break;
            }
            self.timers.pop();
            if timer == Timer::Killing {
                self.look_at_killings();
                if !self.killings.is_empty() {
                    self.timers.push(Reverse((now + killing::LOOK_AGAIN, 0, Timer::Killing)));
                }
                continue;
            }
            let Some(process) = self.processes.get_mut(&id) else {
                continue;
            };
            match timer {
                Timer::Deadline if matches!(process.phase, Phase::Ended(_)) => {}
                Timer::Deadline => {
                    process.timed_out = true;
                    process.kill();
                }
                Timer::Grace => {
                    process.output.limit_to_present();
                    process.error.limit_to_present();
                    self.enqueue(Runnable::Process(id));
                }
                Timer::Killing => {}
            }
        }
    }

    /// Sends an event on a stream that may be gone.
    pub(crate) fn tell(&mut self, key: Option<StreamKey>, event: &Event) {
        if let Some(key) = key
            && let Some(connection) = self.connections.get_mut(&key.connection)
            && connection.streams.contains_key(&key.stream)
        {
            connection.out.event(key.stream, event);
        }
    }

    /// Ends a stream with a failure.
    pub(crate) fn end_stream(&mut self, key: Option<StreamKey>, failure: Failure) {
        self.tell(key, &Event::Failed(failure));
        if let Some(key) = key
            && let Some(connection) = self.connections.get_mut(&key.connection)
        {
            connection.streams.remove(&key.stream);
        }
    }

    /// The host has no more use for a stream's process.
    pub(crate) fn abandon(&mut self, id: u32, key: StreamKey) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        if process.attached != Some(key) {
            return;
        }
        process.attached = None;
        if process.background {
            self.enqueue(Runnable::Process(id));
            return;
        }
        process.kill();
        if matches!(process.phase, Phase::Ended(_)) {
            self.processes.remove(&id);
        } else {
            process.output.source = None;
            process.error.source = None;
        }
    }

    /// Sends what can be sent, lets those continue that waited for room, and drops what is over.
    fn flush(&mut self) {
        let mut dead = Vec::new();
        for (id, connection) in &mut self.connections {
            if !connection.out.is_empty() {
                connection.flush(*id, &self.context.poll);
            }
            if connection.out.has_room() {
                for runnable in connection.waiting.drain(..).rev() {
                    self.queue.push_first(runnable);
                }
            }
            if connection.dead {
                dead.push(*id);
            }
        }
        for id in dead {
            let Some(connection) = self.connections.remove(&id) else {
                continue;
            };
            for (stream, state) in connection.streams {
                if let Body::Process(process) = state.body {
                    self.abandon(process, StreamKey { connection: id, stream });
                }
            }
            if connection.device && self.context.poll.pass_on(&connection.socket, Token::Device).is_ok() {
                self.device = Some(connection.socket);
            }
        }
    }

    /// Gives memory back; `true` because then there is nothing more to give.
    fn shrink(&mut self) -> bool {
        self.scratch = Vec::new();
        for connection in self.connections.values_mut() {
            connection.decoder.shrink();
            connection.out.shrink();
        }
        spawn::trim_heap();
        true
    }

    /// Adds a stream and gives it its first slice.
    pub(crate) fn open(&mut self, key: StreamKey, body: Body) {
        let runnable = match &body {
            Body::Process(id) => Runnable::Process(*id),
            Body::Job(_) => Runnable::Stream(key),
        };
        if let Some(connection) = self.connections.get_mut(&key.connection) {
            connection.streams.insert(key.stream, crate::stream::Stream::new(body));
            self.enqueue(runnable);
        }
    }

    /// Sends a frame of the connection itself.
    pub(crate) fn reply(&mut self, connection: u32, kind: Kind, payload: &[u8]) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.out.frame(kind, 0, 0, payload);
        }
    }
}

/// Makes room for so many bytes.
fn widen(scratch: &mut Vec<u8>, bytes: usize) {
    if scratch.len() < bytes {
        *scratch = vec![0; bytes];
    }
}
