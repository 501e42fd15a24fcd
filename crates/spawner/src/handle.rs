//! The engine's end: starting a spawner, or finding one that has outlived its engine, and talking to it.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketType;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use crate::cgroup::Limits;
use crate::door;
use crate::launcher::{self, Launcher, Process};
use crate::plan::{Mount, Plan};
use crate::protocol::{Command, Living, Order, Problem, Report, Setup, Standing, receive, send};
pub use crate::protocol::{Gone, Overdue, Saved, Usage};
use crate::runtime::control::{Answer as KeeperAnswer, Request};

/// How long a spawner may take to answer. One that takes longer hangs: it is ended, and another takes its place.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a sandbox may take to end before its spawner is asked whether it is well.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// How long a spawner that has closed the conversation may take to end.
const LAST_BREATH: Duration = Duration::from_secs(2);

/// A running spawner. When the last handle is dropped, it destroys the sandboxes that are not made to last, and ends if
/// it has no others.
#[derive(Debug, Clone)]
pub struct Spawner(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    socket: Arc<UnixStream>,
    state: Arc<Mutex<State>>,
    listener: AbortHandle,
    run_dir: PathBuf,
    lasting: bool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Gives up the last reference to the socket: the spawner sees the end of the conversation.
        self.listener.abort();
    }
}

#[derive(Debug, Default)]
struct State {
    tickets: u64,
    waiting: HashMap<u64, oneshot::Sender<Result<Answer, Problem>>>,
    fates: HashMap<String, watch::Sender<Fate>>,
    /// What it said of itself.
    standing: Option<Standing>,
    /// The process, if it was started here.
    process: Option<Process>,
    /// Set when the conversation is over.
    ended: Option<Problem>,
}

#[derive(Debug)]
enum Answer {
    Created(Created),
    Done,
    Used(Usage),
    Saved(Saved),
}

/// A sandbox's first process.
#[derive(Debug)]
pub struct Created {
    /// Its pid on the host.
    pub pid: i32,
    /// Names it even after its pid is reused.
    pub pidfd: OwnedFd,
    /// What becomes of it.
    pub fate: watch::Receiver<Fate>,
    /// The sockets of its outlet, if it has one: stream sockets are listeners, datagram sockets are resolvers.
    pub outlet: Vec<OwnedFd>,
}

/// A sandbox that was made for an earlier engine.
#[derive(Debug)]
pub struct Survivor {
    /// What it is.
    pub living: Living,
    /// What becomes of it.
    pub fate: watch::Receiver<Fate>,
    /// As in [`Created`].
    pub outlet: Vec<OwnedFd>,
}

/// What has become of a sandbox. If the sender is gone before the sandbox, so is the spawner, or it has a newer engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It lives.
    Living {
        /// All its processes stand still.
        frozen: bool,
        /// Because its time was over.
        overdue: bool,
    },
    /// Nothing is left of it.
    Gone(Gone),
}

/// A spawner that has outlived its engine.
#[derive(Debug)]
pub struct Found {
    /// To talk to it.
    pub spawner: Spawner,
    /// What it is.
    pub standing: Standing,
    /// Its sandboxes.
    pub living: Vec<Survivor>,
    /// Those that ended while nobody listened.
    pub gone: Vec<(String, Gone)>,
}

impl Spawner {
    /// Starts a spawner. Returns at once; if it cannot work, the first command says so.
    pub fn start(launcher: &Launcher, setup: &Setup) -> Result<Self, Problem> {
        let step = "start the spawner";
        let (ours, process) = launcher.launch()?;
        rustix::io::ioctl_fionbio(&ours, true).map_err(|error| Problem::new(step, error))?;
        send(&ours, setup, &[]).map_err(|error| Problem::new(step, error))?;
        let socket = as_stream(ours).map_err(|error| Problem::new(step, error))?;
        let state = State { process: Some(process), ..State::default() };
        Ok(Self::talk(socket, state, Path::new(&setup.run_dir), setup.lasting))
    }

