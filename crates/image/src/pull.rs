//! Pull from a registry: fetches blobs into a temporary OCI layout, then loads it like any other.
//!
//! The registry is hostile too: every blob is capped at its announced size and checked against its digest twice, by
//! the client while it comes in and by the import when it is read.

use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use crate::digest::sha256_hex;
use crate::error::{ImageError, printable};
use crate::image::{Image, Progress, ProgressFn};
use crate::import::Import;
use crate::limits::LimitExceeded;
use crate::oci::{self, ConfigFile, Descriptor, Document, Platform, hex_of};
use crate::reference::Reference;
use crate::registry::{Registry, explain};
use crate::staging::Staging;
use crate::store::{ImportLock, Store};
use crate::{layer, name};

/// What to pull and as whom.
#[derive(Debug, Clone, Default)]
pub struct PullOptions {
    /// Another platform than this host's.
    pub platform: Option<Platform>,
    /// Account at the registry; none is anonymous.
    pub credentials: Option<Credentials>,
    /// Whom it may connect to; anybody if left out.
    pub vetting: Option<Vetting>,
    /// The name that the image is stored under; its own if left out.
    pub name: Option<String>,
}

/// Decides whom a pull may connect to: the registry, whoever gives out its tokens, and where its blobs are.
#[derive(Clone)]
pub struct Vetting(Arc<dyn Vet>);

/// Decides about hosts before they are looked up, and about their addresses afterwards.
pub trait Vet: Send + Sync + 'static {
    /// Whether this host may be asked at that port; `address` where it is one.
    fn admit(&self, host: &str, port: u16, address: Option<IpAddr>) -> Result<(), String>;

    /// Whether an address that a name has may be dialed.
    fn dial(&self, name: &str, address: IpAddr) -> Result<(), String>;
}

impl Vetting {
    /// By this.
    pub fn new(vet: impl Vet) -> Self {
        Self(Arc::new(vet))
    }
}

impl std::ops::Deref for Vetting {
    type Target = dyn Vet;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl std::fmt::Debug for Vetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Vetting")
    }
}

/// An account at a registry.
#[derive(Clone)]
pub struct Credentials {
    /// The account's name.
    pub username: String,
    /// Its password or token.
    pub password: String,
}

impl Credentials {
    /// As a registry is shown them.
    pub(crate) fn basic(&self) -> String {
        format!("Basic {}", STANDARD.encode(format!("{}:{}", self.username, self.password)))
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

impl Store {
    /// Pulls `alpine`, `r.example.com/owner/image:tag` or `localhost:5000/image@sha256:…` and stores it under that name.
    ///
    /// Plain HTTP is used for loopback registries only. Layers that the store has are not fetched again.
    pub async fn pull(
        &self,
        reference: &str,
        options: PullOptions,
        progress: ProgressFn<'_>,
    ) -> Result<Image, ImageError> {
        let name = name::canonical(options.name.as_deref().unwrap_or(reference))?;
        name::canonical(reference)?;
        let pull = Pull::new(self, reference, &options)?;
        let staging = self.staging()?;
        let lock = self.import_lock()?;
        let (manifest, digest) = pull.fetch(&staging, progress).await?;
        let platform = pull.platform;
        // Unpacking blocks for seconds: not on a thread that serves others.
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let store = self.clone();
        let unpacking = tokio::task::spawn_blocking(move || {
            let say = move |what| drop(sender.send(what));
            store.load_pulled(staging, lock, (&manifest, &digest, &platform), name, &say)
        });
        while let Some(what) = receiver.recv().await {
            progress(what);
        }
        unpacking.await.map_err(|e| failed(reference, e))?
    }

    fn load_pulled(
        &self,
        staging: Staging,
        _lock: ImportLock,
        (manifest, digest, platform): (&Document, &str, &Platform),
        name: String,
        progress: ProgressFn<'_>,
    ) -> Result<Image, ImageError> {
        let dir = staging.path().join("pulled");
        let mut import = Import::within(self, staging, progress);
        let loaded = oci::load_manifest(&mut import, &dir, manifest, digest, platform)?;
        let record = import.record(name.clone(), loaded)?;
        record.write(&self.record_path(&name), &import.staging)?;
        self.image(record)
    }
}

struct Pull<'a> {
    store: &'a Store,
    text: &'a str,
    reference: Reference,
    registry: Registry,
    platform: Platform,
}

impl<'a> Pull<'a> {
    fn new(store: &'a Store, text: &'a str, options: &PullOptions) -> Result<Self, ImageError> {
        let reference = Reference::parse(text).map_err(|e| failed(text, e))?;
        let registry = Registry::new(&reference, options.credentials.clone(), options.vetting.clone());
        let registry = registry.map_err(|e| failed(text, e))?;
        let platform = options.platform.clone().unwrap_or_else(Platform::of_host);
        Ok(Pull { store, text, reference, registry, platform })
    }

