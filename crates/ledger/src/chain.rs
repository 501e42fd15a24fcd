//! The end of the chain: where records are appended, under the lock.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use serde::Serialize;

use crate::error::LedgerError;
use crate::event::{Event, Recovered};
use crate::folder::{self, Folder, Lock};
use crate::line::{self, Draft, Hash, NO_HASH};
use crate::sign::{Checkpoint, Head, Key, PublicKey, json_line};

/// When the file of heads is this long, its older half goes: each head speaks for all records before it.
const HEADS_MAX: u64 = 4 << 20;

/// The ledger as a writer has it.
pub(crate) struct Chain {
    pub(crate) folder: Folder,
    pub(crate) key: Key,
    lock: Arc<Lock>,
    segment_bytes: u64,
    sync: bool,
    tail: Option<Tail>,
    /// The newest head, as long as the file of heads is the one that it was found in, and of that length.
    newest: Option<(FileMark, Option<Head>)>,
}

/// Tells whether a file that is only appended to is still what it was.
type FileMark = (u64, u64);

/// What the last writer left.
struct Tail {
    number: u32,
    file: File,
    len: u64,
    seq: u64,
    hash: Hash,
}

/// What [`Chain::append`] has written, also when it failed half-way.
#[derive(Default)]
pub(crate) struct Appended {
    /// The lines.
    pub lines: Vec<u8>,
    /// How many of the drafts.
    pub drafts: usize,
}

impl Chain {
    /// Makes what is missing.
    pub fn open(folder: &Folder, segment_bytes: u64, sync: bool) -> Result<Self, LedgerError> {
        folder.create()?;
        let lock = Arc::new(folder.open_lock()?);
        let held = lock.take()?;
        let key = Key::open(folder)?;
        // Before the first record there is a head: a ledger without any has been tampered with.
        if !folder.heads().exists() && folder.segments()?.is_empty() {
            folder::replace(&folder.heads(), &json_line(&key.head(0, &NO_HASH)))?;
        }
        drop(held);
        Ok(Self { folder: folder.clone(), key, lock, segment_bytes, sync, tail: None, newest: None })
    }

    /// Appends the drafts in order.
    pub fn append(&mut self, drafts: &[Draft], appended: &mut Appended) -> Result<(), LedgerError> {
        self.locked(|chain| chain.append_locked(drafts, appended))
    }

    /// Signs the end of the chain, if no head speaks for it yet.
    pub fn sign(&mut self) -> Result<Head, LedgerError> {
        self.locked(Self::sign_locked)
    }

