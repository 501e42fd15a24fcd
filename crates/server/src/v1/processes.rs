//! Processes that run on whatever happens to whoever started them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State as AppState;
use axum::http::StatusCode;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use sloplet_engine::Command;
use sloplet_engine::life::{Ended, Live, Reached, Tracked};
use sloplet_policy::Span;
use sloplet_wire::{ProcessInfo, TerminalSize};
use utoipa::{IntoParams, ToSchema};

use super::document::Binary;
use super::exec::{CommandLine, directory, not_started};
use super::extract::{OptionalPayload, Params, Payload, Segments, optional_unit};
use super::sandbox::variables;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// How long a process may leave its input unread.
const INPUT_PATIENCE: Duration = Duration::from_secs(30);

/// How long output may wait for a reader at most.
const LONGEST_HOLD: Duration = Duration::from_secs(600);

/// A process to be started.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartProcess {
    /// What to run.
    #[schema(example = "sleep 1")]
    command: CommandLine,
    /// Variables on top of the sandbox's.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Where it starts; relative to where the sandbox's commands start.
    cwd: Option<String>,
    /// Who it runs as: name, uid or uid:gid.
    user: Option<String>,
    /// A label for people.
    #[schema(max_length = 100)]
    tag: Option<String>,
    /// Give it a terminal of this size.
    tty: Option<Size>,
    /// Give it a standard input that can be written later; a terminal always has one.
    #[serde(default)]
    stdin: bool,
    /// It is killed after so long.
    #[schema(example = "10m", pattern = "^[1-9][0-9]{0,4}(ms|s|m|h|d)$")]
    timeout: Option<String>,
    /// It is held up, as by a full pipe, for so long while nobody reads its output: until the first reader comes, and when one
    /// that lost its connection comes back. Up to 10 minutes; if left out, the oldest output goes.
    #[schema(example = "30s", pattern = "^[1-9][0-9]{0,4}(ms|s|m|h|d)$")]
    hold: Option<String>,
}

/// How long output may wait for a reader: `hold`.
pub fn patience(hold: Option<&String>) -> Result<Option<Duration>, ApiError> {
    match optional_unit::<Span>("hold", hold)? {
        Some(span) if span.0 > LONGEST_HOLD => Err(ApiError::bad_request("hold: at most 10m")),
        span => Ok(span.map(|span| span.0)),
    }
}

impl StartProcess {
    /// What the engine is asked for.
    pub fn into_command(self) -> Result<Command, ApiError> {
        if self.tag.as_ref().is_some_and(|tag| tag.chars().count() > 100) {
            return Err(ApiError::bad_request("tag: at most 100 characters"));
        }
        Ok(Command {
            env: variables(&self.env)?,
            cwd: directory(self.cwd)?,
            user: self.user,
            tag: self.tag,
            terminal: self.tty.map(TryInto::try_into).transpose()?,
            stdin: self.stdin,
            timeout: optional_unit::<Span>("timeout", self.timeout.as_ref())?.map(|span| span.0),
            patience: patience(self.hold.as_ref())?,
            ..Command::new(self.command.words()?)
        })
    }
}

/// The size of a terminal in cells.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Columns.
    #[schema(minimum = 1)]
    columns: u16,
    /// Rows.
    #[schema(minimum = 1)]
    rows: u16,
}

impl TryFrom<Size> for TerminalSize {
    type Error = ApiError;

    fn try_from(Size { columns, rows }: Size) -> Result<Self, ApiError> {
        if columns == 0 || rows == 0 {
            return Err(ApiError::bad_request("a terminal has at least one column and one row"));
        }
        Ok(Self { columns, rows })
    }
}

/// A process.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Process {
    /// Its pid inside.
    pub pid: u32,
    /// Its parent's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// Program and arguments. The process can write anything here.
    pub command: Vec<String>,
    /// Its label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether it was started through the API: only then it can be signalled, and its output read.
    pub managed: bool,
    /// Whether it runs.
    pub running: bool,
    /// Whether it has a terminal.
    pub tty: bool,
    /// Its user id inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// When it was started, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExitStatus>,
    /// Bytes it has written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// Resident size in KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_kib: Option<u64>,
    /// Processor time used in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us: Option<u64>,
}

