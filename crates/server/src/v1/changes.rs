//! What a sandbox has changed: a list, and a patch.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State as AppState;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use sloplet_engine::Command;
use sloplet_engine::patch::{self, PatchError};
use sloplet_image::changes::{Change as Found, Node, NodeKind};
use utoipa::{IntoParams, ToSchema};

use super::document::Binary;
use super::extract::{Params, Segments};
use super::files::Kind;
use super::processes::reach;
use super::sandboxes::find;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

/// How long git may take inside.
const GIT_TIMEOUT: Duration = Duration::from_secs(120);

/// What runs inside: says whether a folder is in a work tree of git, and what differs from its last commit.
const GIT: &str = include_str!("patch.sh");

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// It is new.
    Added,
    /// It has another content, or became something else.
    Modified,
    /// It is the same, but for its mode or owner.
    Mode,
    /// It is gone.
    Deleted,
}

/// One path that is not what it was.
#[derive(Debug, Serialize, ToSchema)]
pub struct Change {
    /// Absolute path; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// The path as it is, in base64; only if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// What happened to it.
    pub change: What,
    /// What it is, or was if it is gone.
    pub kind: Kind,
    /// What it was before, if that was something else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind_before: Option<Kind>,
    /// Permission bits now, in octal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Permission bits before, in octal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode_before: Option<String>,
    /// Bytes of the file now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Bytes of the file before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_before: Option<u64>,
}

/// All that a sandbox has changed.
#[derive(Debug, Serialize, ToSchema)]
pub struct Changes {
    /// What it was made from.
    pub image: String,
    /// Sorted by path.
    pub changes: Vec<Change>,
    /// There are more than could be told: name a folder.
    pub truncated: bool,
}

impl From<&Found> for Change {
    fn from(found: &Found) -> Self {
        let (before, after) = (found.before.as_ref(), found.after.as_ref());
        let bytes = [b"/", found.path.as_os_str().as_bytes()].concat();
        let kind = |node: &Node| match node.kind {
            NodeKind::File => Kind::File,
            NodeKind::Directory => Kind::Directory,
            NodeKind::Symlink => Kind::Symlink,
            NodeKind::Other => Kind::Other,
        };
        let mode = |node: &Node| format!("{:04o}", node.mode);
        let size = |node: &Node| (node.kind == NodeKind::File).then_some(node.size);
        let other = before.zip(after).filter(|(before, after)| before.kind != after.kind);
        Self {
            path: String::from_utf8_lossy(&bytes).into_owned(),
            path_base64: std::str::from_utf8(&bytes).is_err().then(|| BASE64.encode(&bytes)),
            change: match (before, after) {
                (None, _) => What::Added,
                (_, None) => What::Deleted,
                _ if found.content => What::Modified,
                _ => What::Mode,
            },
            kind: after.or(before).map_or(Kind::Other, kind),
            kind_before: other.map(|(before, _)| kind(before)),
            mode: after.map(mode),
            mode_before: before.map(mode),
            size: after.and_then(size),
            size_before: before.and_then(size),
        }
    }
}

/// Where to look.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Below {
    /// Only this file, or what is in this folder; absolute. Everything if left out.
    #[param(max_length = 4095, example = "/home/user")]
    path: Option<String>,
}

/// List what a sandbox has changed since it was made: files, folders and links of its own, not of volumes and mounts. Its
/// processes stand still while its files are copied to be compared.
#[utoipa::path(get, path = "/sandboxes/{id}/changes", tag = "changes",
    params(("id" = String, Path, description = "The sandbox's id or name"), Below),
    responses((status = 200, body = Changes)))]
pub async fn list(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Params(below): Params<Below>,
) -> Result<Json<Changes>, ApiError> {
    let path = match below.path {
        Some(path) => inner(path.as_bytes())?,
        None => PathBuf::new(),
    };
    let record = find(&app, &access, &id)?;
    let image = record.template().to_owned();
    let judge = |found: &sloplet_image::changes::Changes| {
        (found.list.iter().map(Change::from).collect::<Vec<_>>(), found.truncated)
    };
    let (changes, truncated) = app.sandboxes().compare(&access.owner, &record.id, path, judge).await?;
    Ok(Json(Changes { image, changes, truncated }))
}

