//! Sessions: a working directory and variables that stay from one command to the next.
//!
//! Every command of a session is a shell of its own, which reads what the last one left from a file inside the sandbox and
//! leaves its own. So nothing that a command does can break a session: it can print anything, call `exit`, forget a
//! quote, be killed, leave jobs behind. Its exit code and its streams are those of a process. And a session survives the
//! server.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State as AppState;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use sloplet_engine::Command;
use sloplet_engine::engine::new_id;
use sloplet_engine::life::clock::now_ms;
use sloplet_engine::life::{Live, Record};
use sloplet_policy::Span;
use sloplet_store::{Collection, Document};
use sloplet_wire::Target;
use utoipa::ToSchema;

use super::exec::{Bounds, ExecResult, directory, finish};
use super::extract::{OptionalPayload, Payload, Segments, optional_unit};
use super::processes::{Process, patience};
use super::sandbox::{check_name, variables};
use super::sandboxes::find;
use crate::account::Account;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// Most sessions of one sandbox.
const SESSIONS: usize = 100;

/// What bash runs for each command; `$1` is the file, `$2` the command.
const BASH: &str = include_str!("session.bash");

/// The same for any other shell.
const SH: &str = include_str!("session.sh");

/// Tells the shell and where files can be kept.
const PROBE: &str = r#"command -v bash || command -v sh; printf '%s' "${TMPDIR:-/tmp}""#;

/// A session as remembered.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Stored {
    id: String,
    #[serde(default)]
    name: Option<String>,
    owner: String,
    sandbox: String,
    /// Whether the shell is bash.
    bash: bool,
    shell: String,
    /// The file inside that holds what stays.
    file: String,
    user: Option<String>,
    cwd: Option<String>,
    env: Vec<String>,
    created_ms: u64,
}

impl Document for Stored {
    const KIND: &'static str = "session";

    fn id(&self) -> &str {
        &self.id
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    fn created_ms(&self) -> u64 {
        self.created_ms
    }
}

/// The sessions that a command runs in right now.
#[derive(Clone, Default)]
pub struct Busy(Arc<Mutex<HashSet<String>>>);

/// While it exists, no other command can run in the session.
struct Turn {
    busy: Busy,
    session: String,
}

impl Busy {
    fn take(&self, session: &str) -> Result<Turn, ApiError> {
        let fresh = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(session.to_owned());
        let busy = || ApiError::conflict(format!("a command still runs in session '{session}'"));
        fresh.then(|| Turn { busy: self.clone(), session: session.to_owned() }).ok_or_else(busy)
    }

    fn has(&self, session: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(session)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.busy.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.session);
    }
}

/// A session.
#[derive(Debug, Serialize, ToSchema)]
pub struct Session {
    /// Letters and digits.
    pub id: String,
    /// Its name within the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The sandbox's id.
    pub sandbox: String,
    /// The shell inside. With bash, variables, functions and the umask stay; with another, exported variables.
    pub shell: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// Whether a command runs in it right now.
    pub busy: bool,
}

impl Session {
    fn of(stored: Stored, busy: &Busy) -> Self {
        let busy = busy.has(&stored.id);
        let Stored { id, name, sandbox, shell, created_ms, .. } = stored;
        Self { id, name, sandbox, shell, created_ms, busy }
    }
}

/// A session to be opened.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewSession {
    /// A name to find it by, within the sandbox.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    name: Option<String>,
    /// Where its first command starts; absolute.
    cwd: Option<String>,
    /// Variables of its commands.
    env: BTreeMap<String, String>,
    /// Who its commands run as.
    user: Option<String>,
}

fn sessions(app: &App) -> Collection<Stored> {
    app.store().collection()
}

/// A sandbox's sessions; forgets those whose sandbox is gone.
fn of_sandbox(app: &App, owner: &str, sandbox: &Record) -> Result<Vec<Stored>, ApiError> {
    let all = sessions(app);
    let mut found = Vec::new();
    for session in all.of(owner)? {
        if session.sandbox == sandbox.id {
            found.push(session);
        } else if app.sandboxes().get_any(&session.sandbox).is_err() {
            all.remove(&session.id)?;
        }
    }
    Ok(found)
}

fn session(app: &App, sandbox: &Record, id: &str) -> Result<Stored, ApiError> {
    let found = sessions(app).get(id)?.filter(|one| one.sandbox == sandbox.id && one.owner == sandbox.owner);
    let found = match found {
        None => of_sandbox(app, &sandbox.owner, sandbox)?.into_iter().find(|one| one.name.as_deref() == Some(id)),
        found => found,
    };
    found.ok_or_else(|| ApiError::not_found(format!("there is no session '{}'", id.escape_default())))
}