/// How a process ended.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct ExitStatus {
    /// Its exit code, or 128 + the signal that ended it; absent if nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// It was killed because its time was over.
    pub timed_out: bool,
    /// Why nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

impl From<&Ended> for ExitStatus {
    fn from(ended: &Ended) -> Self {
        match ended {
            Ended::Exited(exit) => {
                Self { exit_code: Some(exit.shell_code()), signal: exit.signal, timed_out: exit.timed_out, lost: None }
            }
            Ended::Lost(reason) => Self { lost: Some(reason.clone()), ..Self::default() },
        }
    }
}

impl Process {
    /// One that was started through the API.
    pub fn of(tracked: &Tracked) -> Self {
        let ended = tracked.ended();
        Self {
            pid: tracked.pid,
            command: tracked.argv.clone(),
            tag: tracked.tag.clone(),
            managed: true,
            running: tracked.is_running(),
            tty: tracked.terminal,
            started_ms: Some(tracked.started_ms),
            exit: ended.as_ref().map(Into::into),
            output_bytes: Some(tracked.written()),
            ..Self::default()
        }
    }

    fn seen(info: &ProcessInfo) -> Self {
        let words = info.command.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        Self {
            pid: info.pid,
            command: words.map(|word| String::from_utf8_lossy(word).into_owned()).collect(),
            tag: info.tag.clone(),
            running: true,
            tty: info.terminal,
            ..Self::default()
        }
        .measured(info)
    }

    fn measured(mut self, info: &ProcessInfo) -> Self {
        self.parent = Some(info.parent);
        self.uid = Some(info.uid);
        self.rss_kib = Some(info.rss_kib);
        self.cpu_us = Some(info.cpu_us);
        self
    }
}

/// The sandbox of a request, running.
pub async fn reach(app: &App, access: &Access, id: &str) -> Result<Reached, ApiError> {
    let id = app.sandboxes().id_of(&access.owner, id)?;
    Ok(app.sandboxes().reach(&id).await?)
}

/// A process that was started through the API.
pub fn tracked(live: &Live, pid: u32) -> Result<Arc<Tracked>, ApiError> {
    live.processes
        .get(pid)
        .ok_or_else(|| ApiError::not_found(format!("no process {pid} was started through the API, or it was long ago")))
}

/// Start a process in the background.
#[utoipa::path(post, path = "/sandboxes/{id}/processes", tag = "processes", request_body = StartProcess,
    params(("id" = String, Path, description = "The sandbox's id or name")), responses((status = 201, body = Process)))]
pub async fn start(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Payload(body): Payload<StartProcess>,
) -> Result<(StatusCode, Json<Process>), ApiError> {
    let command = body.into_command()?;
    let started = reach(&app, &access, &id).await?.start(command).await.map_err(not_started)?;
    Ok((StatusCode::CREATED, Json(Process::of(&started))))
}

/// List all processes of a sandbox, by pid; those that have ended lately, too.
#[utoipa::path(get, path = "/sandboxes/{id}/processes", tag = "processes",
    params(("id" = String, Path, description = "The sandbox's id or name")),
    responses((status = 200, body = Vec<Process>)))]
pub async fn list(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
) -> Result<Json<Vec<Process>>, ApiError> {
    let reached = reach(&app, &access, &id).await?;
    let infos = reached.agent().processes().await?;
    let mut all: BTreeMap<u32, Process> = infos.iter().map(|info| (info.pid, Process::seen(info))).collect();
    for tracked in reached.processes.list() {
        let process = Process::of(&tracked);
        let info = infos.iter().find(|info| info.pid == process.pid).filter(|_| process.running);
        all.insert(
            process.pid,
            match info {
                Some(info) => process.measured(info),
                None => process,
            },
        );
    }
    Ok(Json(all.into_values().collect()))
}

/// Look at a process.
#[utoipa::path(get, path = "/sandboxes/{id}/processes/{pid}", tag = "processes",
    params(("id" = String, Path, description = "The sandbox's id or name"), ("pid" = u32, Path, description = "Its pid")),
    responses((status = 200, body = Process)))]
pub async fn get(
    AppState(app): AppState<App>,
    access: Access,
    Segments((id, pid)): Segments<(String, u32)>,
) -> Result<Json<Process>, ApiError> {
    let reached = reach(&app, &access, &id).await?;
    Ok(Json(Process::of(&*tracked(&reached, pid)?)))
}