    /// Fetches all that is missing into `<staging>/pulled`; returns the manifest and its digest.
    async fn fetch(&self, staging: &Staging, progress: ProgressFn<'_>) -> Result<(Document, String), ImageError> {
        let blobs = staging.path().join("pulled/blobs/sha256");
        std::fs::create_dir_all(&blobs).map_err(|e| ImageError::store("create", &blobs, e))?;
        let (manifest, digest) = self.manifest().await?;
        let (Some(config), Some(layers)) = (&manifest.config, &manifest.layers) else {
            return Err(ImageError::manifest(digest, "it is neither a manifest nor an index"));
        };
        let limits = self.store.limits;
        if config.size > limits.metadata_bytes {
            return Err(LimitExceeded::Metadata(limits.metadata_bytes).into());
        }
        self.blob(config, &blobs, progress).await?;
        let config_path = blobs.join(hex_of(&config.digest)?);
        let bytes = std::fs::read(&config_path).map_err(|e| ImageError::store("read", &config_path, e))?;
        let config: ConfigFile = oci::parse(&bytes, "image configuration")?;
        let diff_ids = config.check(layers.len(), &self.platform, limits.layers)?;
        let total = layers.iter().fold(0u64, |sum, l| sum.saturating_add(l.size));
        if total > limits.total_bytes {
            return Err(LimitExceeded::Bytes(limits.total_bytes).into());
        }
        for (blob, diff_id) in layers.iter().zip(&diff_ids) {
            if layer::find(self.store, diff_id).is_none() {
                self.blob(blob, &blobs, progress).await?;
            }
        }
        Ok((manifest, digest))
    }

    /// The manifest for the platform, through at most one index.
    async fn manifest(&self) -> Result<(Document, String), ImageError> {
        let mut version = self.reference.version.clone();
        for _ in 0..2 {
            let most = self.store.limits.metadata_bytes;
            let bytes = self.registry.manifest(&version, most).await.map_err(|e| failed(self.text, e))?;
            let digest = format!("sha256:{}", sha256_hex(&bytes));
            if hex_of(&version).is_ok() && version != digest {
                return Err(ImageError::DigestMismatch {
                    what: "manifest".to_owned(),
                    expected: version,
                    actual: digest,
                });
            }
            let document: Document = oci::parse(&bytes, "manifest")?;
            let Some(chosen) = document.choose(&self.platform, self.text)? else {
                return Ok((document, digest));
            };
            hex_of(&chosen.digest)?;
            version.clone_from(&chosen.digest);
        }
        Err(ImageError::manifest(self.text, "an index within an index"))
    }

    async fn blob(
        &self,
        descriptor: &Descriptor,
        dir: &std::path::Path,
        progress: ProgressFn<'_>,
    ) -> Result<(), ImageError> {
        let path = dir.join(hex_of(&descriptor.digest)?);
        if path.exists() {
            return Ok(()); // the same layer twice in one image
        }
        progress(Progress::Fetching { digest: descriptor.digest.clone(), bytes: descriptor.size });
        let broken = |reason: String| failed(self.text, format!("blob {}: {reason}", descriptor.digest));
        let mut file = tokio::fs::File::create(&path).await.map_err(|e| ImageError::store("create", &path, e))?;
        // By digest alone: a descriptor's own `urls` could point anywhere.
        let mut response = self.registry.blob(&descriptor.digest).await.map_err(broken)?;
        let (mut left, mut hash) = (descriptor.size, Sha256::new());
        while let Some(chunk) = response.chunk().await.map_err(|error| broken(explain(&error)))? {
            left = left
                .checked_sub(chunk.len() as u64)
                .ok_or_else(|| broken("the registry sent more than it announced".to_owned()))?;
            hash.update(&chunk);
            file.write_all(&chunk).await.map_err(|e| ImageError::store("write", &path, e))?;
        }
        file.flush().await.map_err(|e| ImageError::store("write", &path, e))?;
        let actual: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if actual != hex_of(&descriptor.digest)? {
            let (expected, actual) = (descriptor.digest.clone(), format!("sha256:{actual}"));
            return Err(ImageError::DigestMismatch { what: "blob".to_owned(), expected, actual });
        }
        Ok(())
    }
}

fn failed(reference: &str, reason: impl ToString) -> ImageError {
    let reason = printable(reason.to_string().as_bytes());
    ImageError::Pull { reference: printable(reference.as_bytes()), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let credentials = Credentials { username: "me".into(), password: "hunter2".into() };
        assert!(!format!("{credentials:?}").contains("hunter2"));
    }
}
