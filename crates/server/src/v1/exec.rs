//! Run a command and wait for its end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State as AppState;
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use sloplet_client::{ClientError, Process};
use sloplet_engine::Command;
use sloplet_policy::{ByteSize, Span};
use sloplet_wire::{ErrorCode, Exit};
use utoipa::ToSchema;

use super::extract::{Segments, optional_unit};
use super::input::{Input, Order};
use super::processes::reach;
use super::sandbox::variables;
use crate::account::Account;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// How long a command may take unless that is said.
const USUAL_TIMEOUT: Duration = Duration::from_secs(120);

/// Bytes of each output that are kept unless that is said.
const USUAL_OUTPUT: usize = 1024 * 1024;

/// Most bytes of each output that can be asked for.
const LARGEST_OUTPUT: usize = 16 * 1024 * 1024;

/// Most arguments.
const ARGUMENTS: usize = 4096;

/// A command: a line for `sh`, or a program and its arguments.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum CommandLine {
    /// A line for the shell.
    Line(String),
    /// A program and its arguments.
    Words(Vec<String>),
}

impl CommandLine {
    /// Program and arguments.
    pub fn words(self) -> Result<Vec<String>, ApiError> {
        let words = match self {
            Self::Line(line) if line.is_empty() => Vec::new(),
            Self::Line(line) => vec!["sh".into(), "-c".into(), line],
            Self::Words(words) => words,
        };
        if words.first().is_none_or(String::is_empty) || words.len() > ARGUMENTS {
            return Err(ApiError::bad_request(format!("command: give a program and at most {ARGUMENTS} arguments")));
        }
        if words.iter().any(|word| word.contains('\0')) {
            return Err(ApiError::bad_request("command: no argument can hold a NUL"));
        }
        Ok(words)
    }
}

/// A command to be run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// What to run.
    #[schema(example = "echo hello")]
    command: CommandLine,
    /// Variables on top of the sandbox's.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Where it starts; relative to where the sandbox's commands start.
    #[schema(example = "/tmp")]
    cwd: Option<String>,
    /// Who it runs as: name, uid or uid:gid.
    user: Option<String>,
    /// Its standard input, as text.
    stdin: Option<String>,
    /// The same, as base64.
    #[schema(pattern = "^([A-Za-z0-9+/]{4})*$")]
    stdin_base64: Option<String>,
    /// It is killed after so long; 2 minutes if left out.
    #[schema(example = "10s", pattern = "^[1-9][0-9]{0,4}(ms|s|m|h|d)$")]
    timeout: Option<String>,
    /// Bytes of each output that are kept, up to 16MiB; 1MiB if left out.
    #[schema(example = "1MiB", pattern = "^([1-9][0-9]{0,3}KiB|([1-9]|1[0-6])MiB)$")]
    output_limit: Option<String>,
}

/// What a command is fed with, and how long and how much of it is waited for.
#[derive(Debug, Default)]
pub struct Bounds {
    /// Its standard input, as text.
    pub stdin: Option<String>,
    /// The same, as base64.
    pub stdin_base64: Option<String>,
    /// When it is killed.
    pub timeout: Option<String>,
    /// Bytes of each output that are kept.
    pub output_limit: Option<String>,
}

impl Bounds {
    /// When to kill it.
    pub fn timeout(&self) -> Result<Duration, ApiError> {
        let given = optional_unit::<Span>("timeout", self.timeout.as_ref())?;
        Ok(given.map_or(USUAL_TIMEOUT, |span| span.0))
    }

    /// How much of each output to keep.
    pub fn output_limit(&self) -> Result<usize, ApiError> {
        match optional_unit::<ByteSize>("output_limit", self.output_limit.as_ref())? {
            None => Ok(USUAL_OUTPUT),
            Some(size) if size.0 <= LARGEST_OUTPUT as u64 => Ok(size.0 as usize),
            Some(_) => Err(ApiError::bad_request("output_limit: at most 16MiB; start a process and read its output")),
        }
    }

    /// What to write to its standard input.
    pub fn input(&self) -> Result<Option<Vec<u8>>, ApiError> {
        match (&self.stdin, &self.stdin_base64) {
            (Some(_), Some(_)) => Err(ApiError::bad_request("give stdin or stdin_base64, not both")),
            (Some(text), None) => Ok(Some(text.clone().into_bytes())),
            (None, Some(text)) => decode("stdin_base64", text).map(Some),
            (None, None) => Ok(None),
        }
    }
}

/// Reads base64.
pub fn decode(name: &str, text: &str) -> Result<Vec<u8>, ApiError> {
    BASE64.decode(text).map_err(|error| ApiError::bad_request(format!("{name}: {error}")))
}

/// How a command ended, and what it wrote.
#[derive(Debug, Serialize, ToSchema)]
pub struct ExecResult {
    /// Its exit code, or 128 + the signal that ended it, as a shell would say.
    pub exit_code: i32,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// It was killed because its time was over.
    pub timed_out: bool,
    /// Standard output; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Standard error; bytes that are not UTF-8 are replaced.
    pub stderr: String,
    /// Standard output as it is, in base64; only if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    /// Standard error as it is, in base64; only if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    /// Something was dropped because of `output_limit`.
    pub truncated: bool,
    /// How long it took.
    pub duration_ms: u64,
    /// Processor time it used, in microseconds.
    pub cpu_us: u64,
    /// Its largest resident size in KiB.
    pub max_rss_kib: u64,
}

