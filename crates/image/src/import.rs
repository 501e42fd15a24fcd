//! Import of local sources: a directory, a tar, an OCI layout or a docker-save archive, told apart by content.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::decompress::{Compression, LayerStream, detect};
use crate::digest::sha256_hex;
use crate::error::ImageError;
use crate::guard::check_mount_points;
use crate::image::{Image, ImageConfig, Progress, ProgressFn, silent};
use crate::layer::LayerInfo;
use crate::limits::Budget;
use crate::record::{Record, SourceStamp};
use crate::staging::Staging;
use crate::store::Store;
use crate::tarstream::{TarStream, stream_error};
use crate::tree::{ChunkReader, ChunkWriter, Tree};
use crate::unpack::{Unpacked, unpack};
use crate::xz::XzProcess;
use crate::{layer, name, oci, outside};

/// An image whose layers are in the store, about to be recorded.
pub(crate) struct Loaded {
    pub(crate) digest: String,
    /// Directory names, top first.
    pub(crate) layers: Vec<String>,
    pub(crate) config: ImageConfig,
    pub(crate) unpacked: Unpacked,
}

/// What must hold for a layer beyond being well-formed.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Announced<'a> {
    /// Digest of the bytes as delivered, in hex.
    pub(crate) blob: Option<&'a str>,
    /// Digest of the uncompressed tar, in hex.
    pub(crate) diff_id: Option<&'a str>,
}

/// One import under way: its temporary directory, its caps and who hears of it.
pub(crate) struct Import<'a> {
    pub(crate) store: &'a Store,
    pub(crate) staging: Staging,
    pub(crate) budget: Budget,
    pub(crate) progress: ProgressFn<'a>,
    /// Layers unpacked so far, still in the temporary directory: they enter the store when the whole image is good.
    staged: Vec<StagedLayer>,
    pub(crate) layer: usize,
    pub(crate) of: usize,
}

struct StagedLayer {
    digest: String,
    path: PathBuf,
    info: LayerInfo,
}

impl Store {
    /// Imports a directory, a tar (plain, gzip, zstd, xz), an OCI layout (directory or tar) or a docker-save archive.
    ///
    /// Without a `name` it is derived from the file's name. An image of the same name is replaced in one step.
    pub fn import(&self, source: &Path, name: Option<&str>, progress: ProgressFn<'_>) -> Result<Image, ImageError> {
        let name = match name {
            Some(name) => name::canonical(name)?,
            None => {
                let real = std::fs::canonicalize(source).map_err(|e| ImageError::source(source, e))?;
                let file = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
                name::canonical(&name::from_file_name(&file))?
            }
        };
        let mut import = Import::start(self, progress)?;
        let _lock = self.import_lock()?;
        let loaded = import.load(source)?;
        let record = import.record(name.clone(), loaded)?;
        record.write(&self.record_path(&name), &import.staging)?;
        self.image(record)
    }

    /// Imports a plain tar stream, compressed with gzip, zstd or nothing, for instance the output of a program.
    pub fn import_stream(&self, tar: impl Read, name: &str, progress: ProgressFn<'_>) -> Result<Image, ImageError> {
        self.import_stream_with(tar, name, ImageConfig::default(), progress, || Ok(()))
    }

    /// As [`Store::import_stream`]; `confirm` has the last word before the image is recorded.
    pub(crate) fn import_stream_with(
        &self,
        tar: impl Read,
        name: &str,
        config: ImageConfig,
        progress: ProgressFn<'_>,
        confirm: impl FnOnce() -> Result<(), ImageError>,
    ) -> Result<Image, ImageError> {
        let name = name::canonical(name)?;
        let mut import = Import::start(self, progress)?;
        let _lock = self.import_lock()?;
        let loaded = import.tar(tar)?;
        confirm()?;
        let record = import.record(name.clone(), Loaded { config, ..loaded })?;
        record.write(&self.record_path(&name), &import.staging)?;
        self.image(record)
    }

    /// An image out of a path, remembered as long as the path looks the same.
    pub(crate) fn import_path(&self, source: &Path) -> Result<Image, ImageError> {
        let path = std::fs::canonicalize(source).map_err(|e| ImageError::source(source, e))?;
        let record_path = self.paths_dir().join(format!("{}.json", sha256_hex(path.as_os_str().as_bytes())));
        let stamp = self.stamp(&path)?;
        if let Some(record) = Record::read(&record_path)?
            && record.source.as_ref().is_some_and(|s| s.stamp == stamp)
        {
            return self.image(record);
        }
        let mut import = Import::start(self, &silent)?;
        let _lock = self.import_lock()?;
        let loaded = match outside::is_out_of_reach(&path) {
            true => import.load(&import.bring(&path)?)?,
            false => import.load(&path)?,
        };
        let mut record = import.record(path.display().to_string(), loaded)?;
        record.source = Some(SourceStamp { path: path.display().to_string(), stamp });
        record.write(&record_path, &import.staging)?;
        self.image(record)
    }

