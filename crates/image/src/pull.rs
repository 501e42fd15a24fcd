//! Pull from a registry: fetches blobs into a temporary OCI layout, then loads it like any other.
//!
//! The registry is hostile too: every blob is capped at its announced size and checked against its digest twice, by
//! the client while it comes in and by the import when it is read.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use oci_client::Reference;
use oci_client::client::{Client, ClientConfig, ClientProtocol};
use oci_client::secrets::RegistryAuth;
use tokio::io::AsyncWrite;

use crate::digest::sha256_hex;
use crate::error::{ImageError, printable};
use crate::image::{Image, Progress, ProgressFn};
use crate::import::Import;
use crate::limits::LimitExceeded;
use crate::oci::{self, ConfigFile, Descriptor, Document, Platform, hex_of};
use crate::staging::Staging;
use crate::store::{ImportLock, Store};
use crate::{layer, name};

/// Kinds of documents that are understood; the answer is judged by its content nevertheless.
const ACCEPTED: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// A manifest is a few kilobytes. The client reads it whole, so time is what bounds a registry that never ends.
const MANIFEST_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Without a single byte.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// What to pull and as whom.
#[derive(Debug, Clone, Default)]
pub struct PullOptions {
    /// Another platform than this host's.
    pub platform: Option<Platform>,
    /// Account at the registry; none is anonymous.
    pub credentials: Option<Credentials>,
}

/// An account at a registry.
#[derive(Clone)]
pub struct Credentials {
    /// The account's name.
    pub username: String,
    /// Its password or token.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

impl Store {
    /// Pulls `alpine`, `ghcr.io/owner/image:tag` or `localhost:5000/image@sha256:…` and stores it under that name.
    ///
    /// Plain HTTP is used for loopback registries only. Layers that the store has are not fetched again.
    pub async fn pull(
        &self,
        reference: &str,
        options: PullOptions,
        progress: ProgressFn<'_>,
    ) -> Result<Image, ImageError> {
        let name = name::canonical(reference)?;
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
    client: Client,
    auth: RegistryAuth,
    platform: Platform,
}

impl<'a> Pull<'a> {
    fn new(store: &'a Store, text: &'a str, options: &PullOptions) -> Result<Self, ImageError> {
        let reference: Reference = text.parse().map_err(|e| failed(text, e))?;
        let loopback = is_loopback(reference.resolve_registry());
        let config = ClientConfig {
            protocol: if loopback { ClientProtocol::Http } else { ClientProtocol::Https },
            connect_timeout: Some(CONNECT_TIMEOUT),
            read_timeout: Some(READ_TIMEOUT),
            user_agent: concat!("sloplet/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        };
        // Fails only when the program has chosen a provider already, which then serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::try_from(config).map_err(|e| failed(text, e))?;
        let auth = match &options.credentials {
            Some(c) => RegistryAuth::Basic(c.username.clone(), c.password.clone()),
            None => RegistryAuth::Anonymous,
        };
        let platform = options.platform.clone().unwrap_or_else(Platform::of_host);
        Ok(Pull { store, text, reference, client, auth, platform })
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
        let mut reference = self.reference.clone();
        let mut expected = reference.digest().map(str::to_owned);
        for _ in 0..2 {
            let request = self.client.pull_manifest_raw(&reference, &self.auth, &ACCEPTED);
            let answer = tokio::time::timeout(MANIFEST_TIMEOUT, request).await;
            let (bytes, _) = answer.map_err(|e| failed(self.text, e))?.map_err(|e| failed(self.text, e))?;
            if bytes.len() as u64 > self.store.limits.metadata_bytes {
                return Err(LimitExceeded::Metadata(self.store.limits.metadata_bytes).into());
            }
            let digest = format!("sha256:{}", sha256_hex(&bytes));
            if let Some(expected) = expected.take_if(|expected| *expected != digest) {
                return Err(ImageError::DigestMismatch { what: "manifest".to_owned(), expected, actual: digest });
            }
            let document: Document = oci::parse(&bytes, "manifest")?;
            let Some(chosen) = document.choose(&self.platform, self.text)? else {
                return Ok((document, digest));
            };
            hex_of(&chosen.digest)?;
            reference = self.reference.clone_with_digest(chosen.digest.clone());
            expected = Some(chosen.digest.clone());
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
        let file = tokio::fs::File::create(&path).await.map_err(|e| ImageError::store("create", &path, e))?;
        let out = CappedFile { file, left: descriptor.size };
        // By digest alone: a descriptor's own `urls` could point anywhere.
        let fetched = self.client.pull_blob(&self.reference, descriptor.digest.as_str(), out).await;
        fetched.map_err(|e| failed(self.text, format!("blob {}: {e}", descriptor.digest)))
    }
}

/// Only these may be spoken to without TLS: nobody sits in between.
fn is_loopback(registry: &str) -> bool {
    let host = match registry.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => registry.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn failed(reference: &str, reason: impl ToString) -> ImageError {
    let reason = printable(reason.to_string().as_bytes());
    ImageError::Pull { reference: printable(reference.as_bytes()), reason }
}

/// A file that takes as many bytes as were announced and not one more.
struct CappedFile {
    file: tokio::fs::File,
    left: u64,
}

impl AsyncWrite for CappedFile {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        if buf.len() as u64 > self.left {
            return Poll::Ready(Err(std::io::Error::other("the registry sent more than it announced")));
        }
        let written = std::task::ready!(Pin::new(&mut self.file).poll_write(cx, buf))?;
        self.left = self.left.saturating_sub(written as u64);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.file).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.file).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_loopback_only() {
        for host in ["localhost", "localhost:5000", "127.0.0.1:5000", "[::1]:5000"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["docker.io", "localhost.evil.com:5000", "127.0.0.1.evil.com", "10.0.0.1:5000", "[fe80::1]", ""] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let credentials = Credentials { username: "me".into(), password: "hunter2".into() };
        assert!(!format!("{credentials:?}").contains("hunter2"));
    }
}
