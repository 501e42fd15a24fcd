//! What clients upload for their builds: archives, named by a hash that the client chose, each owner's apart.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use crate::engine::{new_id, new_secret};
use crate::life::LifeError;
use crate::life::clock::now_ms;

/// Bytes of one archive.
const MAX_ARCHIVE: u64 = 2 << 30;

/// Bytes of all archives of an owner; the oldest make room.
const MAX_OWNER: u64 = 8 << 30;

/// How long an address for an upload is good.
const TICKET_MS: u64 = 3600 * 1000;

/// How the name of an archive that is not complete ends.
const PARTIAL: &str = ".part";

/// Uploaded archives.
pub struct Uploads {
    folder: PathBuf,
    /// Signs addresses; good as long as this server runs.
    key: String,
}

/// Why an archive was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UploadError {
    /// Too many bytes.
    #[error("the archive is larger than {} bytes", MAX_ARCHIVE)]
    TooLarge,
    /// The host's disk.
    #[error("cannot keep the archive: {0}")]
    Io(#[from] io::Error),
}

impl Uploads {
    /// Kept in this folder. Removes what was not complete when a server ended.
    pub(super) fn open(folder: PathBuf) -> Self {
        for owner in fs::read_dir(&folder).into_iter().flatten().flatten() {
            for file in fs::read_dir(owner.path()).into_iter().flatten().flatten() {
                if file.file_name().to_string_lossy().ends_with(PARTIAL) {
                    let _ = fs::remove_file(file.path());
                }
            }
        }
        Self { folder, key: new_secret() }
    }

    /// Refuses what is no hash: it becomes a file name.
    pub fn check_hash(hash: &str) -> Result<(), LifeError> {
        if (16..=128).contains(&hash.len()) && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(());
        }
        Err(LifeError::Invalid("the hash of files must be 16 to 128 hexadecimal digits".into()))
    }

    /// Whether it is there.
    pub fn has(&self, owner: &str, hash: &str) -> bool {
        Self::check_hash(hash).is_ok() && self.path(owner, hash).is_file()
    }

    pub(super) fn path(&self, owner: &str, hash: &str) -> PathBuf {
        self.folder_of(owner).join(hash.to_ascii_lowercase())
    }

    /// An owner's folder: a name that is safe whatever the owner is called.
    fn folder_of(&self, owner: &str) -> PathBuf {
        self.folder.join(&hex(&Sha256::digest(owner.as_bytes()))[..32])
    }

    /// What makes an address for an upload good: when it ends, in milliseconds since 1970, and a signature.
    pub fn ticket(&self, owner: &str, hash: &str) -> (u64, String) {
        let expires = now_ms() + TICKET_MS;
        (expires, self.sign(owner, hash, expires))
    }

    /// Whether an address is good.
    pub fn admits(&self, owner: &str, hash: &str, expires: u64, signature: &str) -> bool {
        // Digests are compared: where they differ says nothing of the signature.
        let right = Sha256::digest(self.sign(owner, hash, expires).as_bytes());
        now_ms() <= expires && Sha256::digest(signature.as_bytes()) == right
    }

    fn sign(&self, owner: &str, hash: &str, expires: u64) -> String {
        let message = format!("{}\n{owner}\n{}\n{expires}", self.key, hash.to_ascii_lowercase());
        let inner = hex(&Sha256::digest(message.as_bytes()));
        hex(&Sha256::digest(format!("{}\n{inner}", self.key).as_bytes()))
    }

    /// Takes an archive.
    pub async fn receive(&self, owner: &str, hash: &str) -> Result<Incoming, LifeError> {
        Self::check_hash(hash)?;
        let target = self.path(owner, hash);
        let folder = self.folder_of(owner);
        let failed = |error| LifeError::Io("cannot keep an upload".into(), error);
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&folder).map_err(failed)?;
        let part = folder.join(format!("{}{PARTIAL}", new_id()));
        let file = File::create_new(&part).await.map_err(failed)?;
        Ok(Incoming { file, part, target, length: 0 })
    }
}

