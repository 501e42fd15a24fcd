//! Files of a sandbox, streamed; folders as tar archives; changes as they happen.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State as AppState;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sloplet_client::{Answer, Download, Upload, Watcher};
use sloplet_engine::life::Reached;
use sloplet_wire::{ChangeKind, FileKind, Target};
use utoipa::{IntoParams, ToSchema};

use super::document::Binary;
use super::extract::{Params, Payload, Segments};
use super::processes::reach;
use crate::account::{Account, STREAM};
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;
use crate::record::{self, Digest};

/// How long a client may pause in the middle of a body.
const BODY_PATIENCE: Duration = Duration::from_secs(60);

/// Entries of a listing.
const ENTRIES: usize = 10_000;

/// Levels of a listing.
const DEPTH: u32 = 100;

/// A file or folder.
#[derive(Debug, Serialize, ToSchema)]
pub struct Entry {
    /// Absolute path; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// The path as it is, in base64; only if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// What it is.
    pub kind: Kind,
    /// Bytes.
    pub size: u64,
    /// Permission bits, in octal.
    pub mode: String,
    /// Owner: name, or id where it has none.
    pub owner: String,
    /// Group: name, or id where it has none.
    pub group: String,
    /// When it was changed, in milliseconds since 1970.
    pub modified_ms: i64,
    /// Where a symlink points.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
}

/// What a path is.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, FIFO or socket.
    Other,
}

impl From<sloplet_wire::Entry> for Entry {
    fn from(entry: sloplet_wire::Entry) -> Self {
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let faithful = std::str::from_utf8(&entry.path).is_ok();
        Self {
            path: lossy(&entry.path),
            path_base64: (!faithful).then(|| BASE64.encode(&*entry.path)),
            kind: match entry.kind {
                FileKind::File => Kind::File,
                FileKind::Directory => Kind::Directory,
                FileKind::Symlink => Kind::Symlink,
                FileKind::Other => Kind::Other,
            },
            size: entry.size,
            mode: format!("{:04o}", entry.mode & 0o7777),
            owner: entry.owner.unwrap_or_else(|| entry.uid.to_string()),
            group: entry.group.unwrap_or_else(|| entry.gid.to_string()),
            modified_ms: entry.modified_ns / 1_000_000,
            link_target: entry.link_target.as_ref().map(|target| lossy(target)),
        }
    }
}

/// Which file.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct At {
    /// Absolute, or relative to the user's home.
    #[param(min_length = 1, max_length = 4095, example = "/tmp/x")]
    path: String,
    /// On whose behalf: name, uid or uid:gid; the sandbox's user if left out.
    user: Option<String>,
}

pub(crate) fn target(path: String, user: Option<String>) -> Result<Target, ApiError> {
    if path.is_empty() || path.len() > 4095 || path.contains('\0') {
        return Err(ApiError::bad_request("path: give 1 to 4095 bytes without NUL"));
    }
    Ok(Target { path: path.into_bytes().into(), user, ..Target::default() })
}

/// Permission bits in octal.
pub(crate) fn mode(text: &str) -> Result<u32, ApiError> {
    match u32::from_str_radix(text, 8) {
        Ok(bits) if bits <= 0o7777 && !text.starts_with('+') => Ok(bits),
        _ => Err(ApiError::bad_request("mode: write permission bits in octal, like 0644")),
    }
}

/// Which part of which file.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Part {
    /// Absolute, or relative to the user's home.
    #[param(min_length = 1, max_length = 4095, example = "/tmp/x")]
    path: String,
    /// On whose behalf; the sandbox's user if left out.
    user: Option<String>,
    /// Bytes to skip.
    #[serde(default)]
    offset: u64,
    /// How many bytes at most.
    length: Option<u64>,
}

/// Read a file.
#[utoipa::path(get, path = "/sandboxes/{id}/files", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name"), Part),
    responses((status = 200, content_type = "application/octet-stream", body = Binary)))]