    /// Changes when the source does. A file: its stat. A directory: the stat of everything in it, since its own says
    /// nothing of changes further down; but for an OCI layout, whose index names everything by digest.
    fn stamp(&self, path: &Path) -> Result<String, ImageError> {
        let fail = |e| ImageError::source(path, e);
        let metadata = std::fs::metadata(path).map_err(fail)?;
        if !metadata.is_dir() {
            return Ok(file_stamp(&metadata));
        }
        match std::fs::metadata(path.join("index.json")) {
            Ok(index) if oci::is_layout(path) => Ok(file_stamp(&index)),
            _ => self.tree(path).fingerprint().map_err(fail),
        }
    }

    fn tree(&self, path: &Path) -> Tree {
        let own = std::fs::metadata(self.root()).ok().map(|m| (m.dev(), m.ino()));
        Tree::new(path, own)
    }
}

fn file_stamp(m: &std::fs::Metadata) -> String {
    let times = [m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()].map(|t| t.to_string()).join(".");
    format!("{}.{}.{}.{times}", m.dev(), m.ino(), m.size())
}

impl<'a> Import<'a> {
    pub(crate) fn start(store: &'a Store, progress: ProgressFn<'a>) -> Result<Self, ImageError> {
        Ok(Import::within(store, store.staging()?, progress))
    }

    pub(crate) fn within(store: &'a Store, staging: Staging, progress: ProgressFn<'a>) -> Self {
        Import { store, staging, budget: Budget::new(store.limits), progress, staged: Vec::new(), layer: 1, of: 1 }
    }

    fn load(&mut self, source: &Path) -> Result<Loaded, ImageError> {
        let metadata = std::fs::metadata(source).map_err(|e| ImageError::source(source, e))?;
        if metadata.is_dir() {
            if oci::is_layout(source) {
                return oci::load_layout(self, source);
            }
            if source.join("manifest.json").is_file() && oci::is_docker_save(source) {
                return oci::load_docker_save(self, source);
            }
            return self.directory(source);
        }
        if !metadata.is_file() {
            let reason = "neither a file nor a directory".to_owned();
            return Err(ImageError::NotAnImage { path: source.to_path_buf(), reason });
        }
        self.archive(source)
    }

    /// A copy of a path that this process cannot read, gone with the import.
    fn bring(&self, source: &Path) -> Result<PathBuf, ImageError> {
        let copy = self.staging.path().join("outside");
        outside::bring(source, None, false, &copy).map_err(|e| ImageError::source(source, e))?;
        Ok(copy)
    }

