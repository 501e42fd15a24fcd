//! What an archive says of itself before anything else.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::digest::parse_sha256;
use crate::error::ImageError;
use crate::image::{HostBind, ImageConfig};
use crate::limits::{LimitExceeded, Limits};

const FORMAT: &str = "sloplet-snapshot";
const VERSION: u32 = 1;

/// What an archive says of itself before anything else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// `sloplet-snapshot`.
    pub format: String,
    /// Of the format: what is newer than the reader is refused.
    pub version: u32,
    /// Whose programs are in it: `x86_64`, `aarch64`.
    pub architecture: String,
    /// How programs are started in it.
    pub config: ImageConfig,
    /// Topmost first.
    pub layers: Vec<PackedLayer>,
    /// For what was made on the image `host`: the system whose programs it needs and does not have in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostSystem>,
    /// What whoever exported it says about it.
    pub snapshot: serde_json::Value,
}

/// One layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackedLayer {
    /// Its name in the store that it comes from.
    pub name: String,
    /// Whether its content is here. What is not must be in the store that it goes to.
    pub packed: bool,
    /// Bytes of it in the archive, before compression.
    pub bytes: u64,
    /// Files, folders and all else in it.
    pub entries: u64,
}

/// A host whose own programs a snapshot uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSystem {
    /// Its distribution and release, like `debian 13`.
    pub system: String,
    /// Its folders that are seen inside.
    pub folders: Vec<PathBuf>,
}

impl HostSystem {
    /// This host, with the folders of `binds`.
    pub(super) fn here(binds: &[HostBind]) -> Self {
        let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        let value = |key: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            found.map_or("unknown", |value| value.trim_matches('"')).to_owned()
        };
        let folders = binds.iter().map(|bind| bind.target.clone()).collect();
        Self { system: format!("{} {}", value("ID"), value("VERSION_ID")), folders }
    }
}

impl Manifest {
    pub(super) fn new(config: ImageConfig, snapshot: serde_json::Value) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            architecture: std::env::consts::ARCH.to_owned(),
            config,
            layers: Vec::new(),
            host: None,
            snapshot,
        }
    }

    /// Bytes of all that is here, before compression.
    pub fn bytes(&self) -> u64 {
        self.packed().map(|layer| layer.bytes).fold(0, u64::saturating_add)
    }

    /// Entries that are here.
    pub(super) fn entries(&self) -> u64 {
        self.packed().map(|layer| layer.entries).fold(0, u64::saturating_add)
    }

    fn packed(&self) -> impl Iterator<Item = &PackedLayer> {
        self.layers.iter().filter(|layer| layer.packed)
    }

    /// Reads one that came from elsewhere.
    pub(crate) fn read(bytes: &[u8], limits: &Limits, store: &Path) -> Result<Self, ImageError> {
        let bad = |reason: String| ImageError::BadArchive { reason };
        // Version and format first: a newer one may have fields that are not known here.
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let head: Head = serde_json::from_slice(bytes).map_err(|e| bad(format!("its manifest: {e}")))?;
        if head.format != FORMAT || head.version != VERSION {
            let message = format!(
                "it has format '{}' {}, and this sloplet reads {FORMAT} {VERSION}: use the version that exported it",
                crate::error::printable(head.format.as_bytes()),
                head.version
            );
            return Err(bad(message));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(|e| bad(format!("its manifest: {e}")))?;
        manifest.check(limits, store)?;
        Ok(manifest)
    }

    fn check(&self, limits: &Limits, store: &Path) -> Result<(), ImageError> {
        let bad = |reason: String| Err(ImageError::BadArchive { reason });
        if self.architecture != std::env::consts::ARCH {
            let theirs = crate::error::printable(self.architecture.as_bytes());
            return bad(format!("its programs are for {theirs}, and this host is {}", std::env::consts::ARCH));
        }
        if self.layers.is_empty() || self.layers.len() > limits.layers.saturating_add(1) {
            return Err(LimitExceeded::Layers(limits.layers).into());
        }
        let mut seen = HashSet::new();
        for layer in &self.layers {
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            if layer.name.is_empty() || layer.name.len() > 100 || !layer.name.bytes().all(plain) {
                return bad("its manifest: a layer with a name that none has".to_owned());
            }
            if !seen.insert(&layer.name) {
                return bad("its manifest: a layer comes twice".to_owned());
            }
        }
        let texts = self.config.env.iter().flat_map(|(name, value)| [name, value]);
        let texts = texts.chain(&self.config.entrypoint).chain(&self.config.cmd).chain(&self.config.workdir);
        let wrong = self.config.env.iter().any(|(name, _)| name.is_empty() || name.contains('='));
        if wrong || texts.chain(&self.config.user).any(|text| text.contains('\0')) {
            return bad("its manifest: a configuration that no program could be started with".to_owned());
        }
        if self.bytes() > limits.total_bytes {
            return Err(LimitExceeded::Bytes(limits.total_bytes).into());
        }
        if self.entries() > limits.entries {
            return Err(LimitExceeded::Entries(limits.entries).into());
        }
        let free = rustix::fs::statvfs(store).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        match self.bytes() > free {
            true => bad(format!("it unpacks to {} bytes, and the store's disk has {free} left", self.bytes())),
            false => Ok(()),
        }
    }
}

/// Whether a layer is the same in every store that has one of its name: its content has that digest.
pub(super) fn is_content(layer: &str) -> bool {
    let digest = layer.strip_prefix(super::import::PACKED).unwrap_or(layer);
    parse_sha256(&format!("sha256:{digest}")).is_some()
}
