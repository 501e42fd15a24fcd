//! One start of a program: its input, its output, its end, and its time limit.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};

/// What is held of each stream; all of it is counted.
const HELD: usize = 128 << 20;

/// How often the memory of the program is looked at.
const TICK: Duration = Duration::from_millis(20);

/// A program about to be started.
pub struct Invocation {
    command: Command,
    title: String,
    input: Input,
    limit: Duration,
    unread_stdout: bool,
}

enum Input {
    Null,
    Bytes(Vec<u8>),
    File(File),
    Pipe,
}

impl Invocation {
    pub(super) fn new(command: Command, title: String) -> Self {
        Self { command, title, input: Input::Null, limit: Duration::from_secs(60), unread_stdout: false }
    }

    /// Another time limit than a minute.
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Bytes on standard input, through a pipe that is then closed.
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = Input::Bytes(bytes.into());
        self
    }

    /// A file as standard input.
    pub fn input_file(mut self, file: File) -> Self {
        self.input = Input::File(file);
        self
    }

    /// A pipe as standard input, for [`Running::stdin`].
    pub fn input_pipe(mut self) -> Self {
        self.input = Input::Pipe;
        self
    }

    /// Standard output is a pipe that nobody reads (until [`Running::stdout`] is).
    pub fn unread_stdout(mut self) -> Self {
        self.unread_stdout = true;
        self
    }

    /// A variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Starts it and waits for its end.
    pub fn finish(self) -> Ended {
        self.start().finish()
    }

    /// Starts it.
    pub fn start(mut self) -> Running {
        let (stdin, bytes) = match self.input {
            Input::Null => (Stdio::null(), None),
            Input::File(file) => (file.into(), None),
            Input::Bytes(bytes) => (Stdio::piped(), Some(bytes)),
            Input::Pipe => (Stdio::piped(), None),
        };
        let command = self.command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {}: {error}", self.title));
        let mut stdin = child.stdin.take();
        if let Some(bytes) = bytes {
            let mut pipe = stdin.take().expect("a pipe");
            thread::spawn(move || drop(pipe.write_all(&bytes)));
        }
        let mut stdout = child.stdout.take();
        let stderr = child.stderr.take().map(collect);
        let out = if self.unread_stdout { None } else { stdout.take().map(collect) };
        let (started, deadline) = (Instant::now(), Instant::now() + self.limit);
        Running {
            child,
            title: self.title,
            stdin,
            stdout,
            out,
            err: stderr,
            started,
            deadline,
            peak_rss_kib: 0,
            over: false,
        }
    }
}

/// A started program. Dropping it kills it.
pub struct Running {
    child: Child,
    title: String,
    /// With [`Invocation::input_pipe`].
    pub stdin: Option<ChildStdin>,
    /// With [`Invocation::unread_stdout`].
    pub stdout: Option<ChildStdout>,
    out: Option<JoinHandle<Collected>>,
    err: Option<JoinHandle<Collected>>,
    started: Instant,
    deadline: Instant,
    peak_rss_kib: u64,
    over: bool,
}

impl Running {
    /// Of sloplet itself: everything before it is exec'ed away.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal to sloplet itself.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(self.pid(), signal);
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// Its spawners.
    pub fn spawners(&self) -> Vec<Pid> {
        super::spawners::of(self.pid())
    }

    /// Waits for its end; fails the test if that does not come in time.
    pub fn finish(mut self) -> Ended {
        self.stdin = None;
        let status = self.wait();
        let took = self.started.elapsed();
        let collected =
            |handle: Option<JoinHandle<Collected>>| handle.map(|handle| handle.join().unwrap()).unwrap_or_default();
        let (out, err) = (collected(self.out.take()), collected(self.err.take()));
        let ended = Ended {
            title: std::mem::take(&mut self.title),
            code: status.and_then(|status| status.code()).unwrap_or(-1),
            signal: status.and_then(|status| status.signal()),
            stdout: out.held,
            stdout_bytes: out.total,
            stderr: String::from_utf8_lossy(&err.held).into_owned(),
            took,
            peak_rss_kib: self.peak_rss_kib,
        };
        assert!(status.is_some(), "HANGS: it was killed after {took:?}: {ended}");
        ended
    }

    /// `None` if it had to be killed.
    fn wait(&mut self) -> Option<ExitStatus> {
        if let Ok(Some(status)) = self.child.try_wait() {
            self.over = true;
            return Some(status);
        }
        let pidfd = pidfd_open(self.pid(), PidfdFlags::empty()).expect("a pidfd");
        while Instant::now() < self.deadline {
            self.peak_rss_kib = self.peak_rss_kib.max(peak_rss_kib(self.pid()));
            let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
            let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&tick));
            if let Ok(Some(status)) = self.child.try_wait() {
                self.over = true;
                return Some(status);
            }
        }
        self.kill();
        None
    }

    fn kill(&mut self) {
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.wait();
        self.over = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.over && self.is_running() {
            self.kill();
        }
    }
}

/// The high-water mark of resident memory.
fn peak_rss_kib(pid: Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

#[derive(Default)]
struct Collected {
    held: Vec<u8>,
    total: u64,
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<Collected> {
    thread::spawn(move || {
        let mut collected = Collected::default();
        let mut buffer = vec![0; 256 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            collected.total += count as u64;
            let room = HELD - collected.held.len();
            collected.held.extend_from_slice(&buffer[..count.min(room)]);
        }
        collected
    })
}

/// How a program ended.
pub struct Ended {
    title: String,
    /// Its exit status; -1 if a signal ended it.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The first 128 MiB.
    pub stdout: Vec<u8>,
    /// All of it, counted.
    pub stdout_bytes: u64,
    pub stderr: String,
    pub took: Duration,
    /// Of sloplet itself; sampled.
    pub peak_rss_kib: u64,
}

impl Ended {
    /// Standard output as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard output without white space around it.
    pub fn word(&self) -> String {
        self.out().trim().to_owned()
    }

    /// The object of `--json`.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("not JSON ({error}): {self}"))
    }

    /// Fails unless the exit status is that.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self}");
        self
    }

    /// Fails unless standard error contains that.
    #[track_caller]
    pub fn expect_said(self, words: &str) -> Self {
        assert!(self.stderr.contains(words), "nothing about '{words}': {self}");
        self
    }
}

/// For messages of assertions.
impl fmt::Display for Ended {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = |text: &str| text.chars().take(2000).collect::<String>();
        let title: String = self.title.chars().take(600).collect();
        write!(to, "\n$ {title}\nexit {} (signal {:?}) after {:?}", self.code, self.signal, self.took)?;
        write!(to, "\nstdout ({} bytes): {}\nstderr: {}\n", self.stdout_bytes, start(&self.out()), start(&self.stderr))
    }
}
