//! From an archive, which is hostile, to an image of the store.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::PathBuf;

use super::manifest::{HostSystem, Manifest, PackedLayer, is_content};
use super::seal::{Checked, Unsealing, broken_off};
use super::{LAYERS, MANIFEST};
use crate::decompress::zstd_frames;
use crate::error::ImageError;
use crate::guard::check_mount_points;
use crate::image::{HostBind, Image};
use crate::layer::{self, LayerInfo};
use crate::limits::{Budget, LimitExceeded};
use crate::name;
use crate::record::Record;
use crate::snapshot;
use crate::staging::Staging;
use crate::store::Store;
use crate::tarstream::{BLOCK, Kind, Member, TarStream};
use crate::unpack::{Dialect, Unpacker};

/// How much more is read of an archive that is refused, to see whether it is damaged.
const AFTERMATH: u64 = 64 << 20;

/// Begins the names of layers that came in an archive and were no snapshots: the digest of what was unpacked follows.
pub(super) const PACKED: &str = "packed-";

/// What came in.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The image.
    pub image: Image,
    /// What the archive said of itself.
    pub manifest: Manifest,
    /// The whole of it.
    pub whole: Checked,
    /// File capabilities that could not be given: only root may.
    pub left_out: u64,
}

/// A layer that waits for the last byte.
struct Waiting {
    name: String,
    path: PathBuf,
    info: LayerInfo,
    /// Whether it is new to the store.
    new: bool,
}

impl Store {
    /// Takes an archive in as an image of that name. Nothing is in the store before all of it has come and is right.
    /// `look` hears what it says of itself before anything else is read, and may refuse it.
    pub fn import_archive(
        &self,
        from: impl Read,
        name: &str,
        look: impl FnOnce(&Manifest) -> Result<(), String>,
    ) -> Result<Imported, ImageError> {
        let name = name::canonical(name)?;
        let staging = self.staging()?;
        let _lock = self.import_lock()?;
        let mut stream = TarStream::new(Bounded::new(zstd_frames(Unsealing::new(from)).map_err(broken_off)?));
        let unpacked = self.unpack_members(&mut stream, &staging, look).and_then(|unpacked| {
            stream.drain()?;
            Ok(unpacked)
        });
        let source = stream.into_inner().from.finish();
        let (manifest, layers, binds) = match unpacked {
            Ok(unpacked) => unpacked,
            // That it was damaged says more than what came of that.
            Err(error) => return Err(source.damage(AFTERMATH).unwrap_or(error)),
        };
        let whole = source.finish()?;
        let paths: Vec<PathBuf> = layers.iter().map(|layer| layer.path.clone()).collect();
        check_mount_points(&paths)?;
        for layer in layers.iter().filter(|layer| layer.new) {
            layer::keep(self, &staging, &layer.path, &layer.name, layer.info)?;
        }
        let left_out = layers.iter().map(|layer| layer.info.skipped_entries).sum();
        let names: Vec<String> = layers.iter().map(|layer| layer.name.clone()).collect();
        let digest = names.first().cloned().unwrap_or_default();
        let mut record = Record::new(name, digest, names, manifest.config.clone());
        record.binds = binds;
        record.size_bytes = layers.iter().map(|layer| layer.info.size_bytes).fold(0, u64::saturating_add);
        record.skipped_entries = left_out;
        record.write(&self.record_path(&record.name), &staging)?;
        Ok(Imported { image: self.image(record)?, manifest, whole, left_out })
    }