pub async fn read(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    account: Account,
    Params(part): Params<Part>,
) -> Result<Response, ApiError> {
    account.charge(STREAM)?;
    let target = target(part.path, part.user)?;
    let reached = reach(&app, &access, &id).await?;
    let (entry, download) = reached.agent().read(target, part.offset, part.length).await?;
    let mut response = binary("application/octet-stream", download, reached).await?;
    let length = entry.size.saturating_sub(part.offset).min(part.length.unwrap_or(u64::MAX));
    // Files of the kernel's have no size; nothing promises that they are empty.
    if entry.size > 0 {
        response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    Ok(response)
}

/// The answer waits for the first bytes: until then a failure can still be told as one.
async fn binary(kind: &'static str, mut download: Download, reached: Reached) -> Result<Response, ApiError> {
    let first = download.chunk().await?;
    let chunks = stream::unfold((first, Some((download, reached))), |(first, state)| async move {
        if let Some(bytes) = first {
            return Some((Ok(bytes), (None, state)));
        }
        let (mut download, reached) = state?;
        match download.chunk().await {
            Ok(Some(bytes)) => Some((Ok(bytes), (None, Some((download, reached))))),
            Ok(None) => None,
            Err(error) => Some((Err(error), (None, None))),
        }
    });
    let mut response = Body::from_stream(chunks).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

/// Where to write.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Destination {
    /// Absolute, or relative to the user's home.
    #[param(min_length = 1, max_length = 4095, example = "/tmp/x")]
    path: String,
    /// On whose behalf; the sandbox's user if left out.
    user: Option<String>,
    /// Permission bits of a new file, in octal; 0644 if left out.
    #[param(pattern = "^[0-7]{3,4}$", example = "0644")]
    mode: Option<String>,
    /// Make missing parent folders; true if left out.
    parents: Option<bool>,
}

/// Write a file as a whole: it is replaced when all has come, or not at all.
#[utoipa::path(put, path = "/sandboxes/{id}/files", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name"), Destination),
    request_body(content = Binary, content_type = "application/octet-stream"),
    responses((status = 200, body = Entry)))]
pub async fn write(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Params(to): Params<Destination>,
    body: Body,
) -> Result<Json<Entry>, ApiError> {
    let bits = to.mode.as_deref().map_or(Ok(0o644), mode)?;
    let target = target(to.path, to.user)?;
    let reached = reach(&app, &access, &id).await?;
    let upload = reached.agent().write(target, bits, to.parents.unwrap_or(true)).await?;
    let (entry, digest) = send(body, upload).await?;
    digest.note(&reached, &access.actor(), &entry.path);
    Ok(Json(entry.into()))
}

/// Passes a body on, and tells what it was.
async fn send<T: Answer>(body: Body, mut upload: Upload<T>) -> Result<(T, Digest), ApiError> {
    let (mut chunks, mut digest) = (body.into_data_stream(), Digest::default());
    loop {
        let late = || ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time");
        match tokio::time::timeout(BODY_PATIENCE, chunks.next()).await.map_err(|_| late())? {
            None => return Ok((upload.finish().await?, digest)),
            Some(Ok(bytes)) => {
                digest.add(&bytes);
                upload.write(bytes).await?;
            }
            Some(Err(_)) => return Err(ApiError::bad_request("the body broke off: nothing was written")),
        }
    }
}

/// Look at a file or folder. A symlink is not followed.
#[utoipa::path(get, path = "/sandboxes/{id}/files/stat", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name"), At), responses((status = 200, body = Entry)))]
pub async fn stat(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Params(at): Params<At>,
) -> Result<Json<Entry>, ApiError> {
    let target = target(at.path, at.user)?;
    let reached = reach(&app, &access, &id).await?;
    Ok(Json(reached.agent().stat(target).await?.into()))
}

/// What to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Below {
    /// The folder.
    #[param(min_length = 1, max_length = 4095, example = "/tmp")]
    path: String,
    /// On whose behalf; the sandbox's user if left out.
    user: Option<String>,
    /// Levels to descend; 1, the folder itself, if left out.
    #[param(minimum = 1, maximum = 100)]
    depth: Option<u32>,
}