    /// Takes over a spawner that has outlived its engine; whoever talks to it now is cut off. `None` if it has just
    /// ended.
    pub async fn find(run_dir: &Path, owner: &str) -> Result<Option<Found>, Problem> {
        let step = format!("talk to the spawner {owner}");
        let Ok(ours) = door::knock(&run_dir.join(owner), door::CONTROL, SocketType::SEQPACKET) else {
            return Ok(None);
        };
        let socket = as_stream(ours).map_err(|error| Problem::new(&step, error))?;
        let Ok(told) = tokio::time::timeout(PATIENCE, take_stock(&socket)).await else {
            end_listener(&socket);
            return Ok(None);
        };
        let Ok(Some((standing, living, gone))) = told else { return Ok(None) };
        let mut state = State { standing: Some(standing.clone()), ..State::default() };
        let living = living.into_iter().map(|(living, outlet)| {
            let fate = state.expect(&living.id, Fate::Living { frozen: living.frozen, overdue: false });
            Survivor { living, fate, outlet }
        });
        let living = living.collect();
        let spawner = Self::talk(socket, state, run_dir, true);
        Ok(Some(Found { spawner, standing, living, gone }))
    }

    fn talk(socket: UnixStream, state: State, run_dir: &Path, lasting: bool) -> Self {
        let (socket, state) = (Arc::new(socket), Arc::new(Mutex::new(state)));
        let listener = tokio::spawn(listen(socket.clone(), state.clone())).abort_handle();
        Self(Arc::new(Inner { socket, state, listener, run_dir: run_dir.to_owned(), lasting }))
    }

    /// Ends the conversation and waits until the spawner has cleaned up after itself, unless it is made to last. Blocks
    /// the thread: meant for the end of a program, when nothing else is left to do.
    pub fn shut_down(self) {
        if let Some(inner) = Arc::into_inner(self.0) {
            // The aborted listener lets go of the socket only when it is polled again, which may be never: shut it.
            let _ = rustix::net::shutdown(&*inner.socket, rustix::net::Shutdown::Both);
            let process = inner.state.lock().unwrap_or_else(PoisonError::into_inner).process.take();
            if let Some(mut process) = process.filter(|_| !inner.lasting) {
                process.wait();
            }
        }
    }

    /// Makes a sandbox; `fds` are the agent's end of the stream and perhaps a disk.
    pub async fn create(&self, id: &str, plan: Plan, fds: &[OwnedFd]) -> Result<Created, Problem> {
        match self.ask(Command::Create { id: id.to_owned(), plan: Box::new(plan) }, fds).await {
            Ok(Answer::Created(created)) => Ok(created),
            Ok(_) => Err(lost("it gave a wrong answer")),
            Err(problem) => {
                // It may be there, but what belongs to it could not be taken.
                if problem.errno == Errno::MFILE.raw_os_error() {
                    let _ = self.destroy(id).await;
                }
                Err(problem)
            }
        }
    }

