//! `process.Process`: commands and terminals.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router, middleware};
use serde::Deserialize;
use serde_json::{Value, json};
use sloplet_client::ClientError;
use sloplet_engine::life::{Live, Tracked};
use sloplet_engine::sandbox::Command;
use sloplet_policy::spec::is_variable;
use sloplet_wire::{ErrorCode, TerminalSize};

use super::call::{self, Call, Single, Streaming};
use super::connect::{Code, RpcError};
use super::json::Number;
use super::{input, output};
use crate::app::App;

/// Signals that can be asked for.
const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;

/// Its routes.
pub fn router() -> Router<App> {
    let single = Router::new()
        .route("/process.Process/List", post(list))
        .route("/process.Process/Update", post(update))
        .route("/process.Process/SendInput", post(input::send))
        .route("/process.Process/CloseStdin", post(input::close))
        .route("/process.Process/SendSignal", post(signal))
        .route_layer(middleware::from_fn(call::within_timeout));
    Router::new()
        .merge(single)
        .route("/process.Process/Start", post(start))
        .route("/process.Process/Connect", post(connect))
        .route("/process.Process/StreamInput", post(input::stream))
}

/// How a process is named.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Selector {
    pid: Option<Number>,
    tag: Option<String>,
}

impl Selector {
    /// The running process that is meant.
    pub fn find(&self, sandbox: &Live) -> Result<Arc<Tracked>, RpcError> {
        self.find_any(sandbox).and_then(|process| match process.is_running() {
            true => Ok(process),
            false => Err(self.missing()),
        })
    }

    /// That, or one that has ended and is still remembered.
    fn find_any(&self, sandbox: &Live) -> Result<Arc<Tracked>, RpcError> {
        let found = match (self.pid, &self.tag) {
            (Some(pid), None) => sandbox.processes.get(pid.0),
            (None, Some(tag)) => {
                let newest = || sandbox.processes.list().into_iter().filter(|one| one.tag.as_ref() == Some(tag));
                sandbox.processes.tagged(tag).or_else(|| newest().max_by_key(|one| one.started_ms))
            }
            _ => return Err(RpcError::invalid("name a process by either its pid or its tag")),
        };
        found.ok_or_else(|| self.missing())
    }