/// What is in a folder.
#[derive(Debug, Serialize, ToSchema)]
pub struct Listing {
    /// Files and folders, by path.
    pub entries: Vec<Entry>,
    /// There are more than 10000.
    pub truncated: bool,
}

/// List a folder.
#[utoipa::path(get, path = "/sandboxes/{id}/files/list", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name"), Below), responses((status = 200, body = Listing)))]
pub async fn list(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Params(below): Params<Below>,
) -> Result<Json<Listing>, ApiError> {
    let depth = match below.depth.unwrap_or(1) {
        depth @ 1..=DEPTH => depth,
        _ => return Err(ApiError::bad_request(format!("depth: 1 to {DEPTH}"))),
    };
    let target = target(below.path, below.user)?;
    let reached = reach(&app, &access, &id).await?;
    let mut found = reached.agent().list(target, depth).await?;
    let truncated = found.len() > ENTRIES;
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found.truncate(ENTRIES);
    Ok(Json(Listing { entries: found.into_iter().map(Into::into).collect(), truncated }))
}

/// What to remove.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Gone {
    /// File or folder.
    #[param(min_length = 1, max_length = 4095, example = "/tmp/x")]
    path: String,
    /// On whose behalf; the sandbox's user if left out.
    user: Option<String>,
    /// A folder with all that is in it.
    #[serde(default)]
    recursive: bool,
}

/// Remove a file or folder.
#[utoipa::path(delete, path = "/sandboxes/{id}/files", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name"), Gone), responses((status = 204)))]
pub async fn remove(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Params(gone): Params<Gone>,
) -> Result<StatusCode, ApiError> {
    let target = target(gone.path, gone.user)?;
    let reached = reach(&app, &access, &id).await?;
    let path = target.path.clone();
    reached.agent().remove(target, gone.recursive).await?;
    record::removed(&reached, &access.actor(), &path);
    Ok(StatusCode::NO_CONTENT)
}

/// A folder to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeFolder {
    /// Absolute, or relative to the user's home.
    #[schema(min_length = 1, max_length = 4095, example = "/tmp/folder")]
    path: String,
    /// On whose behalf; the sandbox's user if left out.
    user: Option<String>,
    /// Permission bits, in octal; 0755 if left out.
    #[schema(pattern = "^[0-7]{3,4}$")]
    mode: Option<String>,
    /// Make missing parents too, and be content if it exists; true if left out.
    parents: Option<bool>,
}

/// Make a folder.
#[utoipa::path(post, path = "/sandboxes/{id}/files/mkdir", tag = "files", request_body = MakeFolder,
    params(("id" = String, Path, description = "The sandbox's id or name")), responses((status = 204)))]
pub async fn mkdir(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Payload(body): Payload<MakeFolder>,
) -> Result<StatusCode, ApiError> {
    let bits = body.mode.as_deref().map_or(Ok(0o755), mode)?;
    let target = target(body.path, body.user)?;
    let reached = reach(&app, &access, &id).await?;
    reached.agent().make_dir(target, bits, body.parents.unwrap_or(true)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What to move where.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveFile {
    /// From.
    #[schema(min_length = 1, max_length = 4095)]
    from: String,
    /// To: the new path itself.
    #[schema(min_length = 1, max_length = 4095)]
    to: String,
    /// On whose behalf; the sandbox's user if left out.
    user: Option<String>,
}

/// Move or rename a file or folder, replacing a file in the way.
#[utoipa::path(post, path = "/sandboxes/{id}/files/move", tag = "files", request_body = MoveFile,
    params(("id" = String, Path, description = "The sandbox's id or name")), responses((status = 204)))]
pub async fn rename(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Payload(body): Payload<MoveFile>,
) -> Result<StatusCode, ApiError> {
    let to = target(body.to, None)?.path;
    let from = target(body.from, body.user)?;
    let reached = reach(&app, &access, &id).await?;
    let path = from.path.clone();
    reached.agent().move_(from, to.to_vec()).await?;
    record::moved(&reached, &access.actor(), &path, &to);
    Ok(StatusCode::NO_CONTENT)
}