    /// How many sandboxes it has.
    pub fn crowd(&self) -> usize {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).fates.len()
    }

    /// Whether it can make no more sandboxes.
    pub fn has_ended(&self) -> bool {
        self.0.with_state(|_| ()).is_err()
    }

    /// Kills everything in a sandbox; its fate tells when it is done.
    pub async fn destroy(&self, id: &str) -> Result<(), Problem> {
        self.0.send(&Order { ticket: 0, command: Command::Destroy { id: id.to_owned() } }, &[]).await
    }

    /// Kills everything in a sandbox and waits until nothing is left of it.
    pub async fn finish(&self, id: &str, fate: &mut watch::Receiver<Fate>) -> Result<Gone, Problem> {
        // It may be over already, and so may be the spawner that has told so: its last word counts.
        let asked = tokio::time::timeout(PATIENCE, self.destroy(id)).await;
        loop {
            let gone = fate.wait_for(|fate| matches!(fate, Fate::Gone(_)));
            match tokio::time::timeout(ENDS_WITHIN, gone).await.map(|fate| fate.map(|fate| *fate)) {
                Ok(Ok(Fate::Gone(gone))) => return Ok(gone),
                Ok(_) => return Err(asked.ok().and_then(Result::err).unwrap_or_else(|| lost("it died"))),
                // Much to clean up, or a spawner that hangs: that one is ended.
                Err(_) => drop(self.usage(id).await),
            }
        }
    }

    /// Freezes or thaws a sandbox.
    pub async fn pause(&self, id: &str, frozen: bool) -> Result<(), Problem> {
        self.ask(Command::Pause { id: id.to_owned(), frozen }, &[]).await.map(drop)
    }

    /// Replaces a sandbox's deadline, counted from now; without one, it has none.
    pub async fn set_deadline(&self, id: &str, after: Option<Duration>, overdue: Overdue) -> Result<(), Problem> {
        let after_ms = after.map(|after| after.as_millis().try_into().unwrap_or(u64::MAX));
        self.ask(Command::SetDeadline { id: id.to_owned(), after_ms, overdue }, &[]).await.map(drop)
    }

    /// Replaces the bounds that a sandbox's control group keeps.
    pub async fn set_limits(&self, id: &str, limits: Limits) -> Result<(), Problem> {
        let Limits { memory, cpu_millis, pids } = limits;
        self.ask(Command::SetLimits { id: id.to_owned(), memory, cpu_millis, pids }, &[]).await.map(drop)
    }

    /// Gives a sandbox that was made to be claimed mounts and a host name. If that fails, it is fit for nothing any more.
    pub async fn attach(&self, id: &str, mounts: Vec<Mount>, hostname: Option<String>) -> Result<(), Problem> {
        self.ask(Command::Attach { id: id.to_owned(), mounts, hostname }, &[]).await.map(drop)
    }

    /// What a sandbox uses.
    pub async fn usage(&self, id: &str) -> Result<Usage, Problem> {
        match self.ask(Command::Usage { id: id.to_owned() }, &[]).await? {
            Answer::Used(usage) => Ok(usage),
            _ => Err(lost("it gave a wrong answer")),
        }
    }

    /// Copies what a lasting sandbox has written to an empty folder, as the upper folder of an overlay.
    pub async fn snapshot(&self, id: &str, target: OwnedFd) -> Result<Saved, Problem> {
        let target = [target];
        let mut copied = Box::pin(self.ask_patiently(Command::Snapshot { id: id.to_owned() }, &target));
        loop {
            match tokio::time::timeout(PATIENCE, &mut copied).await {
                Ok(Ok(Answer::Saved(saved))) => return Ok(saved),
                Ok(Ok(_)) => return Err(lost("it gave a wrong answer")),
                Ok(Err(problem)) => return Err(problem),
                // Much to copy, or a spawner that hangs: that one is ended.
                Err(_) => drop(self.usage(id).await),
            }
        }
    }

    /// Has it make no more sandboxes, and end with the last.
    pub async fn retire(&self) -> Result<(), Problem> {
        self.ask(Command::Retire, &[]).await.map(drop)
    }

    /// Another connection to the agent of a lasting sandbox. Does not wait for the agent, which may be frozen.
    pub fn connect(&self, id: &str) -> Result<UnixStream, Problem> {
        let step = "connect to the agent";
        let owner = self.0.with_state(|state| state.standing.as_ref().map(|standing| standing.owner.clone()))?;
        let owner = owner.ok_or_else(|| Problem::plain(step, "its spawner is not ready"))?;
        let stream = door::knock(&self.0.run_dir.join(owner), &door::of_agent(id), SocketType::STREAM);
        let stream = stream.map_err(|error| Problem::new(step, error))?;
        as_stream(stream).map_err(|error| Problem::new(step, error))
    }

    /// Whether a lasting sandbox has a runtime, and so a keeper.
    pub fn has_keeper(&self, id: &str) -> bool {
        let owner = self.0.with_state(|state| state.standing.as_ref().map(|standing| standing.owner.clone()));
        owner.ok().flatten().is_some_and(|owner| self.0.run_dir.join(owner).join(door::of_keeper(id)).exists())
    }

    /// A conversation with the keeper of a lasting sandbox. Does not wait for it: it may be frozen.
    pub fn keeper(&self, id: &str) -> Result<Keeper, Problem> {
        let step = "talk to the sandbox's keeper";
        let owner = self.0.with_state(|state| state.standing.as_ref().map(|standing| standing.owner.clone()))?;
        let owner = owner.ok_or_else(|| Problem::plain(step, "its spawner is not ready"))?;
        let socket = door::knock(&self.0.run_dir.join(owner), &door::of_keeper(id), SocketType::SEQPACKET);
        let socket = socket.map_err(|error| Problem::new(step, error))?;
        Ok(Keeper(as_stream(socket).map_err(|error| Problem::new(step, error))?))
    }

    async fn ask(&self, command: Command, fds: &[OwnedFd]) -> Result<Answer, Problem> {
        match tokio::time::timeout(PATIENCE, self.ask_patiently(command, fds)).await {
            Ok(answer) => answer,
            Err(_) => Err(self.0.give_up()),
        }
    }

    async fn ask_patiently(&self, command: Command, fds: &[OwnedFd]) -> Result<Answer, Problem> {
        let (sender, receiver) = oneshot::channel();
        let ticket = self.0.with_state(|state| {
            state.tickets += 1;
            state.waiting.insert(state.tickets, sender);
            state.tickets
        })?;
        self.0.send(&Order { ticket, command }, fds).await?;
        receiver.await.unwrap_or_else(|_| Err(self.0.why_ended()))
    }
}

