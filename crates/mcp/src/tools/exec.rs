//! Commands.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sloplet_client::ProcessEvent;
use sloplet_remote::{encode, full};
use tokio::sync::mpsc;
use tokio::time::interval;

use crate::answer::{Answer, TEXT, line, shortened, text};
use crate::call::Call;
use crate::catalogue::{About, Effect, Entry};
use crate::failure::Failure;

/// Bytes of each stream that are held to be written to a file.
const HELD: usize = 8 * 1024 * 1024;

/// How long a command may take unless that is said, and at most; in seconds.
const USUAL: u32 = 120;
const LONGEST: u32 = 3600;

/// How often it is told how far a command is.
const TELL: Duration = Duration::from_secs(1);

/// The tools of this file.
pub fn entries() -> Vec<Entry> {
    let about = About {
        name: "exec",
        group: "exec",
        title: "Run a command",
        description: "Run a shell command in the sandbox and wait for its end. Answers with exit code, standard output and \
                      standard error. Each call is a new shell: use cwd and env, or join commands with &&. For servers and \
                      other things that go on running use start_process.",
        effect: Effect::Runs,
        begins: true,
    };
    vec![Entry::new(about, exec)]
}

/// Arguments of `exec`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// A line for `sh -c`.
    pub command: String,
    /// Where it starts: an absolute path. The sandbox's usual folder if left out.
    pub cwd: Option<String>,
    /// Variables on top of the sandbox's.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Text for its standard input.
    pub stdin: Option<String>,
    /// It is killed after so many seconds: 1 to 3600, 120 if left out.
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: Option<u32>,
    /// Who it runs as inside, like root; an ordinary user if left out.
    pub user: Option<String>,
}

/// What came of a command.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Executed {
    /// Its exit code; 128 + N if signal N ended it.
    pub exit_code: i32,
    /// Standard output, shortened in the middle if it is long.
    pub stdout: String,
    /// Standard error, shortened in the middle if it is long.
    pub stderr: String,
    /// It was killed because its time was over.
    pub timed_out: bool,
    /// Something was left out of the output; the text says where all of it is.
    pub truncated: bool,
    /// How long it took.
    pub duration_ms: u64,
}

async fn exec(call: Call, exec: Exec) -> Result<Answer<Executed>, Failure> {
    if exec.command.trim().is_empty() {
        return Err(Failure::new("command: give a line for the shell"));
    }
    let process = json!({"command": exec.command, "env": exec.env, "cwd": exec.cwd, "user": exec.user});
    run(&call, process, exec.stdin, exec.timeout_seconds).await
}

/// Runs a process to its end. Whoever stops waiting for this kills it.
pub async fn run(
    call: &Call,
    mut process: Value,
    stdin: Option<String>,
    timeout: Option<u32>,
) -> Result<Answer<Executed>, Failure> {
    let seconds = match timeout.unwrap_or(USUAL) {
        seconds @ 1..=LONGEST => seconds,
        _ => return Err(Failure::new(format!("timeout_seconds: 1 to {LONGEST}")).hint("Use start_process for longer.")),
    };
    process["timeout"] = format!("{seconds}s").into();
    process["stdin"] = stdin.is_some().into();
    let fields = process.as_object_mut().into_iter();
    fields.for_each(|fields| fields.retain(|_, value| !value.is_null()));
    let sandbox = call.sandbox().await?;
    let started = Instant::now();
    let mut socket = call.server().attach(&sandbox, &json!({"start": {"process": process, "keep": false}})).await?;
    if let Some(stdin) = stdin {
        let (sender, receiver) = mpsc::channel(1);
        socket.feed(receiver);
        let _ = sender.send(stdin.into_bytes()).await;
    }
    let (mut stdout, mut stderr) = (Stream::default(), Stream::default());
    let mut tick = interval(TELL);
    let exit = loop {
        tokio::select! {
            event = socket.next() => match event {
                Some(Ok(ProcessEvent::Stdout(bytes))) => stdout.add(&bytes),
                Some(Ok(ProcessEvent::Stderr(bytes))) => stderr.add(&bytes),
                Some(Ok(ProcessEvent::Exited(exit))) => break exit,
                Some(Err(error)) => return Err(error.into()),
                None => return Err(Failure::new("the command's end was not told")),
            },
            _ = tick.tick() => {
                if call.is_followed() {
                    let last = if stdout.held.is_empty() { &stderr } else { &stdout };
                    call.tell(started.elapsed().as_secs_f64(), line(last.end(), 200)).await;
                }
                call.conversation.extend_time(call.server()).await;
            }
        }
    };
    let duration_ms = started.elapsed().as_millis() as u64;
    let mut notes = Vec::new();
    let (out, out_short) = stdout.told(call, "stdout", &mut notes).await;
    let (err, err_short) = stderr.told(call, "stderr", &mut notes).await;
    if exit.timed_out {
        notes.push(format!("[killed: it took longer than {seconds} s]"));
    }
    let value = Executed {
        exit_code: exit.shell_code(),
        stdout: out,
        stderr: err,
        timed_out: exit.timed_out,
        truncated: out_short || err_short,
        duration_ms,
    };
    Ok(Answer::new(value.text(&notes), value))
}

impl Executed {
    fn text(&self, notes: &[String]) -> String {
        let mut said = format!("exit code {}", self.exit_code);
        for (name, output) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !output.is_empty() {
                said.push_str(&format!("\n--- {name} ---\n{}", output.trim_end_matches('\n')));
            }
        }
        for note in notes {
            said.push_str(&format!("\n{note}"));
        }
        said
    }
}

/// What a command writes.
#[derive(Default)]
struct Stream {
    held: Vec<u8>,
    dropped: u64,
}

impl Stream {
    fn add(&mut self, bytes: &[u8]) {
        let room = (HELD - self.held.len()).min(bytes.len());
        self.held.extend_from_slice(&bytes[..room]);
        self.dropped += (bytes.len() - room) as u64;
    }

    fn end(&self) -> &[u8] {
        &self.held[self.held.len().saturating_sub(1024)..]
    }

    /// As the model reads it, and whether that is not all; all of it is then in a file.
    async fn told(&self, call: &Call, name: &str, notes: &mut Vec<String>) -> (String, bool) {
        let Some(short) = shortened(&self.held, TEXT / 2) else { return (text(&self.held), false) };
        let path = format!("/tmp/sloplet-output/{}.{name}", call.conversation.number());
        let whole = match self.dropped {
            0 => String::new(),
            more => format!(" (its first {HELD} bytes; {more} more were dropped)"),
        };
        notes.push(match keep(call, &path, &self.held).await {
            Ok(()) => {
                format!("[{name} was long: all of it{whole} is in {path}; see it with read_file or search_files]")
            }
            Err(_) => format!("[{name} was long, and the rest could not be kept: send it to a file and read that]"),
        });
        (short, true)
    }
}

async fn keep(call: &Call, path: &str, bytes: &[u8]) -> Result<(), Failure> {
    let path = call.path(&format!("/files?path={}", encode(path))).await?;
    call.server().send(hyper::Method::PUT, &path, "application/octet-stream", full(bytes.to_vec())).await?;
    Ok(())
}
