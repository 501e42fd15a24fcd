//! The S3 that this server may use, and who may use what of it.
//!
//! An operator names the buckets, or parts of them. Nothing else can be reached with the server's credentials, and these
//! never leave the server: what others get is an address for one object, for a while.
//!
//! Uploads that were begun are written down until they are complete: the next attempt to send the same goes on with them,
//! and what nobody goes on with within a day is given up, so that nothing of it stays in the bucket.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use futures_util::Stream;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use sloplet_engine::life::now_ms;
use sloplet_s3::{Client, Object, Root, S3Error, Uploaded};
use sloplet_store::{Collection, Document, Store};

use crate::error::ApiError;

/// How long an upload waits for its next attempt.
const WAITS: Duration = Duration::from_secs(24 * 3600);

/// How often uploads that wait too long are looked for.
const EVERY: Duration = Duration::from_secs(3600);

/// An upload that was begun.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Begun {
    /// A digest of who sends what where.
    id: String,
    owner: String,
    object: String,
    upload: String,
    created_ms: u64,
}

impl Document for Begun {
    const KIND: &'static str = "upload";

    fn id(&self) -> &str {
        &self.id
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    fn name(&self) -> Option<&str> {
        None
    }

    fn created_ms(&self) -> u64 {
        self.created_ms
    }
}

/// The S3 that this server may use. Clones are cheap.
#[derive(Clone)]
pub struct Storage(Arc<Inner>);

struct Inner {
    client: Client,
    roots: Vec<Root>,
    begun: Collection<Begun>,
    busy: Mutex<HashSet<String>>,
}

impl Storage {
    /// With what is in `roots`.
    pub fn new(client: Client, roots: Vec<Root>, store: &Store) -> Self {
        Self(Arc::new(Inner { client, roots, begun: store.collection(), busy: Mutex::default() }))
    }

    /// S3.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// What somebody may use.
    pub fn roots(&self, owner: &str) -> Vec<Root> {
        self.0.roots.iter().map(|root| root.of(owner)).collect()
    }

    /// An object that somebody may use.
    pub fn object(&self, owner: &str, text: &str) -> Result<Object, ApiError> {
        let object: Object = text.parse()?;
        let roots = self.roots(owner);
        if roots.iter().any(|root| root.has(&object)) {
            return Ok(object);
        }
        let allowed = roots.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let message = format!("{object} is not among what this server may use: {allowed}");
        Err(ApiError::new(StatusCode::FORBIDDEN, message))
    }

    /// An object of somebody's that nobody else has the name of.
    pub fn fresh(&self, owner: &str, folder: &str, end: &str) -> Result<Object, ApiError> {
        let root = self.roots(owner).into_iter().next();
        let root = root.ok_or_else(|| ApiError::conflict(MISSING))?;
        Ok(root.object(&format!("{folder}/{}{end}", sloplet_engine::engine::new_id())))
    }

    /// Sends what comes as an object. `source` says what it is: the same that was begun before goes on from there.
    pub async fn send(
        &self,
        owner: &str,
        object: &Object,
        source: &str,
        part_bytes: usize,
        pieces: impl Stream<Item = io::Result<Bytes>> + Send,
    ) -> Result<Uploaded, ApiError> {
        let name = digest(&SHA256, format!("{owner}\0{object}\0{source}").as_bytes());
        let id: String = name.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let _busy =
            Busy::take(self, &id).ok_or_else(|| ApiError::conflict(format!("{object} is being sent already")))?;
        let client = self.client();
        let earlier = match self.0.begun.get(&id)? {
            Some(begun) => client.parts(object, &begun.upload).await?.map(|parts| (begun.upload, parts)),
            None => None,
        };
        let (upload, parts) = match earlier {
            Some(earlier) => earlier,
            None => {
                let upload = client.begin(object).await?;
                let begun = Begun {
                    id: id.clone(),
                    owner: owner.to_owned(),
                    object: object.to_string(),
                    upload: upload.clone(),
                    created_ms: now_ms(),
                };
                self.0.begun.put(&begun)?;
                (upload, HashMap::new())
            }
        };
        let sent = client.upload(object, &upload, &parts, part_bytes, pieces).await;
        match &sent {
            // It can go on later.
            Err(S3Error::Unreached { .. } | S3Error::Broken { .. } | S3Error::Refused { .. }) => {}
            Err(_) => {
                client.abort(object, &upload).await?;
                self.0.begun.remove(&id)?;
            }
            Ok(_) => drop(self.0.begun.remove(&id)?),
        }
        Ok(sent?)
    }

    /// Gives up uploads that nobody went on with, now and then.
    pub async fn tidy(self) {
        loop {
            for begun in self.0.begun.all().unwrap_or_default() {
                let waits = Duration::from_millis(now_ms().saturating_sub(begun.created_ms));
                let Ok(object) = begun.object.parse() else { continue };
                let Some(_busy) = Busy::take(&self, &begun.id).filter(|_| waits > WAITS) else { continue };
                match self.client().abort(&object, &begun.upload).await {
                    Ok(()) => drop(self.0.begun.remove(&begun.id)),
                    Err(error) => tracing::warn!(%error, "cannot give up an upload"),
                }
            }
            tokio::time::sleep(EVERY).await;
        }
    }
}

/// Keeps others from sending the same at the same time.
struct Busy {
    storage: Storage,
    id: String,
}

impl Busy {
    fn take(storage: &Storage, id: &str) -> Option<Self> {
        let fresh = storage.0.busy.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned());
        fresh.then(|| Self { storage: storage.clone(), id: id.to_owned() })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.storage.0.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// What is said where there is none.
pub const MISSING: &str = "this server has no S3: start it with --s3 s3://BUCKET and credentials in its environment";

impl From<S3Error> for ApiError {
    fn from(error: S3Error) -> Self {
        let status = match error {
            S3Error::BadObject { .. } | S3Error::Settings(_) | S3Error::Source(_) | S3Error::TooLarge(_) => {
                StatusCode::BAD_REQUEST
            }
            S3Error::NotFound(_) => StatusCode::NOT_FOUND,
            S3Error::Changed(_) => StatusCode::CONFLICT,
            _ => StatusCode::BAD_GATEWAY,
        };
        Self::new(status, error.to_string())
    }
}