    fn missing(&self) -> RpcError {
        let message = match (self.pid, &self.tag) {
            (Some(pid), _) => format!("process with pid {} not found", pid.0),
            (_, tag) => format!("process with tag {} not found", tag.as_deref().unwrap_or_default()),
        };
        RpcError::new(Code::NotFound, message)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    cmd: String,
    args: Vec<String>,
    envs: BTreeMap<String, String>,
    cwd: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pty {
    size: Option<Size>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Size {
    cols: Number,
    rows: Number,
}

impl Pty {
    fn size(&self) -> Result<TerminalSize, RpcError> {
        let size = self.size.as_ref().ok_or_else(|| RpcError::invalid("a terminal needs a size"))?;
        let cells = |number: Number| u16::try_from(number.0).map_err(|_| RpcError::invalid("a terminal is too large"));
        Ok(TerminalSize { columns: cells(size.cols)?, rows: cells(size.rows)? })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Start {
    process: Config,
    pty: Option<Pty>,
    tag: Option<String>,
    stdin: Option<bool>,
}

async fn start(Streaming(call, request): Streaming<Start>) -> Response {
    match begin(&call, request).await {
        Ok(process) => output::events(call, process, 0),
        Err(error) => error.streamed(),
    }
}

async fn begin(call: &Call, request: Start) -> Result<Arc<Tracked>, RpcError> {
    let Start { process: Config { cmd, args, envs, cwd }, pty, tag, stdin } = request;
    if cmd.is_empty() {
        return Err(RpcError::invalid("no command is given"));
    }
    let mut env = Vec::with_capacity(envs.len());
    for (name, value) in envs {
        if !is_variable(&name) || value.contains('\0') {
            let name: String = name.escape_debug().take(100).collect();
            return Err(RpcError::invalid(format!("'{name}' cannot be an environment variable")));
        }
        env.push(format!("{name}={value}"));
    }
    let cwd = match cwd.as_deref() {
        None | Some("") => None,
        Some(path) => Some(String::from_utf8_lossy(&call.target(path)?.path).into_owned()),
    };
    let command = Command {
        argv: std::iter::once(cmd).chain(args).map(String::into_bytes).collect(),
        env,
        cwd: cwd.clone(),
        user: call.user.clone(),
        terminal: pty.map(|pty| pty.size()).transpose()?,
        // Clients that do not know the choice expect to be able to write.
        stdin: stdin.unwrap_or(true),
        timeout: call.timeout,
        tag,
        ..Command::default()
    };
    match call.sandbox.start(command).await {
        Ok(process) => Ok(process),
        Err(error) => Err(why_not(call, cwd, error).await),
    }
}

/// Why a command did not start, as E2B's clients know it.
async fn why_not(call: &Call, cwd: Option<String>, error: ClientError) -> RpcError {
    if let (Some(ErrorCode::NotFound), Some(cwd)) = (error.failure().map(|failure| failure.code), cwd)
        && let Ok(target) = call.target(&cwd)
        && let Err(missing) = call.sandbox.agent().stat(target).await
        && missing.failure().is_some_and(|failure| failure.code == ErrorCode::NotFound)
    {
        return RpcError::invalid(format!("cwd '{cwd}' does not exist"));
    }
    match RpcError::from(error) {
        RpcError { code: Code::NotFound | Code::PermissionDenied, message } => RpcError::invalid(message),
        other => other,
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OfProcess {
    process: Selector,
}

async fn connect(Streaming(call, request): Streaming<OfProcess>) -> Response {
    match request.process.find_any(&call.sandbox) {
        Ok(process) => {
            // What it wrote before was for others.
            let from_now_on = process.written();
            output::events(call, process, from_now_on)
        }
        Err(error) => error.streamed(),
    }
}

async fn list(Single(call, _): Single<Value>) -> Json<Value> {
    let running = call.sandbox.processes.list().into_iter().filter(|process| process.is_running());
    let processes: Vec<Value> = running.map(|process| describe(&process)).collect();
    Json(json!({"processes": processes}))
}

fn describe(process: &Tracked) -> Value {
    let (cmd, args) = process.argv.split_first().map_or(("", &[][..]), |(cmd, args)| (cmd.as_str(), args));
    let envs: BTreeMap<&str, &str> = process.env.iter().filter_map(|variable| variable.split_once('=')).collect();
    let mut config = json!({"cmd": cmd, "args": args, "envs": envs});
    if let Some(cwd) = &process.cwd {
        config["cwd"] = json!(cwd);
    }
    let mut info = json!({"pid": process.pid, "config": config});
    if let Some(tag) = &process.tag {
        info["tag"] = json!(tag);
    }
    info
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Update {
    process: Selector,
    pty: Option<Pty>,
}

async fn update(Single(call, request): Single<Update>) -> Result<Json<Value>, RpcError> {
    let process = request.process.find(&call.sandbox)?;
    if let Some(pty) = request.pty {
        process.resize(pty.size()?).await?;
    }
    Ok(Json(json!({})))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Signal {
    process: Selector,
    signal: Value,
}

async fn signal(Single(call, request): Single<Signal>) -> Result<Json<Value>, RpcError> {
    let number = match &request.signal {
        Value::String(name) if name == "SIGNAL_SIGKILL" => SIGKILL,
        Value::String(name) if name == "SIGNAL_SIGTERM" => SIGTERM,
        Value::Number(number) if number.as_i64() == Some(SIGKILL.into()) => SIGKILL,
        Value::Number(number) if number.as_i64() == Some(SIGTERM.into()) => SIGTERM,
        other => return Err(RpcError::invalid(format!("invalid signal {other}: SIGNAL_SIGTERM or SIGNAL_SIGKILL"))),
    };
    let process = request.process.find(&call.sandbox)?;
    // With all that a shell started: whoever kills a command wants it gone.
    process.signal(number, true).await?;
    Ok(Json(json!({})))
}

/// A method that there is not.
pub async fn unknown() -> Response {
    RpcError::new(Code::Unimplemented, "there is no such method").into_response()
}
