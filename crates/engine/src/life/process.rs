//! The processes that were started in a sandbox through its engine.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sloplet_client::{Agent, ClientError, Process, ProcessEvent};
use sloplet_wire::{ErrorCode, Exit, Failure, TerminalSize};
use tracing::Instrument as _;

use super::clock::now_ms;
use super::output::{Ended, Output, Reader, Source};
use crate::allowance::Allowance;
use crate::sandbox::{Command, Sandbox};

/// Ended processes that are remembered, with what is kept of their output.
const REMEMBERED: usize = 32;

/// Bytes of a command's arguments that are remembered, and as many of its variables: they may have two mebibytes.
const WORDS: usize = 16 * 1024;

/// How long a killed process may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// How long whoever killed it waits for its exit status.
const TOLD_WITHIN: Duration = Duration::from_millis(500);

/// The signal that no process outlives.
const SIGKILL: i32 = 9;

/// All processes that were started in one sandbox.
pub struct Processes {
    agent: Agent,
    allowance: Allowance,
    known: Arc<Known>,
}

#[derive(Default)]
struct Known(Mutex<BTreeMap<u32, Arc<Tracked>>>);

/// A process and its output.
pub struct Tracked {
    /// Its pid inside.
    pub pid: u32,
    /// Program and arguments; of long ones the beginning.
    pub argv: Vec<String>,
    /// Variables that were given with it; of long ones the beginning.
    pub env: Vec<String>,
    /// Where it was started, if that was said.
    pub cwd: Option<String>,
    /// Its label.
    pub tag: Option<String>,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// When it was started, in milliseconds since 1970.
    pub started_ms: u64,
    output: Arc<Output>,
    /// It was killed and is gone, though its output may not have been read to its end.
    killed: AtomicBool,
    agent: Agent,
}

impl Processes {
    /// Of the sandbox behind this agent. What they write is kept within that allowance.
    pub fn new(agent: Agent, allowance: Allowance) -> Self {
        Self { agent, allowance, known: Arc::default() }
    }

    /// Starts a command. It runs on whatever happens to whoever started it.
    pub async fn start(&self, sandbox: &Sandbox, mut command: Command) -> Result<Arc<Tracked>, ClientError> {
        command.background = true;
        let argv = remembered(command.argv.iter().map(|word| word.as_slice()));
        let env = remembered(command.env.iter().map(|variable| variable.as_bytes()));
        let (cwd, tag) = (command.cwd.clone(), command.tag.clone());
        let (terminal, patience) = (command.terminal.is_some(), command.patience);
        let process = sandbox.exec(command).await?;
        let tracked = Tracked {
            pid: process.pid,
            argv,
            env,
            cwd,
            tag,
            terminal,
            started_ms: now_ms(),
            output: Arc::new(Output::new(&self.allowance, patience)),
            killed: AtomicBool::new(false),
            agent: self.agent.clone(),
        };
        Ok(self.track(tracked, process))
    }

    /// Finds the processes that an earlier engine started. What they wrote meanwhile is kept as far as the agent did.
    pub async fn find_again(&self) -> Result<(), ClientError> {
        for info in self.agent.processes().await?.into_iter().filter(|info| info.managed) {
            let Ok(process) = self.agent.attach(info.pid).await else { continue };
            let arguments = info.command.split(|byte| *byte == 0).filter(|part| !part.is_empty());
            let tracked = Tracked {
                pid: info.pid,
                argv: arguments.map(|part| String::from_utf8_lossy(part).into_owned()).collect(),
                env: Vec::new(),
                cwd: None,
                tag: info.tag,
                terminal: info.terminal,
                started_ms: now_ms(),
                output: Arc::new(process.held.map_or_else(
                    || Output::new(&self.allowance, None),
                    |held| Output::found_again(&self.allowance, held.dropped, held.written),
                )),
                killed: AtomicBool::new(false),
                agent: self.agent.clone(),
            };
            self.track(tracked, process);
        }
        Ok(())
    }

    fn track(&self, tracked: Tracked, process: Process) -> Arc<Tracked> {
        let source = if tracked.terminal { Source::Terminal } else { Source::Stdout };
        let span = tracing::debug_span!(
            "process",
            process.pid = tracked.pid,
            process.executable.path = tracked.argv.first().map(String::as_str).unwrap_or_default(),
            process.exit.code = tracing::field::Empty,
        );
        let (output, pumping) = (tracked.output.clone(), pump(process, tracked.output.clone(), source));
        let known = Arc::downgrade(&self.known);
        tokio::spawn(async move {
            pumping.instrument(span.clone()).await;
            if let Some(known) = known.upgrade() {
                known.forget_oldest();
            }
            let exit = output.ended().and_then(|ended| exit_of(&ended)?.code);
            if let Some(code) = exit {
                span.record("process.exit.code", code);
            }
        });
        let tracked = Arc::new(tracked);
        self.lock().insert(tracked.pid, tracked.clone());
        self.known.forget_oldest();
        tracked
    }

    /// All that are remembered, by pid; ended ones too.
    pub fn list(&self) -> Vec<Arc<Tracked>> {
        self.lock().values().cloned().collect()
    }

    /// The one with this pid.
    pub fn get(&self, pid: u32) -> Option<Arc<Tracked>> {
        self.lock().get(&pid).cloned()
    }

