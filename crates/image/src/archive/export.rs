//! From an image of the store to an archive.

use std::io::{self, Write};

use super::MANIFEST;
use super::manifest::{HostSystem, Manifest, PackedLayer, is_content};
use super::pack::{Packer, measure};
use super::seal::{Checked, Sealing};
use crate::error::ImageError;
use crate::image::Image;
use crate::store::Store;

/// How hard to compress: the level at which more time gains little.
const LEVEL: i32 = 3;

/// What was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Exported {
    /// The whole of it.
    pub whole: Checked,
    /// What it says of itself.
    pub manifest: Manifest,
}

impl Store {
    /// What an archive of `image` says of itself: with `thin`, layers that another store may have as well stay out, and
    /// so do the programs of an image that is made of the host's own.
    pub fn plan_export(&self, image: &Image, thin: bool, snapshot: serde_json::Value) -> Result<Manifest, ImageError> {
        let mut manifest = Manifest::new(image.config.clone(), snapshot);
        if !image.binds.is_empty() {
            if !thin {
                let reason = "it is made of this host's own programs, which would not be in it: export it 'thin', for \
                              hosts of the same system, or make the sandbox from another image than 'host'";
                return Err(ImageError::NotExported { name: image.name.clone(), reason: reason.to_owned() });
            }
            manifest.host = Some(HostSystem::here(&image.binds));
        }
        for name in self.layers_of(image)? {
            let packed = !(thin && is_content(&name));
            let path = self.layers_dir().join(&name);
            let (bytes, entries) = match packed {
                true => {
                    measure(&name, &path, self.limits.path_bytes).map_err(|error| self.not_exported(image, error))?
                }
                false => (0, 0),
            };
            manifest.layers.push(PackedLayer { name, packed, bytes, entries });
        }
        Ok(manifest)
    }

    /// Writes an archive of `image`, which must be leased, as it was planned.
    pub fn export(&self, image: &Image, manifest: Manifest, to: impl Write) -> Result<Exported, ImageError> {
        let fail = |error| self.not_exported(image, error);
        let description = serde_json::to_vec_pretty(&manifest).map_err(|error| fail(error.into()))?;
        let mut encoder = zstd::Encoder::new(Sealing::new(to), LEVEL).map_err(fail)?;
        encoder.include_checksum(true).map_err(fail)?;
        let mut packer = Packer::new(encoder, self.limits.path_bytes);
        packer.document(MANIFEST, &description).map_err(fail)?;
        for layer in manifest.layers.iter().filter(|layer| layer.packed) {
            packer.layer(&layer.name, &self.layers_dir().join(&layer.name)).map_err(fail)?;
        }
        let sealing = packer.finish().and_then(zstd::Encoder::finish).map_err(fail)?;
        Ok(Exported { whole: sealing.finish().map_err(fail)?, manifest })
    }

    fn not_exported(&self, image: &Image, error: io::Error) -> ImageError {
        ImageError::NotExported { name: image.name.clone(), reason: error.to_string() }
    }
}