    fn directory(&mut self, source: &Path) -> Result<Loaded, ImageError> {
        let tree = self.store.tree(source);
        let (sender, receiver) = std::sync::mpsc::sync_channel(64);
        std::thread::scope(|scope| {
            let packing =
                scope.spawn(move || tree.write_tar(std::io::BufWriter::with_capacity(256 << 10, ChunkWriter(sender))));
            let loaded = self.tar(ChunkReader::new(receiver));
            // A failed packer ends the stream early: its own error says more than the truncation it caused.
            match packing.join() {
                Ok(Err(error)) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                    Err(ImageError::source(source, error))
                }
                Err(_) => Err(ImageError::source(source, std::io::Error::other("packing it failed"))),
                Ok(_) => loaded,
            }
        })
    }

    fn archive(&mut self, source: &Path) -> Result<Loaded, ImageError> {
        let fail = |e| ImageError::source(source, e);
        let mut file = File::open(source).map_err(fail)?;
        let mut start = [0u8; 8];
        let n = file.read(&mut start).map_err(fail)?;
        file.seek(SeekFrom::Start(0)).map_err(fail)?;
        if n == 0 {
            return Err(ImageError::NotAnImage { path: source.to_path_buf(), reason: "it is empty".to_owned() });
        }
        let xz = detect(&start[..n]) == Compression::Xz;
        let open = |file: File| -> Result<Box<dyn Read>, ImageError> {
            if xz { Ok(Box::new(XzProcess::start(file)?)) } else { Ok(Box::new(file)) }
        };
        // What kind of archive it is shows in its first entries; then it is read again from the start.
        let kind = self.peek(open(file.try_clone().map_err(fail)?)?, source)?;
        file.seek(SeekFrom::Start(0)).map_err(fail)?;
        match kind {
            ArchiveKind::Rootfs => self.tar(open(file)?),
            ArchiveKind::OciLayout => {
                let dir = self.unpack_archive(open(file)?)?;
                oci::load_layout(self, &dir)
            }
            ArchiveKind::DockerSave => {
                let dir = self.unpack_archive(open(file)?)?;
                oci::load_docker_save(self, &dir)
            }
        }
    }

    /// Looks for the files that mark an image archive. They may come last, so all names are read when needed: an
    /// archive whose root holds only blobs, directories named by digests and JSON is read to its end.
    fn peek(&self, source: Box<dyn Read>, path: &Path) -> Result<ArchiveKind, ImageError> {
        let stream = LayerStream::new(source, &self.budget).map_err(|e| ImageError::source(path, e))?;
        let mut tar = TarStream::new(stream);
        let (mut layout, mut index, mut manifest) = (false, false, false);
        let mut members = 0u64;
        loop {
            let member = match tar.next() {
                Ok(Some(member)) => member,
                Ok(None) => break,
                Err(ImageError::Refused { reason, .. }) if members == 0 => {
                    return Err(ImageError::NotAnImage { path: path.to_path_buf(), reason });
                }
                Err(error) => return Err(error),
            };
            members += 1;
            let entry = member.path.strip_prefix(b"./").unwrap_or(&member.path);
            match entry {
                b"oci-layout" => layout = true,
                b"index.json" => index = true,
                b"manifest.json" => manifest = true,
                _ if oci::belongs_to_image_archive(entry) => {}
                _ => return Ok(ArchiveKind::Rootfs),
            }
            if members > self.budget.limits.entries {
                break;
            }
        }
        // `docker save` has both nowadays; the manifest also names the layers of older ones.
        Ok(match (layout && index, manifest) {
            (true, _) => ArchiveKind::OciLayout,
            (false, true) => ArchiveKind::DockerSave,
            _ => ArchiveKind::Rootfs,
        })
    }

    /// Unpacks an archive of blobs, with the same care as a layer, to be read as a directory.
    fn unpack_archive(&mut self, source: impl Read) -> Result<PathBuf, ImageError> {
        let (path, root) = self.staging.make_root("archive")?;
        let stream = LayerStream::new(source, &self.budget).map_err(stream_error)?;
        let mut tar = TarStream::new(stream);
        unpack(&mut tar, root.as_fd(), &mut self.budget, &|_| {})?;
        Ok(path)
    }

    /// One tar as an image of one layer.
    fn tar(&mut self, source: impl Read) -> Result<Loaded, ImageError> {
        let (layer, unpacked) = self.add_layer(source, Announced::default())?;
        let digest = format!("sha256:{layer}");
        Ok(Loaded { digest, layers: vec![layer], config: ImageConfig::default(), unpacked })
    }

    /// Unpacks one layer into the store; returns its name, the digest of the uncompressed tar.
    pub(crate) fn add_layer(
        &mut self,
        source: impl Read,
        announced: Announced<'_>,
    ) -> Result<(String, Unpacked), ImageError> {
        let (path, root) = self.staging.make_root(&format!("layer-{}", self.staged.len()))?;
        let stream = LayerStream::new(source, &self.budget).map_err(stream_error)?;
        let mut tar = TarStream::new(stream);
        let (progress, position, of) = (self.progress, self.layer, self.of);
        let reported = std::cell::Cell::new(0);
        let unpacked = unpack(&mut tar, root.as_fd(), &mut self.budget, &|bytes| {
            if bytes >= reported.get() + (4 << 20) {
                reported.set(bytes);
                progress(Progress::Unpacking { layer: position, of, bytes });
            }
        })?;
        let stream = tar.finish()?;
        self.budget.spend_bytes(stream.plain_bytes())?;
        let (diff_id, blob) = stream.digests().map_err(stream_error)?;
        for (what, expected, actual) in [("blob", announced.blob, &blob), ("layer", announced.diff_id, &diff_id)] {
            if expected.is_some_and(|expected| expected != actual) {
                return Err(ImageError::DigestMismatch {
                    what: format!("{what} of layer {position}"),
                    expected: format!("sha256:{}", expected.unwrap_or_default()),
                    actual: format!("sha256:{actual}"),
                });
            }
        }
        progress(Progress::Unpacking { layer: position, of, bytes: unpacked.bytes });
        let info = LayerInfo { size_bytes: unpacked.bytes, skipped_entries: unpacked.skipped };
        self.staged.push(StagedLayer { digest: diff_id.clone(), path, info });
        Ok((diff_id, unpacked))
    }

    /// A layer that need not be unpacked: the store has it, or this image had it before.
    pub(crate) fn find_layer(&self, digest: &str) -> Option<LayerInfo> {
        let staged = self.staged.iter().find(|l| l.digest == digest).map(|l| l.info);
        staged.or_else(|| layer::find(self.store, digest))
    }

    /// The last checks, on the image as a whole; then its layers enter the store.
    pub(crate) fn record(&self, name: String, loaded: Loaded) -> Result<Record, ImageError> {
        let dir = self.store.layers_dir();
        let path_of = |digest: &String| match self.staged.iter().find(|l| l.digest == *digest) {
            Some(layer) => layer.path.clone(),
            None => dir.join(digest),
        };
        let paths: Vec<_> = loaded.layers.iter().map(path_of).collect();
        check_mount_points(&paths)?;
        for layer in &self.staged {
            layer::keep(self.store, &self.staging, &layer.path, &layer.digest, layer.info)?;
        }
        let mut record = Record::new(name, loaded.digest, loaded.layers, loaded.config);
        record.size_bytes = loaded.unpacked.bytes;
        record.skipped_entries = loaded.unpacked.skipped;
        Ok(record)
    }
}

enum ArchiveKind {
    Rootfs,
    OciLayout,
    DockerSave,
}
