//! Why a request about a sandbox was not carried out.

use sloplet_client::ClientError;
use sloplet_image::ImageError;
use sloplet_store::StoreError;

use crate::{DriverError, EngineError};

/// Why a request about a sandbox was not carried out. Front ends turn the kind into their own codes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LifeError {
    /// There is none, or it belongs to somebody else.
    #[error("{kind} '{id}' was not found")]
    NotFound {
        /// What kind of thing.
        kind: &'static str,
        /// What was asked for.
        id: String,
    },
    /// It is paused and does not wake by itself.
    #[error("sandbox '{0}' is paused: resume it first")]
    Paused(String),
    /// Its state does not allow it.
    #[error("{0}")]
    Conflict(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// Nothing waits in a pool that makes nothing when asked.
    #[error(
        "no machine of pool '{0}' is ready: try again in a moment, raise its target, or set its on_empty to 'create'"
    )]
    PoolEmpty(String),
    /// The key may not have more.
    #[error("{0}")]
    Quota(String),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The wall.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The agent.
    #[error(transparent)]
    Agent(#[from] ClientError),
    /// The images.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file of the host's.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
}

impl LifeError {
    /// No such sandbox.
    pub fn no_sandbox(id: &str) -> Self {
        Self::NotFound { kind: "sandbox", id: id.to_owned() }
    }
}