/// Open a session: its commands find the working directory and the variables that the last one left.
#[utoipa::path(post, path = "/sandboxes/{id}/sessions", tag = "sessions", request_body = Option<NewSession>,
    params(("id" = String, Path, description = "The sandbox's id or name")), responses((status = 201, body = Session)))]
pub async fn create(
    AppState(app): AppState<App>,
    access: Access,
    Extension(busy): Extension<Busy>,
    Segments(id): Segments<String>,
    OptionalPayload(body): OptionalPayload<NewSession>,
) -> Result<(StatusCode, Json<Session>), ApiError> {
    let (env, cwd) = (variables(&body.env)?, directory(body.cwd)?);
    let record = find(&app, &access, &id)?;
    let others = of_sandbox(&app, &access.owner, &record)?;
    if others.len() >= SESSIONS {
        return Err(ApiError::conflict(format!("a sandbox has at most {SESSIONS} sessions: close one")));
    }
    if let Some(name) = &body.name {
        check_name(name)?;
        if others.iter().any(|one| one.name.as_ref() == Some(name) || one.id == *name) {
            return Err(ApiError::conflict(format!("there is a session '{name}' already")));
        }
    }
    let reached = app.sandboxes().reach(&record.id).await?;
    let probe = Command {
        env: env.clone(),
        cwd: cwd.clone(),
        user: body.user.clone(),
        timeout: Some(Duration::from_secs(10)),
        ..Command::new(["sh", "-c", PROBE])
    };
    let found = reached.sandbox.exec(probe).await?.output(4096).await?;
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    let (shell, folder) = match text.split_once('\n') {
        Some((shell, folder)) if shell.starts_with('/') && folder.starts_with('/') => (shell, folder),
        _ => return Err(ApiError::conflict("this sandbox has no shell to hold a session with")),
    };
    let id = new_id();
    let stored = Stored {
        file: format!("{folder}/.session-{id}"),
        id,
        name: body.name,
        owner: access.owner.clone(),
        sandbox: record.id,
        bash: shell.ends_with("/bash"),
        shell: shell.to_owned(),
        user: body.user,
        cwd,
        env,
        created_ms: now_ms(),
    };
    sessions(&app).insert(&stored)?;
    Ok((StatusCode::CREATED, Json(Session::of(stored, &busy))))
}

/// List a sandbox's sessions, newest first.
#[utoipa::path(get, path = "/sandboxes/{id}/sessions", tag = "sessions",
    params(("id" = String, Path, description = "The sandbox's id or name")),
    responses((status = 200, body = Vec<Session>)))]
pub async fn list(
    AppState(app): AppState<App>,
    access: Access,
    Extension(busy): Extension<Busy>,
    Segments(id): Segments<String>,
) -> Result<Json<Vec<Session>>, ApiError> {
    let record = find(&app, &access, &id)?;
    let found = of_sandbox(&app, &access.owner, &record)?;
    Ok(Json(found.into_iter().map(|stored| Session::of(stored, &busy)).collect()))
}

/// Look at a session.
#[utoipa::path(get, path = "/sandboxes/{id}/sessions/{session}", tag = "sessions",
    params(("id" = String, Path, description = "The sandbox's id or name"), ("session" = String, Path, description = "Its id or name")),
    responses((status = 200, body = Session)))]
pub async fn get(
    AppState(app): AppState<App>,
    access: Access,
    Extension(busy): Extension<Busy>,
    Segments((id, session)): Segments<(String, String)>,
) -> Result<Json<Session>, ApiError> {
    let record = find(&app, &access, &id)?;
    Ok(Json(Session::of(self::session(&app, &record, &session)?, &busy)))
}

/// Close a session. Jobs that its commands left run on.
#[utoipa::path(delete, path = "/sandboxes/{id}/sessions/{session}", tag = "sessions",
    params(("id" = String, Path, description = "The sandbox's id or name"), ("session" = String, Path, description = "Its id or name")),
    responses((status = 204)))]
pub async fn close(
    AppState(app): AppState<App>,
    access: Access,
    Segments((id, session)): Segments<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let record = find(&app, &access, &id)?;
    let stored = self::session(&app, &record, &session)?;
    sessions(&app).remove(&stored.id)?;
    // Not worth waking a sandbox for.
    if record.state == sloplet_engine::life::State::Running
        && let Ok(reached) = app.sandboxes().reach(&record.id).await
    {
        let target = Target { path: stored.file.into_bytes().into(), user: stored.user, ..Target::default() };
        let _ = reached.agent().remove(target, false).await;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// A command for a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionExec {
    /// A line for the shell.
    #[schema(min_length = 1, max_length = 100_000, example = "cd /tmp; export A=1; false")]
    command: String,
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

/// Run a command in a session and wait for its end.
#[utoipa::path(post, path = "/sandboxes/{id}/sessions/{session}/exec", tag = "sessions", request_body = SessionExec,
    params(("id" = String, Path, description = "The sandbox's id or name"), ("session" = String, Path, description = "Its id or name")),
    responses((status = 200, body = ExecResult)))]