/// A conversation with the keeper of a sandbox that has a runtime.
#[derive(Debug)]
pub struct Keeper(UnixStream);

impl Keeper {
    /// A connection to the agent, once it listens.
    pub async fn connect(self) -> Result<UnixStream, Problem> {
        let step = "connect to the agent";
        match self.ask(&Request::Connect, &[]).await? {
            (KeeperAnswer::Connected, mut fds) if !fds.is_empty() => {
                let stream = fds.remove(0);
                rustix::io::ioctl_fionbio(&stream, true).map_err(|error| Problem::new(step, error))?;
                as_stream(stream).map_err(|error| Problem::new(step, error))
            }
            (KeeperAnswer::Failed(problem), _) => Err(problem),
            _ => Err(Problem::plain(step, "its keeper gave a wrong answer")),
        }
    }

    /// Has all processes saved in a folder. They stand still until this conversation is over.
    pub async fn checkpoint(&self, memory: OwnedFd) -> Result<(), Problem> {
        match self.ask(&Request::Checkpoint, &[memory]).await? {
            (KeeperAnswer::Saved, _) => Ok(()),
            (KeeperAnswer::Failed(problem), _) => Err(problem),
            _ => Err(Problem::plain("save the sandbox's memory", "its keeper gave a wrong answer")),
        }
    }

    /// Lets them go on.
    pub async fn resume(self) -> Result<(), Problem> {
        match self.ask(&Request::Resume, &[]).await? {
            (KeeperAnswer::Done, _) => Ok(()),
            (KeeperAnswer::Failed(problem), _) => Err(problem),
            _ => Err(Problem::plain("let the sandbox go on", "its keeper gave a wrong answer")),
        }
    }

    async fn ask(&self, request: &Request, fds: &[OwnedFd]) -> Result<(KeeperAnswer, Vec<OwnedFd>), Problem> {
        let failed = |error| Problem::new("talk to the sandbox's keeper", error);
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        self.0.async_io(Interest::WRITABLE, || send(&self.0, request, &fds)).await.map_err(failed)?;
        let answer = self.0.async_io(Interest::READABLE, || receive::<KeeperAnswer>(&self.0)).await.map_err(failed)?;
        answer.ok_or_else(|| Problem::plain("talk to the sandbox's keeper", "it ended"))
    }
}

impl Inner {
    fn with_state<T>(&self, change: impl FnOnce(&mut State) -> T) -> Result<T, Problem> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &state.ended {
            Some(problem) => Err(problem.clone()),
            None => Ok(change(&mut state)),
        }
    }

    /// It hangs: it is ended, and with it its sandboxes, which nobody could control any more.
    fn give_up(&self) -> Problem {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.ended.is_none() {
            match &mut state.process {
                Some(process) => process.kill(),
                None => end_listener(&self.socket),
            }
            state.ended = Some(lost("it did not answer in time, and was ended"));
            state.end();
        }
        state.ended.clone().unwrap_or_else(|| lost("it ended"))
    }

    fn why_ended(&self) -> Problem {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ended.clone().unwrap_or_else(|| lost("it did not answer"))
    }

    async fn send(&self, order: &Order, fds: &[OwnedFd]) -> Result<(), Problem> {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let sent = self.socket.async_io(Interest::WRITABLE, || send(&*self.socket, order, &fds)).await;
        let Err(error) = sent else { return Ok(()) };
        // It is gone; what it said last, which tells why, is perhaps still on its way to the listener.
        for _ in 0..100 {
            self.with_state(|_| ())?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Err(Problem::new("talk to the spawner", error))
    }
}

impl State {
    fn expect(&mut self, id: &str, fate: Fate) -> watch::Receiver<Fate> {
        let (sender, receiver) = watch::channel(fate);
        self.fates.insert(id.to_owned(), sender);
        receiver
    }

