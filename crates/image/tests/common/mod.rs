//! Crafted archives and image layouts, and the naive unpacker that they would fool.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sloplet_image::Store;
use tar::EntryType;

pub fn store() -> (tempfile::TempDir, Store) {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).unwrap();
    (data, store)
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A tar written byte by byte: the `tar` crate's own writer refuses most of what an attacker would write.
#[derive(Default)]
pub struct Tar {
    bytes: Vec<u8>,
    uid: u64,
    gid: u64,
}

impl Tar {
    pub fn new() -> Self {
        Tar::default()
    }

    /// Owner of the entries that follow.
    pub fn owned_by(mut self, uid: u64, gid: u64) -> Self {
        (self.uid, self.gid) = (uid, gid);
        self
    }

    pub fn raw(mut self, kind: EntryType, path: &[u8], link: &[u8], mode: u32, content: &[u8]) -> Self {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(self.uid);
        header.set_gid(self.gid);
        header.set_mtime(1_700_000_000);
        header.set_size(content.len() as u64);
        let old = header.as_old_mut();
        assert!(path.len() <= 100 && link.len() <= 100);
        old.name[..path.len()].copy_from_slice(path);
        old.linkname[..link.len()].copy_from_slice(link);
        header.set_cksum();
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    pub fn file(self, path: &str, content: &str) -> Self {
        self.raw(EntryType::Regular, path.as_bytes(), b"", 0o644, content.as_bytes())
    }

    pub fn dir(self, path: &str) -> Self {
        self.raw(EntryType::Directory, path.as_bytes(), b"", 0o755, b"")
    }

    pub fn symlink(self, path: &str, target: impl AsRef<Path>) -> Self {
        self.raw(EntryType::Symlink, path.as_bytes(), target.as_ref().as_os_str().as_bytes(), 0o777, b"")
    }

    pub fn hardlink(self, path: &str, target: impl AsRef<Path>) -> Self {
        self.raw(EntryType::Link, path.as_bytes(), target.as_ref().as_os_str().as_bytes(), 0o644, b"")
    }

    /// PAX records for the entry that follows.
    pub fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut content = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3; // space, equals, newline
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            content.extend_from_slice(format!("{length} {key}=").as_bytes());
            content.extend_from_slice(value);
            content.push(b'\n');
        }
        self.raw(EntryType::XHeader, b"PaxHeaders/x", b"", 0o644, &content)
    }

    pub fn done(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 1024, 0);
        self.bytes
    }

    pub fn unfinished(self) -> Vec<u8> {
        self.bytes
    }

    /// Writes it to a file in `dir`.
    pub fn save(self, dir: &Path) -> PathBuf {
        save(dir, &self.done())
    }
}

pub fn save(dir: &Path, bytes: &[u8]) -> PathBuf {
    let path = dir.join(format!("{}.tar", &sha256(bytes)[..12]));
    std::fs::write(&path, bytes).unwrap();
    path
}

pub fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// What a careless unpacker does: joins paths and follows what is there. The attacks must work against it.
pub fn naive_unpack(archive: &[u8], into: &Path) {
    for entry in tar::Archive::new(archive).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = into.join(std::ffi::OsStr::from_bytes(&entry.path_bytes()));
        let link = entry.link_name_bytes().map(|l| PathBuf::from(std::ffi::OsStr::from_bytes(&l)));
        let _ = match entry.header().entry_type() {
            EntryType::Directory => std::fs::create_dir_all(&path),
            EntryType::Symlink => std::os::unix::fs::symlink(link.unwrap(), &path),
            EntryType::Link => std::fs::hard_link(into.join(link.unwrap()), &path),
            _ => {
                let mut content = Vec::new();
                entry.read_to_end(&mut content).unwrap();
                std::fs::write(&path, content)
            }
        };
    }
}

/// Every path below `root` with what it is, for comparing.
pub fn snapshot(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            let content = if metadata.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
            found.push(format!("{} {:?} {}", path.display(), metadata.file_type(), sha256(&content)));
            if metadata.is_dir() {
                left.push(path);
            }
        }
    }
    found.sort();
    found
}

/// An OCI layout of the given layers (lowest first), as a directory.
pub fn layout(dir: &Path, layers: &[Vec<u8>]) -> PathBuf {
    let root = dir.join("layout");
    let blobs = root.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    let put = |bytes: &[u8]| {
        let digest = sha256(bytes);
        std::fs::write(blobs.join(&digest), bytes).unwrap();
        (format!("sha256:{digest}"), bytes.len())
    };
    let mut descriptors = Vec::new();
    let mut diff_ids = Vec::new();
    for layer in layers {
        diff_ids.push(format!("sha256:{}", sha256(layer)));
        let (digest, size) = put(&gzip(layer));
        descriptors.push(serde_json::json!({
            "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest, "size": size}));
    }
    let config = serde_json::json!({
        "architecture": sloplet_image::Platform::of_host().architecture, "os": "linux",
        "config": {"Env": ["A=1", "PATH=/bin", "broken"], "WorkingDir": "/srv", "User": "1000:1000",
                   "Entrypoint": ["/bin/entry"], "Cmd": ["serve"]},
        "rootfs": {"type": "layers", "diff_ids": diff_ids}});
    let (config_digest, config_size) = put(config.to_string().as_bytes());
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config_digest, "size": config_size},
        "layers": descriptors});
    let (digest, size) = put(manifest.to_string().as_bytes());
    let index = serde_json::json!({
        "schemaVersion": 2,
        "manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": size}]});
    std::fs::write(root.join("index.json"), index.to_string()).unwrap();
    std::fs::write(root.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    root
}

/// Runs a program of the test's needs; a missing one is a failure, not a skip.
pub fn run(program: &str, args: &[&str]) {
    let output = std::process::Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|e| panic!("{program} is needed by this test: {e}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}
