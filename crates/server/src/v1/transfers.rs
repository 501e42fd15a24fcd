//! Large files: between sandboxes and S3 without a detour, and addresses for those who move them themselves.

use std::io;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State as AppState;
use futures_util::{Stream, stream};
use serde::{Deserialize, Serialize};
use sloplet_client::{Agent, Download};
use sloplet_engine::life::{Reached, Wish};
use sloplet_policy::Span;
use sloplet_s3::{Method, Object, part_bytes};
use sloplet_wire::{Entry, FileKind, Target};
use utoipa::ToSchema;

use super::archives::{leaving, written};
use super::extract::{OptionalPayload, Payload, Segments};
use super::files::target;
use super::processes::reach;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;
use crate::record::Digest;

/// How long an address is good for, unless somebody says otherwise.
const EXPIRES: Duration = Duration::from_secs(15 * 60);

/// What to copy where.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// Out of the sandbox, or into it.
    direction: Direction,
    /// The file in the sandbox: absolute, or relative to the user's home.
    #[schema(min_length = 1, max_length = 4095, example = "/data/out.tar")]
    path: String,
    /// The object; a new one, to be told in the answer, if left out on the way out.
    #[schema(example = "s3://bucket/key")]
    object: Option<String>,
    /// On whose behalf; the sandbox's user if left out.
    user: Option<String>,
    /// The SHA-256 that the object must have, in hex: what has another does not become a file. Only into a sandbox.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    sha256: Option<String>,
    /// Remove the object once it is a file in the sandbox.
    #[serde(default)]
    remove: bool,
}

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Out of the sandbox.
    Out,
    /// Into the sandbox.
    In,
}

/// What was copied.
#[derive(Debug, Serialize, ToSchema)]
pub struct Transferred {
    /// The object.
    pub object: String,
    /// Its bytes.
    pub bytes: u64,
    /// Bytes that were there from an earlier attempt, and were not sent again.
    pub resumed: u64,
    /// The SHA-256 of all, in hex.
    pub sha256: String,
    /// S3's name for this version of the object.
    pub etag: String,
}

/// Copy a file between a sandbox and S3. Out of it: in parts, several at once, each with its digest; the same call after an
/// interruption goes on where it was. Into it: the file is replaced when all has come, or not at all.
#[utoipa::path(post, path = "/sandboxes/{id}/transfers", tag = "files", request_body = Transfer,
    params(("id" = String, Path, description = "The sandbox's id or name")), responses((status = 200, body = Transferred)))]
pub async fn transfer(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    Payload(body): Payload<Transfer>,
) -> Result<Json<Transferred>, ApiError> {
    let storage = app.storage()?;
    let object = match (&body.object, body.direction) {
        (Some(object), _) => storage.object(&access.owner, object)?,
        (None, Direction::Out) => storage.fresh(&access.owner, "transfers", "")?,
        (None, Direction::In) => return Err(ApiError::bad_request("object: say which one")),
    };
    let wrong = |digest: &String| digest.len() != 64 || !digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if body.sha256.as_ref().is_some_and(wrong) {
        return Err(ApiError::bad_request("sha256: write 64 hexadecimal digits"));
    }
    if body.direction == Direction::Out && (body.remove || body.sha256.is_some()) {
        return Err(ApiError::bad_request("remove and sha256 are for what comes into a sandbox"));
    }
    let reached = reach(&app, &access, &id).await?;
    match body.direction {
        Direction::Out => out(&app, &access, &reached, body, object).await,
        Direction::In => into(&app, &access, &reached, body, object).await,
    }
    .map(Json)
}

async fn out(
    app: &App,
    access: &Access,
    reached: &Reached,
    body: Transfer,
    object: Object,
) -> Result<Transferred, ApiError> {
    let at = || target(body.path.clone(), body.user.clone());
    let (entry, download) = reached.agent().read(at()?, 0, None).await?;
    if entry.kind != FileKind::File {
        return Err(ApiError::bad_request(format!("{} is no file: pack folders first", body.path)));
    }
    let source = format!("{}\0{}\0{}\0{}", reached.sandbox.id(), body.path, entry.size, entry.modified_ns);
    let storage = app.storage()?;
    let pieces =
        Sent { agent: reached.agent().clone(), target: at()?, entry: entry.clone(), download, sent: 0 }.pieces();
    let sent = storage.send(&access.owner, &object, &source, part_bytes(entry.size), pieces).await?;
    Ok(Transferred {
        object: object.to_string(),
        bytes: sent.bytes,
        resumed: sent.resumed,
        sha256: sent.sha256,
        etag: sent.etag,
    })
}

/// A file on its way out of a sandbox.
struct Sent {
    agent: Agent,
    target: Target,
    /// What it was in the beginning.
    entry: Entry,
    download: Download,
    sent: u64,
}

impl Sent {
    fn pieces(self) -> impl Stream<Item = io::Result<Bytes>> + Send {
        stream::try_unfold(self, |mut this| async move { Ok(this.next().await?.map(|bytes| (bytes, this))) })
    }