pub async fn exec(
    AppState(app): AppState<App>,
    access: Access,
    account: Account,
    Extension(busy): Extension<Busy>,
    Segments((id, session)): Segments<(String, String)>,
    Payload(body): Payload<SessionExec>,
) -> Result<Json<ExecResult>, ApiError> {
    let SessionExec { command, stdin, stdin_base64, timeout, output_limit } = body;
    let bounds = Bounds { stdin, stdin_base64, timeout, output_limit };
    let (input, limit, timeout) = (bounds.input()?, bounds.output_limit()?, bounds.timeout()?);
    check_line(&command)?;
    let record = find(&app, &access, &id)?;
    let stored = self::session(&app, &record, &session)?;
    let _turn = busy.take(&stored.id)?;
    let reached = app.sandboxes().reach(&record.id).await?;
    let command =
        Command { stdin: input.is_some(), timeout: Some(timeout), ..shell(&reached, &stored, &command).await };
    let started = Instant::now();
    let process = reached.sandbox.exec(command).await?;
    Ok(Json(finish(process, input.into(), limit, &account, started).await?))
}

/// A command for a session, in the background.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionStart {
    /// A line for the shell.
    #[schema(min_length = 1, max_length = 100_000)]
    command: String,
    /// Give it a standard input that can be written later.
    #[serde(default)]
    stdin: bool,
    /// It is killed after so long.
    #[schema(pattern = "^[1-9][0-9]{0,4}(ms|s|m|h|d)$")]
    timeout: Option<String>,
    /// It is held up for so long while nobody reads its output, up to 10 minutes.
    #[schema(pattern = "^[1-9][0-9]{0,4}(ms|s|m|h|d)$")]
    hold: Option<String>,
}

/// Start a command in a session; its output is read as any process's. The session is busy until it ends.
#[utoipa::path(post, path = "/sandboxes/{id}/sessions/{session}/processes", tag = "sessions", request_body = SessionStart,
    params(("id" = String, Path, description = "The sandbox's id or name"), ("session" = String, Path, description = "Its id or name")),
    responses((status = 201, body = Process)))]
pub async fn start(
    AppState(app): AppState<App>,
    access: Access,
    Extension(busy): Extension<Busy>,
    Segments((id, session)): Segments<(String, String)>,
    Payload(body): Payload<SessionStart>,
) -> Result<(StatusCode, Json<Process>), ApiError> {
    check_line(&body.command)?;
    let timeout = optional_unit::<Span>("timeout", body.timeout.as_ref())?.map(|span| span.0);
    let patience = patience(body.hold.as_ref())?;
    let record = find(&app, &access, &id)?;
    let stored = self::session(&app, &record, &session)?;
    let turn = busy.take(&stored.id)?;
    let reached = app.sandboxes().reach(&record.id).await?;
    let tag = Some(format!("session {}", stored.id));
    let command =
        Command { stdin: body.stdin, timeout, tag, patience, ..shell(&reached, &stored, &body.command).await };
    let process = reached.start(command).await?;
    let answer = Process::of(&process);
    tokio::spawn(async move {
        process.wait().await;
        drop(turn);
    });
    Ok((StatusCode::CREATED, Json(answer)))
}

fn check_line(command: &str) -> Result<(), ApiError> {
    // The kernel takes no argument of more than 128 KiB.
    if command.is_empty() || command.len() > 100_000 || command.contains('\0') {
        return Err(ApiError::bad_request("command: give 1 to 100000 bytes without NUL; longer ones fit into a file"));
    }
    Ok(())
}

async fn shell(live: &Live, stored: &Stored, command: &str) -> Command {
    // Only the first command starts where the session was opened: that folder may be gone by now.
    let target =
        Target { path: stored.file.clone().into_bytes().into(), user: stored.user.clone(), ..Target::default() };
    let first = live.agent().stat(target).await.is_err();
    let script = if stored.bash { BASH } else { SH };
    Command {
        env: stored.env.clone(),
        cwd: stored.cwd.clone().filter(|_| first),
        user: stored.user.clone(),
        ..Command::new([stored.shell.as_str(), "-c", script, "session", &stored.file, command])
    }
}
