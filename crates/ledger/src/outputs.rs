//! What commands printed, by digest.
//!
//! `outputs/ab/abcd….z` is a whole output, compressed (zlib); `abcd….cut.z` one without its middle or with secrets taken
//! out, whose content therefore is not what the digest says.

use std::borrow::Cow;
use std::fs::{File, Metadata};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

use crate::capture::{KEPT_HEAD, KEPT_TAIL, Output};
use crate::error::LedgerError;
use crate::folder::{Folder, private, private_folder};
use crate::line;
use crate::prune::{Removed, Retention};
use crate::redact::Redactor;

/// No stored output is larger, however it unpacks: the kept parts, the mark, and room for marks of redaction.
const LARGEST: u64 = 4 * (KEPT_HEAD + KEPT_TAIL) as u64;

/// The store of outputs.
#[derive(Debug, Clone)]
pub struct Outputs {
    folder: PathBuf,
    redactor: Redactor,
}

/// An output as it was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredOutput {
    /// What is left of it.
    pub content: Vec<u8>,
    /// Whether that is all, checked against the digest.
    pub complete: bool,
}

impl Outputs {
    pub(crate) fn new(folder: &Folder, redactor: Redactor) -> Self {
        Self { folder: folder.outputs(), redactor }
    }

    /// The store below a data folder, for reading.
    pub fn open(data: &Path) -> Self {
        Self::new(&Folder::below(data), Redactor::default())
    }

    /// Stores an output; one that is there already only becomes young again. Compressing a megabyte takes some
    /// milliseconds: not for a thread that others wait for.
    pub fn save(&self, output: &Output) -> Result<(), LedgerError> {
        let [whole, cut] = self.paths(&output.sha256)?;
        let content = self.clean(output);
        let path = if output.truncated || content != output.kept { cut } else { whole };
        if let Ok(file) = private().open(&path) {
            return file.set_modified(SystemTime::now()).map_err(LedgerError::io("touch", &path));
        }
        let parent = path.parent().unwrap_or(&self.folder);
        private_folder(parent)?;
        // Several processes may store the same output at once; each brings its own file.
        let unique = format!("{}.{}.tmp", output.sha256, std::process::id());
        let beside = parent.join(format!("{unique}{:?}", std::thread::current().id()));
        let write = || -> std::io::Result<()> {
            let file = private().create(true).truncate(true).open(&beside)?;
            let mut encoder = ZlibEncoder::new(file, Compression::fast());
            encoder.write_all(&content)?;
            encoder.finish()?;
            std::fs::rename(&beside, &path)
        };
        write().map_err(|error| {
            let _ = std::fs::remove_file(&beside);
            LedgerError::io("write", &path)(error)
        })
    }

    /// What is kept of it, without secrets; also without the parts of one that lost its middle.
    fn clean<'a>(&self, output: &'a Output) -> Cow<'a, [u8]> {
        let kept = &output.kept;
        if output.truncated && kept.len() > KEPT_HEAD + KEPT_TAIL {
            let (head, tail) = (KEPT_HEAD, kept.len() - KEPT_TAIL);
            let (end, start) = self.redactor.parts(&kept[..head], &kept[tail..]);
            if end + start > 0 {
                let parts = [&kept[..head - end], &kept[head..tail], &kept[tail + start..]].concat();
                return Cow::Owned(self.redactor.bytes(&parts).into_owned());
            }
        }
        self.redactor.bytes(kept)
    }

    /// An output by its digest; `None` if it was never stored, or was pruned.
    pub fn load(&self, sha256: &str) -> Result<Option<StoredOutput>, LedgerError> {
        for (path, complete) in self.paths(sha256)?.iter().zip([true, false]) {
            let Ok(file) = File::open(path) else { continue };
            let mut content = Vec::new();
            let unpacked = ZlibDecoder::new(file).take(LARGEST).read_to_end(&mut content);
            if unpacked.is_err() || (complete && line::sha256(&content) != sha256.as_bytes()) {
                return Err(LedgerError::DamagedOutput(sha256.to_owned()));
            }
            return Ok(Some(StoredOutput { content, complete }));
        }
        Ok(None)
    }

    /// Removes the oldest. The chain keeps their digests.
    pub fn prune(&self, retention: &Retention) -> Result<Removed, LedgerError> {
        let mut files = self.files();
        files.sort_by_key(|(_, metadata)| metadata.modified().ok());
        let mut left: u64 = files.iter().map(|(_, metadata)| metadata.len()).sum();
        let mut removed = Removed::default();
        for (path, metadata) in files {
            let age = metadata.modified().ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
            if retention.max_age.is_none_or(|most| age <= most) && retention.max_bytes.is_none_or(|most| left <= most) {
                break;
            }
            std::fs::remove_file(&path).map_err(LedgerError::io("remove", &path))?;
            left -= metadata.len();
            removed.files += 1;
            removed.bytes += metadata.len();
        }
        Ok(removed)
    }

    /// Whole, or cut. The digest becomes a path: it must be one.
    fn paths(&self, sha256: &str) -> Result<[PathBuf; 2], LedgerError> {
        if sha256.len() != 64 || line::unhex(sha256).is_none() {
            return Err(LedgerError::BadDigest(sha256.chars().take(80).collect()));
        }
        let folder = self.folder.join(&sha256[..2]);
        Ok([folder.join(format!("{sha256}.z")), folder.join(format!("{sha256}.cut.z"))])
    }

    /// Everything there is, with what an interrupted save left.
    fn files(&self) -> Vec<(PathBuf, Metadata)> {
        let inside = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
        let files = inside(&self.folder).flat_map(|folder| inside(&folder.path()).collect::<Vec<_>>());
        files.filter_map(|file| Some((file.path(), file.metadata().ok()?))).collect()
    }
}