    fn unpack_members<R: Read>(
        &self,
        stream: &mut TarStream<Bounded<R>>,
        staging: &Staging,
        look: impl FnOnce(&Manifest) -> Result<(), String>,
    ) -> Result<(Manifest, Vec<Waiting>, Vec<HostBind>), ImageError> {
        let manifest = self.read_manifest(stream)?;
        look(&manifest).map_err(|reason| ImageError::BadArchive { reason })?;
        stream.get_mut().allow(&manifest);
        let binds = match &manifest.host {
            None => Vec::new(),
            Some(theirs) => self.same_host(theirs)?,
        };
        let mut budget = Budget::new(self.limits);
        let mut layers: Vec<Waiting> = Vec::with_capacity(manifest.layers.len());
        let mut next = stream.next()?;
        for (position, layer) in manifest.layers.iter().enumerate() {
            let known = Some(&layer.name).filter(|name| is_content(name)).and_then(|name| layer::find(self, name));
            if !layer.packed {
                let info = known.ok_or_else(|| missing(layer))?;
                layers.push(Waiting {
                    name: layer.name.clone(),
                    path: self.layers_dir().join(&layer.name),
                    info,
                    new: false,
                });
                continue;
            }
            let prefix = [LAYERS, layer.name.as_bytes(), b"/"].concat();
            let (path, root) = staging.make_root(&format!("layer-{position}"))?;
            let mut unpacker = Unpacker::new(root.as_fd(), &mut budget, Dialect::Snapshot);
            let mut entries = 0;
            while let Some(mut member) = next.take() {
                if !strip(&mut member, &prefix)? {
                    next = Some(member);
                    break;
                }
                entries += 1;
                if known.is_none() {
                    unpacker.member(&member, stream)?;
                }
                next = stream.next()?;
            }
            if entries != layer.entries {
                let reason =
                    format!("layer {} has {entries} entries, and {} were announced", position + 1, layer.entries);
                return Err(ImageError::BadArchive { reason });
            }
            let (unpacked, digest) = unpacker.finish()?;
            if let Some(info) = known {
                layers.push(Waiting {
                    name: layer.name.clone(),
                    path: self.layers_dir().join(&layer.name),
                    info,
                    new: false,
                });
                continue;
            }
            let kind = if layer.name.starts_with(snapshot::PREFIX) { snapshot::PREFIX } else { PACKED };
            let info = LayerInfo { size_bytes: unpacked.bytes, skipped_entries: unpacked.skipped };
            layers.push(Waiting { name: format!("{kind}{digest}"), path, info, new: true });
        }
        match next {
            Some(member) => Err(ImageError::refused(&member.path, "it belongs to no layer that was announced")),
            None => Ok((manifest, layers, binds)),
        }
    }

    fn read_manifest<R: Read>(&self, stream: &mut TarStream<Bounded<R>>) -> Result<Manifest, ImageError> {
        let bad = |reason: &str| ImageError::BadArchive { reason: reason.to_owned() };
        let not_one = || bad("it does not begin with a snapshot's manifest; export one with 'sloplet snapshot export'");
        let first = stream.next().map_err(|error| match error {
            ImageError::Refused { .. } => not_one(),
            other => other,
        })?;
        let first = first.filter(|member| member.path == MANIFEST && member.kind == Kind::File).ok_or_else(not_one)?;
        if first.size > self.limits.metadata_bytes {
            return Err(LimitExceeded::Metadata(self.limits.metadata_bytes).into());
        }
        let mut bytes = vec![0; first.size as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += stream.read_body(&mut bytes[filled..]).map_err(broken_off)?;
        }
        Manifest::read(&bytes, &self.limits, self.root())
    }

    /// The host's folders, if this host is of the kind that a snapshot was made on.
    fn same_host(&self, theirs: &HostSystem) -> Result<Vec<HostBind>, ImageError> {
        let binds = self.host_binds();
        let here = HostSystem::here(&binds);
        if here != *theirs {
            let shown = |system: &HostSystem| crate::error::printable(system.system.as_bytes());
            let reason = format!(
                "it uses the programs of a host with {} and has none of its own; this host has {}",
                shown(theirs),
                shown(&here)
            );
            return Err(ImageError::BadArchive { reason });
        }
        Ok(binds)
    }
}

fn missing(layer: &PackedLayer) -> ImageError {
    let reason = format!(
        "it was exported 'thin', without its layer {}, which is not in this store: pull or import the image that it \
         was made from, or export it whole",
        layer.name
    );
    ImageError::BadArchive { reason }
}

/// Takes the name of the layer off; whether it was there.
fn strip(member: &mut Member, prefix: &[u8]) -> Result<bool, ImageError> {
    let Some(path) = member.path.strip_prefix(prefix) else { return Ok(false) };
    let path = path.to_vec();
    if member.kind == Kind::Hardlink {
        let link = member.link.strip_prefix(prefix).map(<[u8]>::to_vec);
        member.link = link.ok_or_else(|| ImageError::refused(&path, "a hard link out of its layer"))?;
    }
    member.path = path;
    Ok(true)
}

/// Stops what unpacks to more than was announced.
struct Bounded<R> {
    from: R,
    left: u64,
    announced: u64,
}

/// What the manifest may take, before it has said how much follows.
const HEAD: u64 = 16 << 20;

impl<R> Bounded<R> {
    fn new(from: R) -> Self {
        Self { from, left: HEAD, announced: HEAD }
    }

    /// As much as was announced, and the end of the archive.
    fn allow(&mut self, manifest: &Manifest) {
        self.announced = manifest.bytes();
        self.left = self.announced.saturating_add(4 * BLOCK as u64);
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.left = match self.left.checked_sub(count as u64) {
            Some(left) => left,
            None => return Err(io::Error::other(LimitExceeded::Bytes(self.announced))),
        };
        Ok(count)
    }
}
