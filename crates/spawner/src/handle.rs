//! The engine's end: starting a spawner and talking to it.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::launcher::{Launcher, Process};
use crate::plan::Plan;
use crate::protocol::{Command, Problem, Report, Setup, receive, send};

/// A running spawner. When the last handle is dropped, it destroys its tied sandboxes and ends.
#[derive(Debug, Clone)]
pub struct Spawner(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    socket: Arc<UnixStream>,
    state: Arc<Mutex<State>>,
    listener: AbortHandle,
    process: Mutex<Process>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Gives up the last reference to the socket: the spawner sees the end of the conversation.
        self.listener.abort();
    }
}

#[derive(Debug, Default)]
struct State {
    creating: HashMap<String, oneshot::Sender<Result<Created, Problem>>>,
    pausing: HashMap<String, oneshot::Sender<Result<(), Problem>>>,
    gone: HashMap<String, oneshot::Sender<Gone>>,
    /// Set when the conversation is over.
    ended: Option<Problem>,
}

/// A sandbox's first process.
#[derive(Debug)]
pub struct Created {
    /// Its pid on the host.
    pub pid: i32,
    /// Names it even after its pid is reused.
    pub pidfd: OwnedFd,
    /// Resolves when nothing is left of the sandbox.
    pub gone: oneshot::Receiver<Gone>,
}

/// The end of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone {
    /// Processes that the kernel killed for want of memory during its life.
    pub oom_kills: u64,
    /// It was killed because its life was over.
    pub timed_out: bool,
}

impl Spawner {
    /// Starts a spawner. Returns at once; if it cannot work, the first command says so.
    pub fn start(launcher: &Launcher, setup: &Setup) -> Result<Self, Problem> {
        let step = "start the spawner";
        let (ours, process) = launcher.launch()?;
        rustix::io::ioctl_fionbio(&ours, true).map_err(|error| Problem::new(step, error))?;
        send(&ours, setup, &[]).map_err(|error| Problem::new(step, error))?;
        // Tokio knows no packet sockets; as a stream socket it only waits for readiness, the packets are ours.
        let socket = UnixStream::from_std(ours.into()).map_err(|error| Problem::new(step, error))?;
        let socket = Arc::new(socket);
        let state = Arc::new(Mutex::new(State::default()));
        let listener = tokio::spawn(listen(socket.clone(), state.clone())).abort_handle();
        Ok(Self(Arc::new(Inner { socket, state, listener, process: Mutex::new(process) })))
    }

    /// Ends the conversation and waits until the spawner has cleaned up after itself. Blocks the thread: meant for the
    /// end of a program, when nothing else is left to do.
    pub fn shut_down(self) {
        if let Some(inner) = Arc::into_inner(self.0) {
            // The aborted listener lets go of the socket only when it is polled again, which may be never: shut it.
            let _ = rustix::net::shutdown(&*inner.socket, rustix::net::Shutdown::Both);
            inner.process.lock().unwrap_or_else(PoisonError::into_inner).wait();
        }
    }

    /// Makes a sandbox; `fds` are the agent's end of the stream and, if it outlives the spawner, a listening socket.
    pub async fn create(&self, id: &str, plan: Plan, fds: &[OwnedFd]) -> Result<Created, Problem> {
        let (sender, receiver) = oneshot::channel();
        self.0.with_state(|state| state.creating.insert(id.to_owned(), sender))?;
        let command = Command::Create { id: id.to_owned(), plan: Box::new(plan) };
        self.0.send(&command, fds).await?;
        receiver.await.unwrap_or_else(|_| Err(self.0.why_ended()))
    }

    /// Whether it can make no more sandboxes.
    pub fn has_ended(&self) -> bool {
        self.0.with_state(|_| ()).is_err()
    }

    /// Kills everything in a sandbox; the `gone` of its [`Created`] tells when it is done.
    pub async fn destroy(&self, id: &str) -> Result<(), Problem> {
        self.0.send(&Command::Destroy { id: id.to_owned() }, &[]).await
    }

    /// Kills everything in a sandbox and waits until nothing is left of it.
    pub async fn finish(&self, id: &str, gone: &mut oneshot::Receiver<Gone>) -> Result<Gone, Problem> {
        // It may be over already, and so may be the spawner that has told so: its last word counts.
        let asked = self.destroy(id).await;
        match gone.await {
            Ok(gone) => Ok(gone),
            Err(_) => Err(asked.err().unwrap_or_else(|| lost("it died: 'sloplet gc' cleans up"))),
        }
    }

    /// Freezes or thaws a sandbox.
    pub async fn pause(&self, id: &str, frozen: bool) -> Result<(), Problem> {
        let (sender, receiver) = oneshot::channel();
        self.0.with_state(|state| state.pausing.insert(id.to_owned(), sender))?;
        self.0.send(&Command::Pause { id: id.to_owned(), frozen }, &[]).await?;
        receiver.await.unwrap_or_else(|_| Err(self.0.why_ended()))
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

    fn why_ended(&self) -> Problem {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ended.clone().unwrap_or_else(|| lost("it did not answer"))
    }

    async fn send(&self, command: &Command, fds: &[OwnedFd]) -> Result<(), Problem> {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let sent = self.socket.async_io(Interest::WRITABLE, || send(&*self.socket, command, &fds)).await;
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
    fn handle(&mut self, report: Report, fds: Vec<OwnedFd>) {
        let state = self;
        match report {
            Report::Ready => {}
            Report::Unable(problem) => {
                state.ended = Some(problem);
                state.end();
            }
            Report::Created { id, pid } => {
                if let (Some(waiting), Some(pidfd)) = (state.creating.remove(&id), fds.into_iter().next()) {
                    let (sender, gone) = oneshot::channel();
                    state.gone.insert(id, sender);
                    let _ = waiting.send(Ok(Created { pid, pidfd, gone }));
                }
            }
            Report::Failed { id, problem } => {
                if let Some(waiting) = state.creating.remove(&id) {
                    let _ = waiting.send(Err(problem));
                }
            }
            Report::Gone { id, oom_kills, timed_out } => {
                if let Some(waiting) = state.gone.remove(&id) {
                    let _ = waiting.send(Gone { oom_kills, timed_out });
                }
            }
            Report::Paused { id, problem } => {
                if let Some(waiting) = state.pausing.remove(&id) {
                    let _ = waiting.send(problem.map_or(Ok(()), Err));
                }
            }
        }
    }

    /// Everybody who still waits learns that there will be no answer.
    fn end(&mut self) {
        self.ended.get_or_insert_with(|| lost("it ended"));
        self.creating.clear();
        self.pausing.clear();
        self.gone.clear();
    }
}

async fn listen(socket: Arc<UnixStream>, state: Arc<Mutex<State>>) {
    loop {
        let received = socket.async_io(Interest::READABLE, || receive::<Report>(&*socket)).await;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        match received {
            Ok(Some((report, fds))) => state.handle(report, fds),
            // A spawner that ended without having read everything resets the connection; the kernel tells that once, and
            // before what the spawner said last.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Ok(None) | Err(_) => return state.end(),
        }
    }
}

fn lost(detail: &str) -> Problem {
    Problem { step: "talk to the spawner".into(), detail: detail.into(), errno: 0 }
}
