//! PID 1 beside a runtime: starts it, gives connections to the agent behind it, and has it save its memory.
//!
//! Everything that comes out of the sandbox is hostile, and so is what is at its door: names there are only connected to.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sloplet_agent::door;
use sloplet_sys::spawn;

use super::control::{Answer, Request};
use super::house::places;
use crate::plan::Runtime;
use crate::protocol::{During, Problem, receive, send_now};

/// The container's name: there is one in each house.
const NAME: &str = "sandbox";

/// How long the runtime may take to bring its agent up, or down.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long an agent may take to let go of its sockets.
const LETTING_GO: Duration = Duration::from_secs(10);

const PAUSE: Duration = Duration::from_millis(3);

/// Most that is told of what the runtime said.
const SAID: usize = 600;

/// A runtime that runs.
pub struct Keeper<'a> {
    runtime: &'a Runtime,
    /// The agent's only stream, where it has one; told why, if there is no agent.
    stream: OwnedFd,
    pid: i32,
    alive: OwnedFd,
    exit: Option<i32>,
}

impl<'a> Keeper<'a> {
    /// Starts it. With `memory`, it goes on from what was saved there.
    pub fn start(
        runtime: &'a Runtime,
        stream: OwnedFd,
        lasting: bool,
        memory: Option<&OwnedFd>,
    ) -> Result<Self, Problem> {
        let step = "start the runtime";
        let input = match lasting {
            true => Stdio::null(),
            false => stream.try_clone().during(step)?.into(),
        };
        let (pid, alive) = launch(runtime, memory, input)?;
        Ok(Self { runtime, stream, pid, alive, exit: None })
    }

    /// Keeps it until it ends; returns why, if it failed.
    pub fn keep(mut self, listener: Option<OwnedFd>) -> Result<(), (OwnedFd, Problem)> {
        loop {
            let mut waiting = vec![PollFd::new(&self.alive, PollFlags::IN)];
            if let Some(listener) = &listener {
                waiting.push(PollFd::new(listener, PollFlags::IN));
            }
            let _ = poll(&mut waiting, None);
            let asked = waiting.get(1).is_some_and(|fd| !fd.revents().is_empty());
            if self.has_ended() {
                return match self.exit {
                    Some(0) | None => Ok(()),
                    Some(code) => Err((self.stream, why(code))),
                };
            }
            if asked && let Some(listener) = &listener {
                self.attend(listener);
            }
        }
    }