    /// Runs with the lock held.
    pub fn locked<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, LedgerError>) -> Result<T, LedgerError> {
        let lock = self.lock.clone();
        let _held = lock.take()?;
        work(self)
    }

    /// The last segment, which is being written.
    pub fn current(&mut self) -> Result<u32, LedgerError> {
        self.append_locked(&[], &mut Appended::default())?;
        Ok(self.tail.as_ref().map_or(0, |tail| tail.number))
    }

    /// [`Chain::append`] for who holds the lock.
    pub fn append_locked(&mut self, drafts: &[Draft], appended: &mut Appended) -> Result<(), LedgerError> {
        let (mut tail, found) = self.catch_up()?;
        let result = self.write(&mut tail, found, drafts, appended);
        if result.is_ok() {
            self.tail = Some(tail);
        } else {
            // A full disk leaves part of what was to be written.
            let _ = tail.file.set_len(tail.len);
        }
        result
    }

    fn write(
        &self,
        tail: &mut Tail,
        found: Recovered,
        drafts: &[Draft],
        appended: &mut Appended,
    ) -> Result<(), LedgerError> {
        let mended = (found != Recovered::default()).then(|| draft(None, "ledger", &Event::Recovered(found)));
        let first = usize::from(mended.is_some());
        let mut pending = Vec::new();
        for (at, draft) in mended.iter().chain(drafts).enumerate() {
            if tail.len + pending.len() as u64 >= self.segment_bytes {
                self.put(tail, &pending)?;
                appended.lines.append(&mut pending);
                appended.drafts = at.saturating_sub(first);
                self.rotate(tail)?;
            }
            tail.hash = line::write(&mut pending, tail.seq + 1, draft, &tail.hash);
            tail.seq += 1;
        }
        self.put(tail, &pending)?;
        appended.lines.append(&mut pending);
        appended.drafts = drafts.len();
        Ok(())
    }

    fn put(&self, tail: &mut Tail, lines: &[u8]) -> Result<(), LedgerError> {
        if lines.is_empty() {
            return Ok(());
        }
        let path = self.folder.segment(tail.number);
        let written = tail.file.seek(SeekFrom::Start(tail.len)).and_then(|_| tail.file.write_all(lines));
        written.map_err(LedgerError::io("append to", &path))?;
        tail.len += lines.len() as u64;
        Ok(())
    }

    fn rotate(&self, tail: &mut Tail) -> Result<(), LedgerError> {
        self.settle(tail)?;
        let path = self.folder.segment(tail.number + 1);
        let file = folder::private().create_new(true).open(&path).map_err(LedgerError::io("make", &path))?;
        (tail.number, tail.file, tail.len) = (tail.number + 1, file, 0);
        if self.sync { self.folder.sync() } else { Ok(()) }
    }

    /// Brings a segment to the disk, if that was asked for.
    fn settle(&self, tail: &Tail) -> Result<(), LedgerError> {
        if !self.sync {
            return Ok(());
        }
        tail.file.sync_data().map_err(LedgerError::io("sync", &self.folder.segment(tail.number)))
    }

    /// The end of the chain as it is now; what was broken there has been mended.
    fn catch_up(&mut self) -> Result<(Tail, Recovered), LedgerError> {
        let Some(tail) = self.tail.take() else { return self.load(0) };
        let now = tail.file.metadata().map_err(LedgerError::io("read", &self.folder.segment(tail.number)))?;
        let last = !self.folder.segment(tail.number + 1).exists();
        if last && now.len() == tail.len && now.nlink() > 0 {
            return Ok((tail, Recovered::default()));
        }
        self.load(tail.seq)
    }

    /// Reads the end of the chain. `known` is a record that is sure to have existed.
    fn load(&mut self, known: u64) -> Result<(Tail, Recovered), LedgerError> {
        let numbers = self.folder.segments()?;
        let checkpoint = checkpoint(&self.folder)?;
        let number = numbers.last().copied().unwrap_or_else(|| checkpoint.as_ref().map_or(0, |at| at.segment) + 1);
        let path = self.folder.segment(number);
        let mut file =
            folder::private().create(true).truncate(false).open(&path).map_err(LedgerError::io("open", &path))?;
        let (len, torn_bytes) = cut_torn(&mut file).map_err(LedgerError::io("mend", &path))?;
        let mut found = Recovered { torn_bytes, ..Recovered::default() };

        let (mut seq, mut hash) = match &checkpoint {
            Some(at) => (at.seq, line::hash(&at.hash).unwrap_or(NO_HASH)),
            None => (0, NO_HASH),
        };
        for number in numbers.iter().rev() {
            if let Some(last) = self.last_record(*number, &mut found.damaged_lines)? {
                (seq, hash) = last;
                break;
            }
        }
        seq += found.damaged_lines;
        // Numbers are never given twice: a gap shows what is missing.
        let signed = self.last_head()?.map_or(0, |head| head.seq);
        found.lost_records = signed.max(known).saturating_sub(seq);
        seq += found.lost_records;
        Ok((Tail { number, file, len, seq, hash }, found))
    }

    /// The last sound record of a segment; lines behind it that are not are counted.
    fn last_record(&self, number: u32, damaged: &mut u64) -> Result<Option<(u64, Hash)>, LedgerError> {
        let path = self.folder.segment(number);
        let mut file = File::open(&path).map_err(LedgerError::io("open", &path))?;
        let mut end = folder::complete(&mut file).map_err(LedgerError::io("read", &path))?;
        while end > 0 {
            let (start, line) = folder::line_before(&mut file, end).map_err(LedgerError::io("read", &path))?;
            let record = line::parse(&line).filter(|_| line::intact(&line));
            if let Some((seq, hash)) = record.and_then(|record| Some((record.seq, line::hash(record.hash)?))) {
                return Ok(Some((seq, hash)));
            }
            *damaged += 1;
            end = start;
        }
        Ok(None)
    }

    /// The newest head that is ours. Signatures take as long to check as to make, so it is remembered.
    fn last_head(&mut self) -> Result<Option<Head>, LedgerError> {
        let mark = std::fs::metadata(self.folder.heads()).ok().map(|heads| (heads.ino(), heads.len()));
        if let (Some(mark), Some((then, head))) = (mark, &self.newest)
            && mark == *then
        {
            return Ok(head.clone());
        }
        let head = last_head(&self.folder, &self.key.public())?;
        self.newest = mark.map(|mark| (mark, head.clone()));
        Ok(head)
    }

    /// [`Chain::sign`] for who holds the lock.
    pub fn sign_locked(&mut self) -> Result<Head, LedgerError> {
        self.append_locked(&[], &mut Appended::default())?;
        let (seq, hash) = self.tail.as_ref().map_or((0, NO_HASH), |tail| (tail.seq, tail.hash));
        if let Some(head) = self.last_head()?.filter(|head| head.seq >= seq) {
            return Ok(head);
        }
        if let Some(tail) = &self.tail {
            self.settle(tail)?;
        }
        let head = self.key.head(seq, &hash);
        let path = self.folder.heads();
        let failed = LedgerError::io("append to", &path);
        let append = || -> std::io::Result<u64> {
            let mut file = folder::private().create(true).truncate(false).open(&path)?;
            let (len, _) = cut_torn(&mut file)?;
            file.seek(SeekFrom::Start(len))?;
            let line = json_line(&head);
            file.write_all(&line)?;
            Ok(len + line.len() as u64)
        };
        if append().map_err(failed)? > HEADS_MAX {
            let all = folder::read(&path)?.unwrap_or_default();
            let half = all.len() / 2;
            let start = all[half..].iter().position(|byte| *byte == b'\n').map_or(0, |at| half + at + 1);
            folder::replace(&path, &all[start..])?;
        }
        Ok(head)
    }
}