    /// The running one with this label.
    pub fn tagged(&self, tag: &str) -> Option<Arc<Tracked>> {
        self.lock().values().find(|one| one.tag.as_deref() == Some(tag) && one.is_running()).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Tracked>>> {
        self.known.lock()
    }
}

impl Known {
    /// Forgets ended processes, the oldest first, until few are left.
    fn forget_oldest(&self) {
        let mut known = self.lock();
        let mut ended: Vec<(u64, u32)> =
            known.values().filter(|one| one.ended().is_some()).map(|one| (one.started_ms, one.pid)).collect();
        ended.sort_unstable();
        for (_, pid) in ended.iter().take(ended.len().saturating_sub(REMEMBERED)) {
            known.remove(pid);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Tracked>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tracked {
    /// Reads its output from an offset on.
    pub fn read_from(&self, offset: u64) -> Reader {
        self.output.read_from(offset)
    }

    /// Bytes it has written so far.
    pub fn written(&self) -> u64 {
        self.output.length()
    }

    /// How it is over, if it is.
    pub fn ended(&self) -> Option<Ended> {
        self.output.ended()
    }

    /// Waits for its end.
    pub async fn wait(&self) -> Ended {
        let mut reader = self.output.read_from(u64::MAX);
        loop {
            match reader.next().await {
                Some(super::output::Next::Ended(ended)) => return ended,
                Some(super::output::Next::Chunk(_)) => {}
                None => return Ended::Lost("nobody knows".into()),
            }
        }
    }

    /// Writes to its standard input; `end` closes it afterwards.
    pub async fn send_input(&self, data: &[u8], end: bool) -> Result<(), ClientError> {
        self.still_there()?;
        self.agent.send_input(self.pid, data, end).await
    }

    /// Whether it still runs. One that was killed does not, however much of its output is yet to be read.
    pub fn is_running(&self) -> bool {
        !self.killed.load(Ordering::Acquire) && self.ended().is_none()
    }

    /// Sends a signal to it, or to its whole process group. A kill is answered when what was killed is gone.
    pub async fn signal(&self, signal: i32, group: bool) -> Result<(), ClientError> {
        self.still_there()?;
        let sent = self.agent.signal(self.pid, signal, group);
        if signal != SIGKILL {
            return sent.await;
        }
        match tokio::time::timeout(GONE_WITHIN, sent).await {
            Ok(sent) => sent?,
            Err(_) => {
                // The agent waits for the whole group, whose parents may not reap it. What was started here is what counts.
                let seconds = GONE_WITHIN.as_secs();
                if self.agent.signal(self.pid, 0, false).await.is_ok() {
                    let message = format!("process {} was sent SIGKILL and is still there after {seconds} s", self.pid);
                    return Err(ClientError::Failed(Failure { code: ErrorCode::Io, message }));
                }
            }
        }
        // How it ended comes after the last of its output, which a reader may hold up.
        let _ = tokio::time::timeout(TOLD_WITHIN, self.output.over()).await;
        self.killed.store(true, Ordering::Release);
        Ok(())
    }

    /// Changes the size of its terminal.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), ClientError> {
        self.still_there()?;
        self.agent.resize(self.pid, size).await
    }

    /// Its pid may be somebody else's once it has ended.
    fn still_there(&self) -> Result<(), ClientError> {
        match self.is_running() {
            true => Ok(()),
            false => {
                let message = format!("process {} has ended", self.pid);
                Err(ClientError::Failed(Failure { code: ErrorCode::NotFound, message }))
            }
        }
    }
}

/// Words as they are remembered: those that do not fit are cut, which can be seen, or left out.
fn remembered<'w>(words: impl Iterator<Item = &'w [u8]>) -> Vec<String> {
    let (mut left, mut kept) = (WORDS, Vec::new());
    for word in words {
        if left == 0 {
            break;
        }
        let part = &word[..word.len().min(left)];
        let mut text = String::from_utf8_lossy(part).into_owned();
        if part.len() < word.len() {
            text.push('…');
        }
        // An empty one costs something, too.
        left = left.saturating_sub(part.len().max(24));
        kept.push(text);
    }
    kept
}

/// The code a shell would report, if it ended by itself.
pub fn exit_of(ended: &Ended) -> Option<&Exit> {
    match ended {
        Ended::Exited(exit) => Some(exit),
        Ended::Lost(_) => None,
    }
}

async fn pump(mut process: Process, output: Arc<Output>, stdout: Source) {
    loop {
        match process.next().await {
            Some(Ok(ProcessEvent::Stdout(bytes))) => output.push(stdout, bytes).await,
            Some(Ok(ProcessEvent::Stderr(bytes))) => output.push(Source::Stderr, bytes).await,
            Some(Ok(ProcessEvent::Exited(exit))) => return output.end(Ended::Exited(exit)),
            Some(Err(error)) => return output.end(Ended::Lost(error.to_string())),
            None => return output.end(Ended::Lost("the connection to the agent is closed".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_long_commands_the_beginning_is_remembered() {
        let long = vec![b'x'; 1 << 20];
        let words = remembered([&b"sh"[..], b"-c", &long, b"never"].into_iter());
        assert_eq!((words.len(), &words[..2]), (3, &["sh".to_owned(), "-c".to_owned()][..]));
        assert!(words[2].ends_with("x…") && words[2].len() <= WORDS + 3);
        assert!(remembered(std::iter::repeat_n(&b""[..], 1_000_000)).len() <= WORDS / 24 + 1);
        assert_eq!(remembered([&b"a"[..], b"", b"\xff"].into_iter()), ["a", "", "\u{fffd}"]);
    }
}