    /// The next bytes. A file that is another in the end than in the beginning is none.
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        if let Some(bytes) = self.download.chunk().await.map_err(io::Error::other)? {
            self.sent += bytes.len() as u64;
            return Ok(Some(bytes));
        }
        let now = self.agent.read(self.target.clone(), self.sent, Some(0)).await.map_err(io::Error::other)?.0;
        let state = |entry: &Entry| (entry.size, entry.modified_ns);
        match self.sent == self.entry.size && state(&now) == state(&self.entry) {
            true => Ok(None),
            false => Err(io::Error::other("the file was changed while it was sent: nothing was kept of it")),
        }
    }
}

async fn into(
    app: &App,
    access: &Access,
    reached: &Reached,
    body: Transfer,
    object: Object,
) -> Result<Transferred, ApiError> {
    let storage = app.storage()?;
    let mut download = storage.client().get(&object).await?;
    let (bytes, etag) = (download.head.size, download.head.etag.clone());
    let mut upload = reached.agent().write(target(body.path, body.user)?, 0o644, true).await?;
    let mut digest = Digest::default();
    while let Some(piece) = download.chunk().await? {
        digest.add(&piece);
        upload.write(piece).await?;
    }
    let sha256 = digest.hex();
    if let Some(expected) = body.sha256.filter(|expected| *expected != sha256) {
        // The upload is dropped before its end: there is no file.
        let message = format!("{object} has the digest {sha256}, not {expected}: nothing was written");
        return Err(ApiError::conflict(message));
    }
    let entry = upload.finish().await?;
    digest.note(reached, &access.actor(), &entry.path);
    if body.remove {
        storage.client().delete(&object).await?;
    }
    Ok(Transferred { object: object.to_string(), bytes, resumed: 0, sha256, etag })
}

/// An address to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Presign {
    /// What it lets do.
    method: Verb,
    /// The object; a new one, to write to, if left out.
    #[schema(example = "s3://bucket/key")]
    object: Option<String>,
    /// How long it is good for; 15 minutes if left out, seven days at most.
    #[schema(value_type = Option<String>, pattern = "^[1-9][0-9]{0,4}(s|m|h|d)$")]
    expires: Option<Span>,
}

/// What an address lets do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Read.
    Get,
    /// Write, as a whole.
    Put,
    /// Remove.
    Delete,
}

/// An address.
#[derive(Debug, Serialize, ToSchema)]
pub struct Presigned {
    /// The address: whoever knows it needs no credentials.
    pub url: String,
    /// How to use it.
    pub method: Verb,
    /// The object.
    pub object: String,
    /// For how long.
    pub expires_seconds: u64,
}

/// Make an address with which anybody may read or write one object, for a while.
#[utoipa::path(post, path = "/presign", tag = "files", request_body = Presign, responses((status = 200, body = Presigned)))]
pub async fn presign(
    AppState(app): AppState<App>,
    access: Access,
    Payload(body): Payload<Presign>,
) -> Result<Json<Presigned>, ApiError> {
    let storage = app.storage()?;
    let object = match (&body.object, body.method) {
        (Some(object), _) => storage.object(&access.owner, object)?,
        (None, Verb::Put) => storage.fresh(&access.owner, "transfers", "")?,
        (None, _) => return Err(ApiError::bad_request("object: say which one")),
    };
    let expires = body.expires.map_or(EXPIRES, |span| span.0);
    let method = match body.method {
        Verb::Get => Method::Get,
        Verb::Put => Method::Put,
        Verb::Delete => Method::Delete,
    };
    let url = storage.client().presign(method, &object, expires)?;
    Ok(Json(Presigned { url, method: body.method, object: object.to_string(), expires_seconds: expires.as_secs() }))
}

/// Where a snapshot is to go.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExportTo {
    /// The object; a new one if left out.
    #[schema(example = "s3://bucket/key.sloplet")]
    object: Option<String>,
    /// Leave out layers that the other server must have, and the host's programs of what was made on the image `host`.
    thin: bool,
    /// Leave out its memory. Without this, a snapshot that has memory is refused.
    files_only: bool,
}

/// Put a snapshot into S3, complete, as one object that another server takes in. The same call after an interruption goes on
/// where it was.
#[utoipa::path(post, path = "/snapshots/{id}/export", tag = "snapshots", request_body = Option<ExportTo>,
    params(("id" = String, Path, description = "Its id or name")), responses((status = 200, body = Transferred)))]
pub async fn export_to(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
    OptionalPayload(body): OptionalPayload<ExportTo>,
) -> Result<Json<Transferred>, ApiError> {
    let storage = app.storage()?;
    let snapshot = app.sandboxes().get_snapshot(&access.owner, &id)?;
    let object = match &body.object {
        Some(object) => storage.object(&access.owner, object)?,
        None => storage.fresh(&access.owner, "snapshots", ".sloplet")?,
    };
    let wish = Wish { thin: body.thin, files_only: body.files_only };
    let leaving = leaving(&app, &access, snapshot.id.clone(), wish).await?;
    // Compressed it is smaller, as a rule; nothing makes it much larger.
    let part = part_bytes(leaving.manifest().bytes());
    let source = format!("{}\0{}\0{}", snapshot.id, body.thin, body.files_only);
    let sent = storage.send(&access.owner, &object, &source, part, written(leaving)).await?;
    Ok(Json(Transferred {
        object: object.to_string(),
        bytes: sent.bytes,
        resumed: sent.resumed,
        sha256: sent.sha256,
        etag: sent.etag,
    }))
}