/// An archive on its way in. Dropping it before [`Self::finish`] forgets it.
pub struct Incoming {
    file: File,
    part: PathBuf,
    target: PathBuf,
    length: u64,
}

impl Incoming {
    /// Takes some of it.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), UploadError> {
        self.length += bytes.len() as u64;
        if self.length > MAX_ARCHIVE {
            return Err(UploadError::TooLarge);
        }
        Ok(self.file.write_all(bytes).await?)
    }

    /// That was all.
    pub async fn finish(mut self) -> Result<(), UploadError> {
        self.file.flush().await?;
        tokio::fs::rename(&self.part, &self.target).await?;
        let target = self.target.clone();
        let _ = tokio::task::spawn_blocking(move || make_room(&target, MAX_OWNER)).await;
        Ok(())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // It is not there any more if it was finished.
        let _ = fs::remove_file(&self.part);
    }
}

/// Removes the oldest archives beside this one until they are small enough together.
fn make_room(newest: &Path, most: u64) {
    let Some(folder) = newest.parent() else { return };
    let mut others: Vec<(SystemTime, u64, PathBuf)> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|file| file.path() != newest)
        .filter_map(|file| {
            let metadata = file.metadata().ok()?;
            Some((metadata.modified().ok()?, metadata.len(), file.path()))
        })
        .collect();
    others.sort();
    let newest = fs::metadata(newest).map_or(0, |metadata| metadata.len());
    let mut total = newest + others.iter().map(|(_, length, _)| length).sum::<u64>();
    for (_, length, path) in others {
        if total <= most {
            break;
        }
        if !path.to_string_lossy().ends_with(PARTIAL) && fs::remove_file(&path).is_ok() {
            total -= length;
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "0123456789abcdef";

    #[tokio::test]
    async fn an_archive_is_there_when_it_is_complete_and_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let uploads = Uploads::open(folder.path().to_owned());
        let mut incoming = uploads.receive("a", HASH).await.unwrap();
        incoming.write(b"some").await.unwrap();
        assert!(!uploads.has("a", HASH));
        drop(incoming);
        assert!(!uploads.has("a", HASH));
        let mut incoming = uploads.receive("a", HASH).await.unwrap();
        incoming.write(b"all").await.unwrap();
        incoming.finish().await.unwrap();
        assert!(uploads.has("a", HASH) && !uploads.has("b", HASH));
        assert_eq!(fs::read(uploads.path("a", HASH)).unwrap(), b"all");
        for bad in ["../../etc/passwd", "", "0123", &"0".repeat(200)] {
            assert!(uploads.receive("a", bad).await.is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_is_good_for_what_it_was_made_for() {
        let folder = tempfile::tempdir().unwrap();
        let uploads = Uploads::open(folder.path().to_owned());
        let (expires, signature) = uploads.ticket("a", HASH);
        assert!(uploads.admits("a", HASH, expires, &signature));
        assert!(!uploads.admits("b", HASH, expires, &signature));
        assert!(!uploads.admits("a", "ffffffffffffffff", expires, &signature));
        assert!(!uploads.admits("a", HASH, expires + 1, &signature));
        assert!(!uploads.admits("a", HASH, 1, &uploads.sign("a", HASH, 1)));
    }

    #[test]
    fn the_oldest_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, age: u64| {
            let path = folder.path().join(name);
            fs::write(&path, [0; 10]).unwrap();
            let when = SystemTime::now() - std::time::Duration::from_secs(age);
            fs::File::options().write(true).open(&path).unwrap().set_modified(when).unwrap();
            path
        };
        let (old, middle, new) = (file("old", 30), file("middle", 20), file("new", 10));
        make_room(&new, 20);
        assert!(!old.exists() && middle.exists() && new.exists());
        make_room(&new, 5);
        assert!(!middle.exists() && new.exists());
    }
}