/// An absolute path inside, as layers have it.
fn inner(path: &[u8]) -> Result<PathBuf, ApiError> {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let plain = path.components().all(|part| part != std::path::Component::ParentDir);
    match path.strip_prefix("/") {
        Ok(path) if plain && path.as_os_str().len() < 4096 => Ok(path.components().collect()),
        _ => Err(ApiError::bad_request("path: give an absolute path without '..'")),
    }
}

/// What a patch is wanted of.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Of {
    /// A folder or file; absolute, or relative to the working folder, which it is if left out.
    #[param(min_length = 1, max_length = 4095, example = "repo")]
    path: Option<String>,
    /// On whose behalf git runs inside; the sandbox's user if left out.
    user: Option<String>,
    /// What to compare with; `head` in a work tree of git, else `image`, if left out.
    baseline: Option<Baseline>,
}

/// What a patch begins from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Baseline {
    /// The last commit of the git work tree.
    Head,
    /// The image that the sandbox was made from.
    Image,
}

/// Get a patch of what has changed, for `git apply` and `patch -p1`. In a work tree of git it is what differs from the last
/// commit, with new files, without ignored ones, in terms of the work tree's top; git runs inside for it and leaves its
/// index as it is. Elsewhere it is what differs from the image, in terms of the folder. All of it is what somebody inside
/// wanted it to be: read it before you apply it.
#[utoipa::path(get, path = "/sandboxes/{id}/patch", tag = "changes",
    params(("id" = String, Path, description = "The sandbox's id or name"), Of),
    responses((status = 200, content_type = "text/x-diff", body = Binary)))]
pub async fn patch(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Params(of): Params<Of>,
) -> Result<Response, ApiError> {
    let asked = of.path.unwrap_or_else(|| ".".into());
    if asked.contains('\0') || asked.is_empty() || asked.len() > 4095 {
        return Err(ApiError::bad_request("path: give 1 to 4095 bytes without NUL"));
    }
    let record = find(&app, &access, &id)?;
    let wanted = match of.baseline {
        Some(Baseline::Image) => "image",
        Some(Baseline::Head) => "head",
        None => "any",
    };
    let reached = reach(&app, &access, &id).await?;
    let words = ["sh", "-c", GIT, "sh", &asked, wanted].map(str::to_owned);
    let command = Command { user: of.user, timeout: Some(GIT_TIMEOUT), ..Command::new(words.to_vec()) };
    let output = reached.sandbox.exec(command).await?.output(patch::MOST).await?;
    drop(reached);
    if output.exit.shell_code() != 0 {
        let said: String = String::from_utf8_lossy(&output.stderr).trim().chars().take(400).collect();
        let said: String = said.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let timed_out = if output.exit.timed_out { "git took longer than two minutes; " } else { "" };
        return Err(ApiError::conflict(format!("no patch could be made: {timed_out}{said}")));
    }
    let Some(end) = output.stdout.iter().position(|byte| *byte == b'\n') else {
        return Err(ApiError::conflict("no patch could be made: the sandbox's shell said nothing"));
    };
    let mut rest = Bytes::from(output.stdout);
    let first = rest.split_to(end + 1);
    let content = match first.as_ref() {
        b"head\n" if output.truncated => return Err(PatchError::TooLong(asked).into()),
        b"head\n" => rest,
        _ => {
            let root = inner(rest.strip_suffix(b"\n").unwrap_or(&rest))?;
            let within = root.clone();
            let judge = move |found: &sloplet_image::changes::Changes| patch::patch(found, &within);
            app.sandboxes().compare(&access.owner, &record.id, root, judge).await??.into()
        }
    };
    let mut response = content.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/x-diff"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

impl From<PatchError> for ApiError {
    fn from(error: PatchError) -> Self {
        let status = match error {
            PatchError::TooLong(_) | PatchError::TooMany => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::CONFLICT,
        };
        Self::new(status, error.to_string())
    }
}
