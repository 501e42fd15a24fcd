//! What all front ends share.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sloplet_engine::life::Sandboxes;
use sloplet_engine::origins::Origins;
use sloplet_engine::template::{Registries, Templates};
use sloplet_ledger::Ledger;
use sloplet_store::Store;
use tokio::sync::Semaphore;

use crate::auth::{AuthError, Keys};
use crate::error::ApiError;
use crate::guesses::Guesses;
use crate::metrics::Metrics;
use crate::record::Paces;
use crate::refusals::Refusals;
use crate::ssh::{Door, SshKeys};
use crate::storage::{MISSING, Storage};
use crate::walls::Walls;

/// How many may look through the ledger at once: it can be long.
const READERS: usize = 2;

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
    /// The S3 that it may use, and which objects of it.
    pub s3: Option<(sloplet_s3::Client, Vec<sloplet_s3::Root>)>,
    /// Which registries keys may pull from.
    pub registries: Registries,
    /// Which walls keys may use.
    pub walls: Walls,
    /// A protection that its sandboxes lack, for tests of the verifier: see [`sloplet_policy::weakness`].
    pub weaken: Option<&'static str>,
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
    origins: Mutex<Origins>,
    readers: Arc<Semaphore>,
    refusals: Arc<Refusals>,
    guesses: Guesses,
    paces: Paces,
    ssh_keys: SshKeys,
    ssh: OnceLock<Arc<dyn Door>>,
    storage: Option<Storage>,
}

impl App {
    /// For these sandboxes.
    pub fn new(config: Config, sandboxes: Sandboxes, store: Store) -> Result<Self, AuthError> {
        let keys = Keys::open(&store)?;
        let ssh_keys = SshKeys::open(&store);
        let storage = config.s3.clone().map(|(client, roots)| Storage::new(client, roots, &store));
        let templates = Templates::open(sandboxes.clone(), &store, &config.data, config.registries.clone())?;
        Ok(Self(Arc::new(Inner {
            config,
            sandboxes,
            templates,
            store,
            keys,
            metrics: Metrics::default(),
            origins: Mutex::default(),
            readers: Arc::new(Semaphore::new(READERS)),
            refusals: Arc::default(),
            guesses: Guesses::default(),
            paces: Paces::default(),
            ssh_keys,
            ssh: OnceLock::new(),
            storage,
        })))
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

    /// The S3 that it may use.
    pub fn storage(&self) -> Result<&Storage, ApiError> {
        self.0.storage.as_ref().ok_or_else(|| ApiError::conflict(MISSING))
    }

    /// The database.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// The API keys.
    pub fn keys(&self) -> &Keys {
        &self.0.keys
    }

    /// The public keys for logins.
    pub fn ssh_keys(&self) -> &SshKeys {
        &self.0.ssh_keys
    }

    /// The SSH server, if there is one.
    pub fn ssh(&self) -> Option<&Arc<dyn Door>> {
        self.0.ssh.get()
    }

    /// Has streams that come over HTTP and speak SSH served by this; once.
    pub fn set_ssh(&self, door: Arc<dyn Door>) {
        let _ = self.0.ssh.set(door);
    }

    /// What happened.
    pub fn ledger(&self) -> &Ledger {
        self.0.sandboxes.engine().ledger()
    }

    /// Where sandboxes came from, those that are gone included.
    pub fn origins(&self) -> MutexGuard<'_, Origins> {
        self.0.origins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks through the ledger, on a thread that may wait for files; only a few do that at once.
    pub async fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = self.0.readers.clone().acquire_owned().await;
        self.apart(move |app| {
            let _turn = turn;
            work(app)
        })
        .await
    }

    /// Does something that waits for files, on a thread that may; others are answered meanwhile.
    pub async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let this = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&this)).await;
        done.unwrap_or_else(|_| Err(ApiError::conflict("the server is ending")))
    }

    /// What was refused at the door.
    pub fn refusals(&self) -> &Arc<Refusals> {
        &self.0.refusals
    }

    /// Signatures that were wrong.
    pub fn guesses(&self) -> &Guesses {
        &self.0.guesses
    }

    /// How fast owners fill the ledger.
    pub fn paces(&self) -> &Paces {
        &self.0.paces
    }

    /// Counters.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }
}