/// New permission bits.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeMode {
    /// File or folder.
    #[schema(min_length = 1, max_length = 4095)]
    path: String,
    /// Permission bits, in octal.
    #[schema(pattern = "^[0-7]{3,4}$")]
    mode: String,
    /// On whose behalf; the sandbox's user if left out.
    user: Option<String>,
}

/// Change permission bits.
#[utoipa::path(post, path = "/sandboxes/{id}/files/chmod", tag = "files", request_body = ChangeMode,
    params(("id" = String, Path, description = "The sandbox's id or name")), responses((status = 204)))]
pub async fn chmod(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Payload(body): Payload<ChangeMode>,
) -> Result<StatusCode, ApiError> {
    let bits = mode(&body.mode)?;
    let target = target(body.path, body.user)?;
    let reached = reach(&app, &access, &id).await?;
    reached.agent().set_mode(target, bits).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Read a folder's content, or one file, as a tar archive.
#[utoipa::path(get, path = "/sandboxes/{id}/archive", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name"), At),
    responses((status = 200, content_type = "application/x-tar", body = Binary)))]
pub async fn pack(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    account: Account,
    Params(at): Params<At>,
) -> Result<Response, ApiError> {
    account.charge(STREAM)?;
    let target = target(at.path, at.user)?;
    let reached = reach(&app, &access, &id).await?;
    let download = reached.agent().pack(target).await?;
    binary("application/x-tar", download, reached).await
}

/// Unpack a tar archive below a folder, which is made if missing.
#[utoipa::path(put, path = "/sandboxes/{id}/archive", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name"), At),
    request_body(content = Binary, content_type = "application/octet-stream"), responses((status = 204)))]
pub async fn unpack(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Params(at): Params<At>,
    body: Body,
) -> Result<StatusCode, ApiError> {
    let target = target(at.path, at.user)?;
    let reached = reach(&app, &access, &id).await?;
    let path = [target.path.as_slice(), b"/"].concat();
    let upload = reached.agent().unpack(target).await?;
    let ((), digest) = send(body, upload).await?;
    digest.note(&reached, &access.actor(), &path);
    Ok(StatusCode::NO_CONTENT)
}

/// What to watch.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Watched {
    /// The folder.
    #[param(min_length = 1, max_length = 4095, example = "/tmp")]
    path: String,
    /// On whose behalf; the sandbox's user if left out.
    user: Option<String>,
    /// All folders below it, too.
    #[serde(default)]
    recursive: bool,
}

/// Watch a folder: server-sent events `ready`, then `create`, `write`, `remove`, `rename`, `attributes` with
/// `{"path": …}` relative to the folder, and `overflow` when some were lost.
#[utoipa::path(get, path = "/sandboxes/{id}/files/watch", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name"), Watched),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub async fn watch(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Params(watched): Params<Watched>,
) -> Result<Response, ApiError> {
    let target = target(watched.path, watched.user)?;
    let reached = reach(&app, &access, &id).await?;
    let watcher = reached.agent().watch(target, watched.recursive).await?;
    let ready = stream::iter([Ok::<_, Infallible>(Event::default().event("ready").data("{}"))]);
    let changes = stream::unfold((watcher, reached), |(mut watcher, reached)| async move {
        let event = next_change(&mut watcher).await?;
        Some((Ok(event), (watcher, reached)))
    });
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(15));
    Ok(Sse::new(ready.chain(changes)).keep_alive(keep_alive).into_response())
}

async fn next_change(watcher: &mut Watcher) -> Option<Event> {
    let change = watcher.recv().await.ok()?;
    let name = match change.kind {
        ChangeKind::Create => "create",
        ChangeKind::Write => "write",
        ChangeKind::Remove => "remove",
        ChangeKind::Rename => "rename",
        ChangeKind::Attributes => "attributes",
        ChangeKind::Overflow => "overflow",
    };
    let path = Bytes::from(change.path.to_vec());
    let content = match std::str::from_utf8(&path) {
        Ok(text) => json!({"path": text}),
        Err(_) => json!({"path": String::from_utf8_lossy(&path), "path_base64": BASE64.encode(&path)}),
    };
    Some(Event::default().event(name).data(content.to_string()))
}