/// Run a command and wait for its end. If the client leaves, the command is killed.
///
/// A program that does not exist or cannot be executed is a result, too, as in a shell: exit code 127 or 126. Input of any size
/// goes as a form (`multipart/form-data`): the part `exec` is this body, the part `stdin` after it is the input.
#[utoipa::path(post, path = "/sandboxes/{id}/exec", tag = "commands", request_body = Exec,
    params(("id" = String, Path, description = "The sandbox's id or name")), responses((status = 200, body = ExecResult)))]
pub async fn exec(
    AppState(app): AppState<App>,
    access: Access,
    account: Account,
    Segments(id): Segments<String>,
    order: Order,
) -> Result<Json<ExecResult>, ApiError> {
    let Exec { command, env, cwd, user, stdin, stdin_base64, timeout, output_limit } = order.exec;
    let bounds = Bounds { stdin, stdin_base64, timeout, output_limit };
    let (given, limit) = (Input::from(bounds.input()?), bounds.output_limit()?);
    let input = match order.rest {
        Some(_) if given.is_some() => return Err(ApiError::bad_request("give the input once")),
        Some(rest) => rest,
        None => given,
    };
    let words = command.words()?;
    let program = words[0].clone();
    let command = Command {
        env: variables(&env)?,
        cwd: directory(cwd)?,
        user,
        timeout: Some(bounds.timeout()?),
        stdin: input.is_some(),
        ..Command::new(words)
    };
    let reached = reach(&app, &access, &id).await?;
    let started = Instant::now();
    let result = match reached.sandbox.exec(command).await {
        Ok(process) => finish(process, input, limit, &account, started).await?,
        Err(error) => {
            let result = ExecResult::not_executed(&program, error)?;
            input.feed(None).await?;
            result
        }
    };
    Ok(Json(result))
}

/// A working directory; a relative one is below the sandbox's own.
pub fn directory(path: Option<String>) -> Result<Option<String>, ApiError> {
    match path {
        Some(path) if path.is_empty() || path.contains('\0') => Err(ApiError::bad_request("cwd: this is no path")),
        path => Ok(path),
    }
}

/// Why a command did not start. A key that may not do it is another matter, and the only one that is 403.
pub fn not_started(error: ClientError) -> ApiError {
    let error = ApiError::from(error);
    let status = if error.status == StatusCode::FORBIDDEN { StatusCode::BAD_REQUEST } else { error.status };
    ApiError { status, ..error }
}

impl ExecResult {
    /// As a shell tells of a program that it cannot execute; any other failure is one of the request.
    fn not_executed(program: &str, error: ClientError) -> Result<Self, ApiError> {
        let about = |message: &str| message.strip_prefix(program).is_some_and(|rest| rest.starts_with(": "));
        let exit_code = match error.failure() {
            Some(failure) if about(&failure.message) => match failure.code {
                ErrorCode::NotFound => 127,
                ErrorCode::Denied | ErrorCode::Invalid => 126,
                _ => return Err(not_started(error)),
            },
            _ => return Err(not_started(error)),
        };
        Ok(Self {
            exit_code,
            signal: None,
            timed_out: false,
            stdout: String::new(),
            stderr: format!("sloplet: {error}\n"),
            stdout_base64: None,
            stderr_base64: None,
            truncated: false,
            duration_ms: 0,
            cpu_us: 0,
            max_rss_kib: 0,
        })
    }
}

/// Feeds a process and waits for its end.
pub async fn finish(
    mut process: Process,
    input: Input,
    limit: usize,
    account: &Account,
    started: Instant,
) -> Result<ExecResult, ApiError> {
    let stdin = process.take_stdin();
    // As it is, and as the answer says it: what there is no memory for is left out, and the answer says that.
    let room_for = |bytes: usize| account.charge(2 * bytes as u64).is_ok();
    let ending = async { Ok(process.output_while(limit, room_for).await?) };
    let (output, ()) = tokio::try_join!(ending, input.feed(stdin))?;
    let (stdout, stdout_base64) = text(output.stdout);
    let (stderr, stderr_base64) = text(output.stderr);
    let Exit { signal, timed_out, cpu_us, max_rss_kib, .. } = output.exit;
    Ok(ExecResult {
        exit_code: output.exit.shell_code(),
        signal,
        timed_out,
        stdout,
        stderr,
        stdout_base64,
        stderr_base64,
        truncated: output.truncated,
        duration_ms: started.elapsed().as_millis() as u64,
        cpu_us,
        max_rss_kib,
    })
}

/// Bytes as text and, if that would lose something, as base64, too.
fn text(bytes: Vec<u8>) -> (String, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(error) => {
            let bytes = error.as_bytes();
            (String::from_utf8_lossy(bytes).into_owned(), Some(BASE64.encode(bytes)))
        }
    }
}
