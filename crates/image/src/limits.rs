//! Caps that keep a hostile image from filling the disk or the memory of the host.

/// What an image may cost at most. They hold over all its layers together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Uncompressed bytes over all layers.
    pub total_bytes: u64,
    /// Entries (files, directories, links…) over all layers.
    pub entries: u64,
    /// Bytes of one path. The kernel's PATH_MAX is 4096; staying below keeps every path usable inside.
    pub path_bytes: usize,
    /// Components of one path: removal holds one file descriptor per level, so this stays below the usual 1024.
    pub path_depth: usize,
    /// Uncompressed bytes per compressed byte. gzip cannot exceed about 1030, zstd reaches 30,000 on zeros.
    pub compression_ratio: u64,
    /// The ratio is looked at only past this many uncompressed bytes: small files of zeros are harmless.
    pub ratio_grace_bytes: u64,
    /// Bytes of one manifest, image configuration or index: they are read into memory.
    pub metadata_bytes: u64,
    /// Layers of one image: overlayfs takes 500 lowers, Docker 127.
    pub layers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            total_bytes: 32 << 30,
            entries: 2_000_000,
            path_bytes: 4000,
            path_depth: 256,
            compression_ratio: 250,
            ratio_grace_bytes: 256 << 20,
            metadata_bytes: 8 << 20,
            layers: 127,
        }
    }
}

/// Which cap was hit; the caller adds which image and entry it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitExceeded {
    /// Too much data.
    #[error("more than {0} bytes uncompressed")]
    Bytes(u64),
    /// Too many entries.
    #[error("more than {0} entries")]
    Entries(u64),
    /// A path that is too long.
    #[error("a path longer than {0} bytes")]
    PathBytes(usize),
    /// A path that is too deep.
    #[error("a path deeper than {0} directories")]
    PathDepth(usize),
    /// A decompression bomb.
    #[error("a compression ratio above {0}")]
    Ratio(u64),
    /// Headers, manifests or directory lists that would not fit into memory.
    #[error("more than {0} bytes of metadata")]
    Metadata(u64),
    /// Too many layers.
    #[error("more than {0} layers")]
    Layers(usize),
}

/// What is left of [`Limits`] while an image is read.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) limits: Limits,
    bytes: u64,
    entries: u64,
}

impl Budget {
    pub(crate) fn new(limits: Limits) -> Self {
        Budget { limits, bytes: 0, entries: 0 }
    }

    pub(crate) fn bytes_left(&self) -> u64 {
        self.limits.total_bytes.saturating_sub(self.bytes)
    }

    pub(crate) fn spend_bytes(&mut self, count: u64) -> Result<(), LimitExceeded> {
        self.bytes = self.bytes.saturating_add(count);
        if self.bytes > self.limits.total_bytes {
            return Err(LimitExceeded::Bytes(self.limits.total_bytes));
        }
        Ok(())
    }

    pub(crate) fn spend_entry(&mut self) -> Result<(), LimitExceeded> {
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(LimitExceeded::Entries(self.limits.entries));
        }
        Ok(())
    }

    pub(crate) fn check_path(&self, bytes: usize, depth: usize) -> Result<(), LimitExceeded> {
        if bytes > self.limits.path_bytes {
            return Err(LimitExceeded::PathBytes(self.limits.path_bytes));
        }
        if depth > self.limits.path_depth {
            return Err(LimitExceeded::PathDepth(self.limits.path_depth));
        }
        Ok(())
    }
}
