//! What all front ends share.

use std::path::PathBuf;
use std::sync::Arc;

use sloplet_engine::life::Sandboxes;
use sloplet_engine::template::Templates;
use sloplet_store::Store;

use crate::auth::{AuthError, Keys};
use crate::metrics::Metrics;

/// How a server is to behave.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where templates' files and other things are kept.
    pub data: PathBuf,
    /// What previews and SDKs are told as the domain, e.g. `sandbox.example.com`; `None`: this server's own address.
    pub domain: Option<String>,
    /// How clients reach this server, e.g. `http://127.0.0.1:7070`.
    pub url: String,
    /// Whether sandboxes that are asked for with internet access by E2B's SDKs, which do that unless told otherwise, have it.
    pub internet: bool,
    /// Whether ports of sandboxes are open to everybody who knows their address, unless a sandbox says otherwise.
    pub public_previews: bool,
}

/// What all front ends share; clones are cheap.
#[derive(Clone)]
pub struct App(Arc<Inner>);

struct Inner {
    config: Config,
    sandboxes: Sandboxes,
    templates: Templates,
    store: Store,
    keys: Keys,
    metrics: Metrics,
}

impl App {
    /// For these sandboxes.
    pub fn new(config: Config, sandboxes: Sandboxes, store: Store) -> Result<Self, AuthError> {
        let keys = Keys::open(&store)?;
        let templates = Templates::open(sandboxes.clone(), &store, &config.data)?;
        Ok(Self(Arc::new(Inner { config, sandboxes, templates, store, keys, metrics: Metrics::default() })))
    }

    /// How it is to behave.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// The sandboxes.
    pub fn sandboxes(&self) -> &Sandboxes {
        &self.0.sandboxes
    }

    /// The templates.
    pub fn templates(&self) -> &Templates {
        &self.0.templates
    }

    /// The database.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// The API keys.
    pub fn keys(&self) -> &Keys {
        &self.0.keys
    }

    /// Counters.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }
}
