//! Changes in a folder, as a stream.

use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sloplet_client::{Agent, Watcher};
use sloplet_engine::life::Reached;
use sloplet_wire::{Change, ChangeKind, Target};
use tokio::time::Instant;

use super::call::{Call, Streaming};
use super::connect::{self, Code, RpcError};
use super::entry::EntryInfo;
use super::output::at;

/// What is to be watched, and how.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Wish {
    path: String,
    recursive: bool,
    #[serde(alias = "include_entry")]
    include_entry: bool,
}

/// A watched folder.
pub struct Watched {
    watcher: Watcher,
    folder: Target,
    include_entry: bool,
}

/// Something that happened.
#[derive(Debug, Serialize)]
pub struct Event {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<EntryInfo>,
}

impl Watched {
    /// Begins to watch.
    pub async fn new(call: &Call, wish: &Wish) -> Result<Self, RpcError> {
        let folder = call.target(&wish.path)?;
        let watcher = call.sandbox.agent().watch(folder.clone(), wish.recursive).await?;
        Ok(Self { watcher, folder, include_entry: wish.include_entry })
    }

    /// What happens next. May be dropped and called again without loss.
    pub async fn recv(&mut self) -> Result<Change, RpcError> {
        Ok(self.watcher.recv().await?)
    }

    /// A change as clients see it. Fails when changes were lost: whoever watches must look again.
    pub async fn describe(&self, agent: &Agent, change: Change) -> Result<Event, RpcError> {
        let (kind, still_there) = match change.kind {
            ChangeKind::Create => ("EVENT_TYPE_CREATE", true),
            ChangeKind::Write => ("EVENT_TYPE_WRITE", true),
            ChangeKind::Attributes => ("EVENT_TYPE_CHMOD", true),
            ChangeKind::Remove => ("EVENT_TYPE_REMOVE", false),
            ChangeKind::Rename => ("EVENT_TYPE_RENAME", false),
            ChangeKind::Overflow => {
                let message = "events were lost because there were too many: look at the folder and watch it again";
                return Err(RpcError::new(Code::Internal, message));
            }
        };
        let entry = match self.include_entry && still_there {
            true => {
                let path = [&self.folder.path[..], b"/", &change.path[..]].concat().into();
                agent.stat(Target { path, ..self.folder.clone() }).await.ok()
            }
            false => None,
        };
        let name = match change.path.is_empty() {
            true => ".".to_owned(),
            false => String::from_utf8_lossy(&change.path).into_owned(),
        };
        Ok(Event { name, kind, entry: entry.as_ref().map(EntryInfo::new) })
    }
}

/// `WatchDir`.
pub async fn stream(Streaming(call, wish): Streaming<Wish>) -> Response {
    match Watched::new(&call, &wish).await {
        Ok(watched) => {
            let changes = Changes {
                watched,
                stage: Stage::Start,
                deadline: call.deadline,
                keepalive: call.keepalive,
                sandbox: call.sandbox,
            };
            let next = |mut changes: Changes| async move { Some((Ok(changes.next().await?), changes)) };
            connect::stream_of(stream::unfold(changes, next))
        }
        Err(error) => error.streamed(),
    }
}

struct Changes {
    watched: Watched,
    stage: Stage,
    deadline: Option<Instant>,
    keepalive: Duration,
    sandbox: Reached,
}

enum Stage {
    Start,
    Watching,
    Over,
}

impl Changes {
    async fn next(&mut self) -> Option<Bytes> {
        match self.stage {
            Stage::Start => {
                self.stage = Stage::Watching;
                return Some(connect::message(&json!({"start": {}})));
            }
            Stage::Watching => {}
            Stage::Over => return None,
        }
        let change = tokio::select! {
            biased;
            () = at(self.deadline) => Err(RpcError::late()),
            change = self.watched.recv() => change,
            () = tokio::time::sleep(self.keepalive) => return Some(connect::message(&json!({"keepalive": {}}))),
        };
        let event = match change {
            Ok(change) => self.watched.describe(self.sandbox.agent(), change).await,
            Err(error) => Err(error),
        };
        Some(match event {
            Ok(event) => connect::message(&json!({"filesystem": event})),
            Err(error) => {
                self.stage = Stage::Over;
                connect::last(Some(&error))
            }
        })
    }
}