/// A signal.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs, reason = "their names say it")]
pub enum Signal {
    SigHup = 1,
    SigInt = 2,
    SigQuit = 3,
    SigAbrt = 6,
    #[default]
    SigKill = 9,
    SigUsr1 = 10,
    SigUsr2 = 12,
    SigPipe = 13,
    SigAlrm = 14,
    SigTerm = 15,
    SigCont = 18,
    SigStop = 19,
    SigTstp = 20,
    SigWinch = 28,
}

/// How to end a process.
#[derive(Debug, Default, Deserialize, IntoParams, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Kill {
    /// Which signal; `SIGKILL` if left out.
    #[param(inline)]
    signal: Signal,
    /// Not only the process, but its whole process group; true if left out.
    group: Option<bool>,
}

/// End a process and its process group.
#[utoipa::path(delete, path = "/sandboxes/{id}/processes/{pid}", tag = "processes",
    params(("id" = String, Path, description = "The sandbox's id or name"), ("pid" = u32, Path, description = "Its pid"), Kill),
    responses((status = 204)))]
pub async fn kill(
    AppState(app): AppState<App>,
    access: Access,
    Segments((id, pid)): Segments<(String, u32)>,
    Params(kill): Params<Kill>,
) -> Result<StatusCode, ApiError> {
    let reached = reach(&app, &access, &id).await?;
    tracked(&reached, pid)?.signal(kill.signal as i32, kill.group.unwrap_or(true)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Send a signal to a process.
#[utoipa::path(post, path = "/sandboxes/{id}/processes/{pid}/signal", tag = "processes", request_body = Option<Kill>,
    params(("id" = String, Path, description = "The sandbox's id or name"), ("pid" = u32, Path, description = "Its pid")),
    responses((status = 204)))]
pub async fn signal(
    AppState(app): AppState<App>,
    access: Access,
    Segments((id, pid)): Segments<(String, u32)>,
    OptionalPayload(kill): OptionalPayload<Kill>,
) -> Result<StatusCode, ApiError> {
    let reached = reach(&app, &access, &id).await?;
    tracked(&reached, pid)?.signal(kill.signal as i32, kill.group.unwrap_or(true)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What follows.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct InputEnd {
    /// Close its standard input afterwards.
    close: bool,
}

/// Write to a process's standard input, at the pace at which it reads. The body may have any size.
#[utoipa::path(post, path = "/sandboxes/{id}/processes/{pid}/stdin", tag = "processes",
    request_body(content = Binary, content_type = "application/octet-stream"),
    params(("id" = String, Path, description = "The sandbox's id or name"), ("pid" = u32, Path, description = "Its pid"), InputEnd),
    responses((status = 204)))]
pub async fn stdin(
    AppState(app): AppState<App>,
    access: Access,
    Segments((id, pid)): Segments<(String, u32)>,
    Params(InputEnd { close }): Params<InputEnd>,
    body: Body,
) -> Result<StatusCode, ApiError> {
    let reached = reach(&app, &access, &id).await?;
    let process = tracked(&reached, pid)?;
    let stuck = |_| ApiError::conflict(format!("process {pid} does not read its input: some of this was not written"));
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| ApiError::bad_request("the body broke off: some of it was written"))?;
        tokio::time::timeout(INPUT_PATIENCE, process.send_input(&piece, false)).await.map_err(stuck)??;
    }
    if close {
        tokio::time::timeout(INPUT_PATIENCE, process.send_input(b"", true)).await.map_err(stuck)??;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Change the size of a process's terminal.
#[utoipa::path(post, path = "/sandboxes/{id}/processes/{pid}/resize", tag = "processes", request_body = Size,
    params(("id" = String, Path, description = "The sandbox's id or name"), ("pid" = u32, Path, description = "Its pid")),
    responses((status = 204)))]
pub async fn resize(
    AppState(app): AppState<App>,
    access: Access,
    Segments((id, pid)): Segments<(String, u32)>,
    Payload(size): Payload<Size>,
) -> Result<StatusCode, ApiError> {
    let reached = reach(&app, &access, &id).await?;
    tracked(&reached, pid)?.resize(size.try_into()?).await?;
    Ok(StatusCode::NO_CONTENT)
}