/// Cuts off what is behind the last complete line; the length that is left, and how much went.
fn cut_torn(file: &mut File) -> std::io::Result<(u64, u64)> {
    let whole = file.metadata()?.len();
    let len = folder::complete(file)?;
    if len < whole {
        file.set_len(len)?;
    }
    Ok((len, whole - len))
}

/// The newest head in the file that this key signed.
pub(crate) fn last_head(folder: &Folder, key: &PublicKey) -> Result<Option<Head>, LedgerError> {
    let path = folder.heads();
    let mut file = match File::open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(LedgerError::io("open", &path))?,
    };
    let mut end = folder::complete(&mut file).map_err(LedgerError::io("read", &path))?;
    while end > 0 {
        let (start, line) = folder::line_before(&mut file, end).map_err(LedgerError::io("read", &path))?;
        let head = serde_json::from_slice::<Head>(&line).ok().filter(|head| head.is_signed_by(key));
        if head.is_some() {
            return Ok(head);
        }
        end = start;
    }
    Ok(None)
}

/// What was removed on purpose, if anything; whether the signature holds is for the caller to see.
pub(crate) fn checkpoint(folder: &Folder) -> Result<Option<Checkpoint>, LedgerError> {
    Ok(folder::read(&folder.checkpoint())?.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// An event of now, ready to be chained.
pub(crate) fn draft(sandbox: Option<&str>, actor: &str, event: &Event) -> Draft {
    Draft { time_ms: crate::now_ms(), sandbox: json(&sandbox), actor: json(&actor), event: json(event) }
}

/// What cannot become JSON is `null`: a record without its content is better than none.
pub(crate) fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_else(|_| b"null".to_vec())
}
