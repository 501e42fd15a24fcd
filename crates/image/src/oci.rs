//! OCI layouts and docker-save archives, both as directories. Every document and blob is checked against the digest
//! announced for it; files are opened beneath the directory only.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::Deserialize;

use crate::beneath::open_dir;
use crate::digest::{parse_sha256, sha256_hex};
use crate::error::{ImageError, printable};
use crate::image::{ImageConfig, Progress};
use crate::import::{Announced, Import, Loaded};
use crate::limits::LimitExceeded;
use crate::unpack::Unpacked;

/// An index may name indexes; real ones nest once.
const MAX_INDEX_DEPTH: usize = 4;

/// The operating system and processor an image is for, as `linux/amd64` names them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Platform {
    /// `linux`.
    pub os: String,
    /// `amd64`, `arm64`…
    pub architecture: String,
}

impl Platform {
    /// The platform of this host.
    pub fn of_host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "x86" => "386",
            "aarch64" => "arm64",
            "powerpc64" => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        Platform { os: "linux".to_owned(), architecture: architecture.to_owned() }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct Descriptor {
    pub(crate) digest: String,
    #[serde(default)]
    pub(crate) size: u64,
    #[serde(default)]
    platform: Option<Platform>,
}

/// An index or a manifest: which of the two shows in what it lists.
#[derive(Debug, Deserialize)]
pub(crate) struct Document {
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
    #[serde(default)]
    pub(crate) config: Option<Descriptor>,
    #[serde(default)]
    pub(crate) layers: Option<Vec<Descriptor>>,
}

impl Document {
    /// For an index: the one image for `platform`; `None` for a manifest.
    pub(crate) fn choose(&self, platform: &Platform, what: &str) -> Result<Option<&Descriptor>, ImageError> {
        let Some(manifests) = &self.manifests else {
            return Ok(None);
        };
        // Attestations are listed as `unknown/unknown`, a lone image often without any platform.
        let mut fitting = manifests.iter().filter(|m| m.platform.as_ref().is_none_or(|p| p == platform));
        match (fitting.next(), fitting.next()) {
            (Some(only), None) => Ok(Some(only)),
            (Some(_), Some(_)) => Err(ImageError::manifest(what, "it holds several images; save or copy one alone")),
            (None, _) => {
                let wanted = format!("{}/{}", platform.os, platform.architecture);
                Err(ImageError::manifest(what, format!("it holds no image for {wanted}")))
            }
        }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct ConfigFile {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    config: Option<RunConfig>,
    #[serde(default)]
    rootfs: RootFs,
}

#[derive(Debug, Default, Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct RunConfig {
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct DockerManifest {
    config: String,
    layers: Vec<String>,
}

/// Whether a directory is an OCI layout.
pub(crate) fn is_layout(dir: &Path) -> bool {
    dir.join("oci-layout").is_file() && dir.join("index.json").is_file()
}

/// Whether a directory is an unpacked docker-save archive rather than a rootfs with a `manifest.json` in it.
pub(crate) fn is_docker_save(dir: &Path) -> bool {
    let Ok(mut file) = open_beneath(dir, "manifest.json") else {
        return false;
    };
    let mut bytes = Vec::new();
    let read = Read::by_ref(&mut file).take(1 << 20).read_to_end(&mut bytes);
    read.is_ok() && serde_json::from_slice::<Vec<DockerManifest>>(&bytes).is_ok()
}

/// Whether an entry of a tar may be part of an OCI layout or docker-save archive; the first that may not makes the
/// archive a rootfs.
pub(crate) fn belongs_to_image_archive(entry: &[u8]) -> bool {
    let entry = entry.strip_suffix(b"/").unwrap_or(entry);
    let first = entry.split(|b| *b == b'/').next().unwrap_or_default();
    let stem = first.strip_suffix(b".json").or_else(|| first.strip_suffix(b".tar")).unwrap_or(first);
    let stem = stem.strip_suffix(b".gz").unwrap_or(stem);
    let is_digest = stem.len() == 64 && stem.iter().all(u8::is_ascii_hexdigit);
    matches!(entry, b"" | b"." | b"repositories") || first == b"blobs" || is_digest
}

/// Loads the one image of an OCI layout.
pub(crate) fn load_layout(import: &mut Import<'_>, dir: &Path) -> Result<Loaded, ImageError> {
    let index = read_document(import, open_beneath(dir, "index.json")?, "index.json")?;
    let platform = Platform::of_host();
    let mut document: Document = parse(&index, "index.json")?;
    let mut digest = format!("sha256:{}", sha256_hex(&index));
    for _ in 0..MAX_INDEX_DEPTH {
        let Some(chosen) = document.choose(&platform, "index.json")? else {
            break;
        };
        let bytes = read_blob(import, dir, chosen)?;
        digest = chosen.digest.clone();
        document = parse(&bytes, &digest)?;
    }
    load_manifest(import, dir, &document, &digest, &platform)
}

/// Loads an image whose blobs lie in `dir/blobs/sha256`; those of layers in the store already may be missing.
pub(crate) fn load_manifest(
    import: &mut Import<'_>,
    dir: &Path,
    manifest: &Document,
    digest: &str,
    platform: &Platform,
) -> Result<Loaded, ImageError> {
    let (Some(config), Some(layers)) = (&manifest.config, &manifest.layers) else {
        return Err(ImageError::manifest(printable(digest.as_bytes()), "it is neither a manifest nor an index"));
    };
    let config: ConfigFile = parse(&read_blob(import, dir, config)?, "image configuration")?;
    let diff_ids = config.check(layers.len(), platform, import.budget.limits.layers)?;
    import.of = layers.len();
    let mut loaded = Loaded::new(digest, config.run_config());
    for (position, (blob, diff_id)) in layers.iter().zip(&diff_ids).enumerate() {
        import.layer = position + 1;
        let blob = hex_of(&blob.digest)?;
        let open = || open_beneath(dir, &format!("blobs/sha256/{blob}"));
        loaded.add(import, diff_id, Some(blob), open)?;
    }
    Ok(loaded)
}

/// Loads the one image of a docker-save archive.
pub(crate) fn load_docker_save(import: &mut Import<'_>, dir: &Path) -> Result<Loaded, ImageError> {
    let what = "manifest.json";
    let bytes = read_document(import, open_beneath(dir, what)?, what)?;
    let mut manifests: Vec<DockerManifest> = parse(&bytes, what)?;
    let (Some(manifest), true) = (manifests.pop(), manifests.is_empty()) else {
        return Err(ImageError::manifest(what, "it must name exactly one image; save one alone"));
    };
    let bytes = read_document(import, open_beneath(dir, &manifest.config)?, "image configuration")?;
    let digest = sha256_hex(&bytes);
    // Its name is its digest, in both `<hex>.json` and `blobs/sha256/<hex>`.
    let named = manifest.config.rsplit('/').next().unwrap_or_default();
    let named = named.strip_suffix(".json").unwrap_or(named);
    if parse_sha256(&format!("sha256:{named}")).is_some_and(|expected| expected != digest) {
        return Err(mismatch("image configuration", named, &digest));
    }
    let config: ConfigFile = parse(&bytes, "image configuration")?;
    let diff_ids = config.check(manifest.layers.len(), &Platform::of_host(), import.budget.limits.layers)?;
    import.of = diff_ids.len();
    let mut loaded = Loaded::new(&format!("sha256:{digest}"), config.run_config());
    for (position, (path, diff_id)) in manifest.layers.iter().zip(&diff_ids).enumerate() {
        import.layer = position + 1;
        loaded.add(import, diff_id, None, || open_beneath(dir, path))?;
    }
    Ok(loaded)
}

impl Loaded {
    fn new(digest: &str, config: ImageConfig) -> Self {
        Loaded { digest: digest.to_owned(), layers: Vec::new(), config, unpacked: Unpacked::default() }
    }

    /// Puts one layer on top, unpacking it unless the store has it: a name there is a verified digest.
    fn add(
        &mut self,
        import: &mut Import<'_>,
        diff_id: &str,
        blob: Option<&str>,
        open: impl FnOnce() -> Result<File, ImageError>,
    ) -> Result<(), ImageError> {
        let found = import.find_layer(diff_id);
        let unpacked = match found {
            Some(info) => {
                (import.progress)(Progress::Present { layer: import.layer, of: import.of });
                Unpacked { bytes: info.size_bytes, skipped: info.skipped_entries }
            }
            None => import.add_layer(open()?, Announced { blob, diff_id: Some(diff_id) })?.1,
        };
        self.unpacked.bytes = self.unpacked.bytes.saturating_add(unpacked.bytes);
        self.unpacked.skipped = self.unpacked.skipped.saturating_add(unpacked.skipped);
        self.layers.insert(0, diff_id.to_owned());
        Ok(())
    }
}

impl ConfigFile {
    /// The diff ids in hex, one per layer of the manifest.
    pub(crate) fn check(&self, layers: usize, platform: &Platform, max: usize) -> Result<Vec<String>, ImageError> {
        let what = "image configuration";
        if !self.architecture.is_empty() && self.architecture != platform.architecture {
            let theirs = printable(self.architecture.as_bytes());
            let reason = format!("the image is for {theirs}, wanted is {}", platform.architecture);
            return Err(ImageError::manifest(what, reason));
        }
        if layers > max {
            return Err(LimitExceeded::Layers(max).into());
        }
        if layers == 0 || self.rootfs.diff_ids.len() != layers {
            let reason = format!("{} diff_ids for {layers} layers", self.rootfs.diff_ids.len());
            return Err(ImageError::manifest(what, reason));
        }
        self.rootfs.diff_ids.iter().map(|id| hex_of(id).map(str::to_owned)).collect()
    }

    pub(crate) fn run_config(&self) -> ImageConfig {
        let Some(config) = &self.config else {
            return ImageConfig::default();
        };
        let text = |value: &Option<String>| value.clone().filter(|v| !v.is_empty() && !v.contains('\0'));
        let list = |value: &Option<Vec<String>>| -> Vec<String> {
            value.iter().flatten().filter(|v| !v.contains('\0')).cloned().collect()
        };
        let pair = |v: String| v.split_once('=').filter(|(k, _)| !k.is_empty()).map(|(k, v)| (k.into(), v.into()));
        ImageConfig {
            env: list(&config.env).into_iter().filter_map(pair).collect(),
            workdir: text(&config.working_dir),
            user: text(&config.user),
            entrypoint: list(&config.entrypoint),
            cmd: list(&config.cmd),
            ..ImageConfig::default()
        }
    }
}

/// The hex part of an announced digest. Nothing else ever becomes part of a path.
pub(crate) fn hex_of(digest: &str) -> Result<&str, ImageError> {
    parse_sha256(digest).ok_or_else(|| {
        ImageError::manifest(printable(digest.as_bytes()), "not a digest of the form sha256:<64 hex digits>")
    })
}

/// Parses a JSON document out of an image.
pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &str) -> Result<T, ImageError> {
    serde_json::from_slice(bytes).map_err(|e| ImageError::manifest(printable(what.as_bytes()), e))
}

fn mismatch(what: &str, expected: &str, actual: &str) -> ImageError {
    ImageError::DigestMismatch {
        what: what.to_owned(),
        expected: format!("sha256:{expected}"),
        actual: format!("sha256:{actual}"),
    }
}

fn read_blob(import: &Import<'_>, dir: &Path, descriptor: &Descriptor) -> Result<Vec<u8>, ImageError> {
    let expected = hex_of(&descriptor.digest)?;
    let bytes = read_document(import, open_beneath(dir, &format!("blobs/sha256/{expected}"))?, expected)?;
    let actual = sha256_hex(&bytes);
    if actual != expected {
        return Err(mismatch("blob", expected, &actual));
    }
    Ok(bytes)
}

fn read_document(import: &Import<'_>, file: File, what: &str) -> Result<Vec<u8>, ImageError> {
    let limit = import.budget.limits.metadata_bytes;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|e| ImageError::source(Path::new(what), e))?;
    if bytes.len() as u64 > limit {
        return Err(LimitExceeded::Metadata(limit).into());
    }
    Ok(bytes)
}

/// Opens a file of an unpacked archive. Links are followed beneath it only: old archives have `layer.tar` as a link
/// to another layer's, and a hostile one could link to a file of the host.
fn open_beneath(dir: &Path, path: &str) -> Result<File, ImageError> {
    let fail =
        |e: std::io::Error| ImageError::manifest(printable(path.as_bytes()), format!("the archive lacks it: {e}"));
    let root = open_dir(dir).map_err(fail)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let fd = rustix::fs::openat2(root.as_fd(), path, flags, Mode::empty(), resolve).map_err(|e| fail(e.into()))?;
    let file = File::from(fd);
    if !file.metadata().map_err(fail)?.is_file() {
        return Err(fail(std::io::Error::other("not a regular file")));
    }
    Ok(file)
}
