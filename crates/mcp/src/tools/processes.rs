//! Processes in the background.

use std::collections::BTreeMap;

use hyper::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sloplet_remote::full;

use super::{Nothing, word};
use crate::answer::{Answer, TEXT, shortened, text};
use crate::call::Call;
use crate::catalogue::{About, Effect, Entry};
use crate::failure::Failure;

/// Most processes in an answer.
const LISTED: usize = 100;

/// The tools of this file.
pub fn entries() -> Vec<Entry> {
    let about = |name, title, description, effect, begins| About {
        name,
        group: "processes",
        title,
        description,
        effect,
        begins,
    };
    vec![
        Entry::new(
            about(
                "start_process",
                "Start a process in the background",
                "Start a command that goes on running, like a server. Answers at once with its pid; see process_output, \
                 stop_process, and expose_port for its ports.",
                Effect::Runs,
                true,
            ),
            start,
        ),
        Entry::new(
            about(
                "list_processes",
                "List processes",
                "List the processes of the sandbox; those that were started here are marked, with their exit code if they \
                 have ended.",
                Effect::Reads,
                false,
            ),
            list,
        ),
        Entry::new(
            about(
                "process_output",
                "Read a process's output",
                "Read what a background process has written so far, standard error included.",
                Effect::Reads,
                false,
            ),
            output,
        ),
        Entry::new(
            about(
                "process_input",
                "Write to a process",
                "Write text to the standard input of a process that was started with stdin.",
                Effect::Changes,
                false,
            ),
            input,
        ),
        Entry::new(
            about(
                "stop_process",
                "Stop a process",
                "Send a signal to a background process and its process group.",
                Effect::Changes,
                false,
            ),
            stop,
        ),
    ]
}

/// Arguments of `start_process`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// A line for `sh -c`.
    command: String,
    /// Where it starts: an absolute path.
    cwd: Option<String>,
    /// Variables on top of the sandbox's.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// A label to know it by.
    tag: Option<String>,
    /// Give it a standard input for process_input.
    #[serde(default)]
    stdin: bool,
    /// Who it runs as inside, like root.
    user: Option<String>,
}

/// A process.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Process {
    /// Its pid inside.
    pid: u64,
    /// Program and arguments.
    command: String,
    /// Its label.
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    /// Whether it runs.
    running: bool,
    /// Whether it was started by start_process.
    managed: bool,
    /// Its exit code, if it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i64>,
}

impl Process {
    fn of(one: &Value) -> Self {
        let words: Vec<&str> = one["command"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        Self {
            pid: one["pid"].as_u64().unwrap_or(0),
            command: words.join(" ").chars().take(400).collect(),
            tag: one["tag"].as_str().map(str::to_owned),
            running: one["running"] == true,
            managed: one["managed"] == true,
            exit_code: one["exit"]["exit_code"].as_i64(),
        }
    }

    fn line(&self) -> String {
        let state = match (self.running, self.exit_code) {
            (true, _) => "running".into(),
            (false, Some(code)) => format!("ended with {code}"),
            (false, None) => "ended".into(),
        };
        let tag = self.tag.as_ref().map_or_else(String::new, |tag| format!(" [{tag}]"));
        let managed = if self.managed { " (started here)" } else { "" };
        format!("{} {state}{managed}{tag}: {}", self.pid, self.command)
    }
}

async fn start(call: Call, start: Start) -> Result<Answer<Process>, Failure> {
    if start.command.trim().is_empty() {
        return Err(Failure::new("command: give a line for the shell"));
    }
    let mut body = json!({"command": start.command, "env": start.env, "stdin": start.stdin});
    for (name, value) in [("cwd", start.cwd), ("tag", start.tag), ("user", start.user)] {
        if let Some(value) = value {
            body[name] = value.into();
        }
    }
    let started = Process::of(&call.server().post(&call.path("/processes").await?, &body).await?);
    Ok(Answer::new(format!("started: pid {}", started.pid), started))
}

/// Processes.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Processes {
    /// By pid.
    processes: Vec<Process>,
    /// There are more.
    truncated: bool,
}

async fn list(call: Call, _: Nothing) -> Result<Answer<Processes>, Failure> {
    let found = call.get("/processes").await?;
    let mut processes: Vec<Process> = found.as_array().into_iter().flatten().map(Process::of).collect();
    let truncated = processes.len() > LISTED;
    // Those that were started here matter most.
    processes.sort_by_key(|one| (!one.managed, one.pid));
    processes.truncate(LISTED);
    let lines: Vec<String> = processes.iter().map(Process::line).collect();
    Ok(Answer::new(lines.join("\n"), Processes { processes, truncated }))
}

/// Arguments of `process_output`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Which {
    /// The pid that start_process answered with.
    pid: u32,
    /// Only the last lines; all that is kept if left out.
    tail: Option<u32>,
}

/// What a process wrote.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// What it wrote, shortened in the middle if it is long.
    output: String,
    /// Whether it runs.
    running: bool,
    /// Its exit code, if it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i64>,
    /// Something was left out.
    truncated: bool,
}

async fn output(call: Call, which: Which) -> Result<Answer<Output>, Failure> {
    let Which { pid, tail } = which;
    let state = Process::of(&call.get(&format!("/processes/{pid}")).await?);
    let tail = tail.map_or_else(String::new, |lines| format!("?tail={lines}"));
    let path = call.path(&format!("/processes/{pid}/logs{tail}")).await?;
    let (bytes, _) = call.server().bytes(&path, "content-type").await?;
    let short = shortened(&bytes, TEXT);
    let value = Output {
        truncated: short.is_some(),
        output: short.unwrap_or_else(|| text(&bytes)),
        running: state.running,
        exit_code: state.exit_code,
    };
    let note = if value.truncated { "\n[shortened: use tail for the end]" } else { "" };
    Ok(Answer::new(format!("{}\n--- output ---\n{}{note}", state.line(), value.output), value))
}

/// Arguments of `process_input`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The pid that start_process answered with.
    pid: u32,
    /// What to write; end it with a newline if it is a line.
    text: String,
    /// Close its standard input afterwards.
    #[serde(default)]
    close: bool,
}

/// That something was done.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Done {
    /// To which process.
    pid: u32,
}

async fn input(call: Call, input: Input) -> Result<Answer<Done>, Failure> {
    let path = call.path(&format!("/processes/{}/stdin?close={}", input.pid, input.close)).await?;
    call.server().send(Method::POST, &path, "application/octet-stream", full(input.text)).await?;
    Ok(Answer::new(format!("written to process {}", input.pid), Done { pid: input.pid }))
}

/// Arguments of `stop_process`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// The pid that start_process answered with.
    pid: u32,
    /// Which signal; SIGKILL if left out.
    signal: Option<Signal>,
}

/// A signal.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub enum Signal {
    /// As Ctrl-C.
    #[serde(rename = "SIGINT")]
    Interrupt,
    /// Asks it to end.
    #[serde(rename = "SIGTERM")]
    Terminate,
    /// Ends it.
    #[serde(rename = "SIGKILL")]
    Kill,
    /// Often: read the configuration again.
    #[serde(rename = "SIGHUP")]
    Hangup,
}

async fn stop(call: Call, stop: Stop) -> Result<Answer<Done>, Failure> {
    let signal = json!(stop.signal.unwrap_or(Signal::Kill));
    let path = call.path(&format!("/processes/{}/signal", stop.pid)).await?;
    call.server().post(&path, &json!({"signal": signal})).await?;
    Ok(Answer::new(
        format!("sent {} to process {}", word(&json!({"s": signal}), "s"), stop.pid),
        Done { pid: stop.pid },
    ))
}