    /// Hears what somebody at the door wants.
    fn attend(&mut self, listener: &OwnedFd) {
        let Ok(guest) = rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC) else { return };
        // Whoever says nothing must not hold up the others.
        if !readable(&guest, Duration::from_secs(5)) {
            return;
        }
        match receive::<Request>(&guest) {
            Ok(Some((Request::Connect, _))) => match self.connect() {
                Ok(stream) => drop(send_now(&guest, &Answer::Connected, &[stream.as_fd()])),
                Err(problem) => drop(send_now(&guest, &Answer::Failed(problem), &[])),
            },
            Ok(Some((Request::Checkpoint, _))) if self.runtime.shares_kernel => {
                let problem =
                    Problem::plain("save the sandbox's memory", "its runtime has no kernel of its own to save");
                let _ = send_now(&guest, &Answer::Failed(problem), &[]);
            }
            Ok(Some((Request::Checkpoint, mut fds))) if !fds.is_empty() => {
                let memory = fds.remove(0);
                match self.save(&memory) {
                    Ok(()) => {
                        let _ = send_now(&guest, &Answer::Saved, &[]);
                        // A word, or the end of the conversation: both mean to go on.
                        let _ = receive::<Request>(&guest);
                        let answer = match self.go_on(&memory) {
                            Ok(()) => Answer::Done,
                            Err(problem) => Answer::Failed(problem),
                        };
                        let _ = send_now(&guest, &answer, &[]);
                    }
                    Err(problem) => drop(send_now(&guest, &Answer::Failed(problem), &[])),
                }
            }
            _ => {}
        }
    }

    /// A connection to the agent, as soon as it listens.
    fn connect(&mut self) -> Result<UnixStream, Problem> {
        let step = "connect to the agent";
        let since = Instant::now();
        loop {
            let error = match UnixStream::connect(format!("{}/agent", places::DOOR)) {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            if self.has_ended() {
                return Err(why(self.exit.unwrap_or(0)));
            }
            if since.elapsed() > PATIENCE {
                return Err(Problem::new(step, error));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Saves all processes and ends them.
    fn save(&mut self, memory: &OwnedFd) -> Result<(), Problem> {
        let step = "save the sandbox's memory";
        let (gate, gone) = (format!("{}/{}", places::DOOR, door::GATE), format!("{}/{}", places::DOOR, door::GONE));
        let _ = fs::remove_file(&gate);
        self.run(&["kill", NAME, &door::LET_GO.to_string()], None).inspect_err(|_| open_gate(&gate))?;
        let since = Instant::now();
        while fs::symlink_metadata(&gone).is_err() {
            if since.elapsed() > LETTING_GO {
                open_gate(&gate);
                return Err(Problem::plain(step, "the agent does not let go of its sockets"));
            }
            std::thread::sleep(PAUSE);
        }
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let saved = self.run(&["checkpoint", "--image-path", &path, NAME], Some(memory));
        // However it went, a runtime that ended must not be taken for one that failed.
        let since = Instant::now();
        if saved.is_ok() {
            while !self.has_ended() && since.elapsed() < PATIENCE {
                std::thread::sleep(PAUSE);
            }
        }
        saved.inspect_err(|_| open_gate(&gate))
    }

    /// Goes on from what was saved.
    fn go_on(&mut self, memory: &OwnedFd) -> Result<(), Problem> {
        let _ = self.run(&["delete", "-force", NAME], None);
        open_gate(&format!("{}/{}", places::DOOR, door::GATE));
        (self.pid, self.alive) = launch(self.runtime, Some(memory), Stdio::null())?;
        self.exit = None;
        Ok(())
    }

    /// Runs the runtime's program once, for a matter of its own.
    fn run(&mut self, words: &[&str], inherit: Option<&OwnedFd>) -> Result<(), Problem> {
        let step = format!("run '{}' of the runtime", words.first().unwrap_or(&""));
        let said = File::create("/said").during(&step)?;
        let mut command = Command::new(places::PROGRAM);
        command.args(&self.runtime.flags).args(words).env_clear().stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(said);
        if let Some(fd) = inherit {
            rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).during(&step)?;
        }
        let child = command.spawn().during(&step)?;
        let pid = child.id() as i32;
        loop {
            match spawn::reap() {
                Some(ended) if ended.pid == pid && ended.code == Some(0) => return Ok(()),
                Some(ended) if ended.pid == pid => {
                    return Err(Problem::plain(&step, last_words("/said")));
                }
                Some(ended) => self.note(&ended),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Reaps whoever has ended; whether the runtime has.
    fn has_ended(&mut self) -> bool {
        while let Some(ended) = spawn::reap() {
            self.note(&ended);
        }
        self.exit.is_some()
    }

    fn note(&mut self, ended: &spawn::Ended) {
        if ended.pid == self.pid {
            self.exit = Some(ended.code.unwrap_or(137));
        }
    }
}

fn launch(runtime: &Runtime, memory: Option<&OwnedFd>, input: Stdio) -> Result<(i32, OwnedFd), Problem> {
    let step = "start the runtime";
    let log = File::create(places::LOG).during(step)?;
    let mut command = Command::new(places::PROGRAM);
    command.args(&runtime.flags).env_clear().env("PATH", "/").stdin(input);
    command.stdout(log.try_clone().during(step)?).stderr(log);
    match memory {
        Some(memory) => {
            rustix::io::fcntl_setfd(memory, rustix::io::FdFlags::empty()).during(step)?;
            let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
            command.args(["restore", "--image-path", &path, "--bundle", places::BUNDLE, NAME]);
        }
        None if runtime.shares_kernel => {
            command.args(["run", "--detach", "--pid-file", places::PID, "--bundle", places::BUNDLE, NAME]);
        }
        None => {
            command.args(["run", "--bundle", places::BUNDLE, NAME]);
        }
    }
    let mut child = command.spawn().during(step)?;
    let pid = match runtime.shares_kernel {
        // It is gone once the agent has started, which is a child of this process then.
        true => {
            let status = child.wait().during(step)?;
            if !status.success() {
                return Err(why(status.code().unwrap_or(137)));
            }
            let pid = fs::read_to_string(places::PID).during(step)?;
            pid.trim().parse().map_err(|_| Problem::plain(step, "it does not say whom it started"))?
        }
        false => child.id() as i32,
    };
    let number = Pid::from_raw(pid).ok_or_else(|| Problem::plain(step, "it has no pid"))?;
    Ok((pid, pidfd_open(number, PidfdFlags::empty()).during(step)?))
}

fn open_gate(gate: &str) {
    let _ = fs::write(gate, b"");
}

fn readable(fd: &OwnedFd, within: Duration) -> bool {
    let mut waiting = [PollFd::new(fd, PollFlags::IN)];
    let within = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: 0 };
    poll(&mut waiting, Some(&within)).is_ok_and(|ready| ready > 0)
}

/// What the runtime said before it failed.
fn why(code: i32) -> Problem {
    let said = last_words(places::LOG);
    let said = if said.is_empty() { format!("it ended with {code}") } else { said };
    Problem::plain("run the sandbox behind its runtime", said)
}

fn last_words(path: &str) -> String {
    let mut text = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(64 * 1024).read_to_end(&mut text);
    }
    let text = String::from_utf8_lossy(&text);
    // A Go program's traces begin with the reason.
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    first.chars().filter(|letter| !letter.is_control()).take(SAID).collect()
}
