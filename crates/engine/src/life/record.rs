//! What is remembered of a sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sloplet_image::Image;
use sloplet_policy::Spec;
use sloplet_store::Document;

use super::volume::Volume;

/// Where a sandbox is in its life. One that is gone is not remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Being made. If the server dies now, it is removed.
    Creating,
    /// Its processes run.
    Running,
    /// Its processes are frozen in place.
    Paused,
    /// Its processes are gone, its files are kept; resuming starts it afresh on them.
    Stopped,
    /// It ended by itself; only the reason is kept.
    Failed,
}

impl State {
    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// What happens when its time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTimeout {
    /// It is destroyed.
    #[default]
    Destroy,
    /// It is paused and can be resumed.
    Pause,
    /// It is stopped: its files are kept, its processes are not.
    Stop,
}

/// A volume shown inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// The volume's name or id.
    pub volume: String,
    /// Where inside.
    pub path: String,
    /// Not to be changed; several sandboxes may then have it at once.
    #[serde(default)]
    pub read_only: bool,
}

/// A sandbox to be made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NewSandbox {
    /// What it is to be. `limits.timeout` is not used: see `timeout`.
    pub spec: Spec,
    /// What the client called the image: a template's name or id, shown in listings; the image if absent.
    pub template: Option<String>,
    /// A name to find it by.
    pub name: Option<String>,
    /// Anything the client wants to remember.
    pub metadata: BTreeMap<String, String>,
    /// How long it lives unless that is extended; `None`: until it is destroyed.
    pub timeout: Option<Duration>,
    /// What happens then.
    pub on_timeout: OnTimeout,
    /// Whether traffic resumes it when it is paused.
    pub auto_resume: bool,
    /// It is paused when nobody used it for so long.
    pub idle_timeout: Option<Duration>,
    /// Volumes shown inside.
    pub volumes: Vec<VolumeMount>,
    /// Network rules as a client of another API gave them, to be shown again; those that hold are the spec's.
    pub network: Option<serde_json::Value>,
    /// Run by the shell after start, in the background; the image's wish if absent.
    pub start: Option<String>,
    /// Run again and again after `start` until it succeeds; then the sandbox is ready.
    pub ready: Option<String>,
    /// The snapshot whose memory it goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// The owner's pool that it is to come from; one that it fits if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Requests with the same key of the same owner make one sandbox.
    pub idempotency_key: Option<String>,
}

/// A sandbox as remembered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Letters and digits.
    pub id: String,
    /// The API key it belongs to.
    pub owner: String,
    /// Where it is in its life.
    pub state: State,
    /// What it was asked to be.
    #[serde(flatten)]
    pub request: NewSandbox,
    /// What it last started from.
    pub image: Option<Image>,
    /// What it was made from, if it has been stopped since: then it started from its own files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Image>,
    /// Files saved when it was paused or stopped: an image.
    pub saved: Option<String>,
    /// Who knows it may use it.
    pub token: String,
    /// When it was asked for, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it last started or resumed.
    pub started_ms: u64,
    /// When its time is over.
    pub ends_ms: Option<u64>,
    /// How much of its time is left, while its clock stands still.
    pub remaining_ms: Option<u64>,
    /// Why it failed.
    pub failure: Option<String>,
    /// The id of the pool that it came through.
    #[serde(default, rename = "claimed_from", skip_serializing_if = "Option::is_none")]
    pub claimed_from: Option<String>,
}

impl Record {
    /// What the client called its image.
    pub fn template(&self) -> &str {
        self.request.template.as_deref().unwrap_or(&self.request.spec.image)
    }

    /// The image that it was made from.
    pub fn made_from(&self) -> Option<&Image> {
        self.origin.as_ref().or(self.image.as_ref())
    }

    /// Whether it has a volume, or will have it again. One that failed never runs again.
    pub(super) fn uses_volume(&self, volume: &Volume) -> bool {
        self.state != State::Failed
            && self.owner == volume.owner
            && self.request.volumes.iter().any(|mount| volume.is_called(&mount.volume))
    }
}

impl Document for Record {
    const KIND: &'static str = "sandbox";

    fn id(&self) -> &str {
        &self.id
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    fn name(&self) -> Option<&str> {
        self.request.name.as_deref()
    }

    fn created_ms(&self) -> u64 {
        self.created_ms
    }
}
