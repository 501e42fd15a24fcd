//! What the fuzz targets in `fuzz/` may call of this crate, with what must hold for any image, archive or registry.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use crate::archive::Manifest;
use crate::decompress::LayerStream;
use crate::limits::Budget;
use crate::oci::{self, ConfigFile, DockerManifest, Document, Platform};
use crate::registry::Challenge;
use crate::tarstream::TarStream;
use crate::unpack::{Dialect, Unpacker, unpack};
use crate::{Limits, Pattern, Reference, SealCheck, Store, name};

/// Small, so that a fuzzer reaches them.
const LIMITS: Limits = Limits {
    total_bytes: 1 << 20,
    entries: 64,
    path_bytes: 512,
    path_depth: 16,
    compression_ratio: 250,
    ratio_grace_bytes: 256 << 10,
    metadata_bytes: 64 << 10,
    layers: 8,
};

/// A layer, plain or compressed: never more than the limits allow comes out.
pub fn layer_stream(bytes: &[u8]) {
    let budget = Budget::new(LIMITS);
    let Ok(mut stream) = LayerStream::new(bytes, &budget) else { return };
    let mut buffer = vec![0; 64 << 10];
    let mut total = 0u64;
    while let Ok(count) = stream.read(&mut buffer) {
        if count == 0 {
            break;
        }
        total += count as u64;
        assert!(total <= LIMITS.total_bytes + (1 << 20), "{total} bytes");
    }
    let _ = stream.plain_bytes();
}

/// The members of an archive.
pub fn tar_members(bytes: &[u8]) {
    let mut stream = TarStream::new(bytes);
    let mut buffer = [0; 4096];
    while let Ok(Some(member)) = stream.next() {
        let _ = oci::belongs_to_image_archive(&member.path);
        let mut read = 0;
        while let Ok(count) = stream.read_body(&mut buffer) {
            if count == 0 {
                break;
            }
            read += count;
        }
        assert!(read <= bytes.len());
    }
}

/// Unpacks a layer into an empty folder: nothing appears beside that folder.
pub fn unpack_beneath(bytes: &[u8], folder: &Path, snapshot: bool) {
    let root = folder.join("root");
    if fs::create_dir(&root).is_err() {
        return;
    }
    if let Ok(opened) = File::open(&root) {
        let mut budget = Budget::new(LIMITS);
        let mut stream = TarStream::new(bytes);
        match snapshot {
            false => drop(unpack(&mut stream, opened.as_fd(), &mut budget, &|_| {})),
            true => unpack_snapshot(&mut stream, opened.as_fd(), &mut budget),
        }
    }
    let beside = fs::read_dir(folder).map_or(1, Iterator::count);
    assert_eq!(beside, 1, "something appeared beside the folder");
}

fn unpack_snapshot(stream: &mut TarStream<&[u8]>, root: BorrowedFd<'_>, budget: &mut Budget) {
    let mut unpacker = Unpacker::new(root, budget, Dialect::Snapshot);
    while let Ok(Some(member)) = stream.next() {
        if unpacker.member(&member, stream).is_err() {
            return;
        }
    }
    let _ = unpacker.finish();
}

/// An exported snapshot, taken into a store.
pub fn snapshot_archive(bytes: &[u8], store: &Path) {
    let mut check = SealCheck::default();
    bytes.chunks(7).for_each(|piece| check.add(piece));
    let sealed = check.finish().is_ok();
    let Ok(store) = Store::open(store) else { return };
    let store = store.with_limits(LIMITS);
    if store.import_archive(bytes, "fuzzed", |_| Ok(())).is_ok() {
        assert!(sealed, "an archive without a seal was taken");
        let _ = store.remove("fuzzed");
        let _ = store.gc();
    }
}

/// Documents of registries and archives.
pub fn documents(bytes: &[u8]) {
    let platform = Platform::of_host();
    if let Ok(document) = oci::parse::<Document>(bytes, "document") {
        let _ = document.choose(&platform, "document").map(|chosen| chosen.map(|one| oci::hex_of(&one.digest).is_ok()));
    }
    if let Ok(config) = oci::parse::<ConfigFile>(bytes, "configuration") {
        for layers in 0..3 {
            if let Ok(ids) = config.check(layers, &platform, LIMITS.layers) {
                assert!(ids.iter().all(|id| id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())));
            }
        }
        let run = config.run_config();
        assert!(run.env.iter().all(|(name, value)| !name.is_empty() && !name.contains('=') && !value.contains('\0')));
    }
    let _ = oci::parse::<Vec<DockerManifest>>(bytes, "manifest.json");
    if let Ok(manifest) = Manifest::read(bytes, &LIMITS, Path::new("/")) {
        assert!(manifest.bytes() <= LIMITS.total_bytes && manifest.layers.len() <= LIMITS.layers + 1);
    }
}

/// Names of images, references, patterns and what a registry wants to see.
pub fn names(text: &str) {
    let _ = Challenge::parse(text);
    if let Ok(reference) = Reference::parse(text) {
        let _ = (reference.host_and_port(), reference.is_loopback());
    }
    if let Ok(canonical) = name::canonical(text) {
        let file = name::file_name(&canonical);
        assert!(!file.contains('/') && file.len() <= 255 && !file.starts_with('.'), "{file:?}");
        assert_eq!(name::canonical(&canonical).as_deref().ok(), Some(canonical.as_str()), "{text:?}");
    }
    let made = name::from_file_name(text);
    assert!(name::canonical(&made).is_ok(), "{made:?} from {text:?}");
    let _ = Pattern::new(text);
}