    fn answer(&mut self, ticket: u64, answer: Result<Answer, Problem>) {
        if let Some(waiting) = self.waiting.remove(&ticket) {
            let _ = waiting.send(answer);
        }
    }

    fn handle(&mut self, report: Report, fds: Vec<OwnedFd>) {
        match report {
            Report::Ready(standing) => self.standing = Some(standing),
            Report::Unable(problem) => {
                self.ended = Some(problem);
                self.end();
            }
            Report::Created { ticket, id, pid } => {
                let fate = self.expect(&id, Fate::Living { frozen: false, overdue: false });
                let mut fds = fds.into_iter();
                let pidfd = fds.next().ok_or_else(|| Problem::no_descriptors("take the sandbox over"));
                let created = |pidfd| Answer::Created(Created { pid, pidfd, fate, outlet: fds.collect() });
                self.answer(ticket, pidfd.map(created));
            }
            Report::Done { ticket } => self.answer(ticket, Ok(Answer::Done)),
            Report::Refused { ticket, problem } => self.answer(ticket, Err(problem)),
            Report::Used { ticket, usage } => self.answer(ticket, Ok(Answer::Used(usage))),
            Report::Saved { ticket, saved } => self.answer(ticket, Ok(Answer::Saved(saved))),
            Report::Frozen { id, frozen, overdue } => {
                if let Some(fate) = self.fates.get(&id) {
                    fate.send_replace(Fate::Living { frozen, overdue });
                }
            }
            Report::Gone { id, end } => {
                if let Some(fate) = self.fates.remove(&id) {
                    fate.send_replace(Fate::Gone(end));
                }
            }
            // Said only to those who have just come.
            Report::Living(_) => {}
        }
    }

    /// Everybody who still waits learns that there will be no answer.
    fn end(&mut self) {
        self.ended.get_or_insert_with(|| lost("it ended"));
        self.waiting.clear();
        self.fates.clear();
    }
}

/// Tokio knows no packet sockets; as a stream socket it only waits for readiness, the packets are ours.
fn as_stream(socket: OwnedFd) -> std::io::Result<UnixStream> {
    UnixStream::from_std(socket.into())
}

/// Ends whoever listens at the other end.
fn end_listener(socket: &UnixStream) {
    if let Ok(listener) = rustix::net::sockopt::socket_peercred(socket) {
        let pidfd = rustix::process::pidfd_open(listener.pid, rustix::process::PidfdFlags::empty());
        let _ = pidfd.map_err(std::io::Error::from).and_then(launcher::end);
    }
}

type Stock = (Standing, Vec<(Living, Vec<OwnedFd>)>, Vec<(String, Gone)>);

/// Hears what a spawner has to tell first.
async fn take_stock(socket: &UnixStream) -> std::io::Result<Option<Stock>> {
    let next = || socket.async_io(Interest::READABLE, || receive::<Report>(socket));
    let Some((Report::Ready(standing), _)) = next().await? else { return Ok(None) };
    let (mut living, mut gone) = (Vec::new(), Vec::new());
    for _ in 0..u64::from(standing.living) + u64::from(standing.unheard) {
        match next().await? {
            Some((Report::Living(sandbox), outlet)) => living.push((sandbox, outlet)),
            Some((Report::Gone { id, end }, _)) => gone.push((id, end)),
            _ => return Ok(None),
        }
    }
    Ok(Some((standing, living, gone)))
}

async fn listen(socket: Arc<UnixStream>, state: Arc<Mutex<State>>) {
    let process = loop {
        let received = socket.async_io(Interest::READABLE, || receive::<Report>(&*socket)).await;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        match received {
            Ok(Some((report, fds))) => state.handle(report, fds),
            // A spawner that ended without having read everything resets the connection; the kernel tells that once, and
            // before what the spawner said last. A spawner of another build may say what is not understood here.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionReset | ErrorKind::InvalidData | ErrorKind::Interrupted
                ) => {}
            Ok(None) | Err(_) => {
                state.end();
                break state.process.take();
            }
        }
    };
    // The process is about to end: nobody else will ask for its exit status.
    let Some(mut process) = process else { return };
    for _ in 0..LAST_BREATH.as_millis() / 10 {
        if process.has_ended() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn lost(detail: &str) -> Problem {
    Problem::plain("talk to the spawner", detail)
}
