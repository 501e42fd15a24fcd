//! The ledger as its users have it.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::broadcast;

use crate::chain::{self, Chain};
use crate::error::LedgerError;
use crate::event::Event;
use crate::folder::{self, Folder};
use crate::outputs::Outputs;
use crate::prune::{self, Removed, Retention};
use crate::queue::Queue;
use crate::reader::{Filter, Follow, Reader, Record};
use crate::redact::Redactor;
use crate::sign::{Head, PublicKey};
use crate::text::{Name, Text};
use crate::verify::{self, Known, Report};
use crate::writer::{Entry, Message, Status, Writer};

/// How far a subscriber may fall behind: what was told is held meanwhile, and a record can be 256 KiB. The file has the rest.
const BACKLOG: usize = 64;

/// How a ledger is kept.
#[derive(Debug, Clone)]
pub struct Options {
    /// A segment that has reached this size is followed by a new one.
    pub segment_bytes: u64,
    /// How long records may stay without a signed head.
    pub sign_every: Duration,
    /// Whether records are brought to the disk before a head speaks for them. Without, a killed process loses nothing,
    /// but a power cut may lose the last seconds, and verification then says that they are missing.
    pub sync: bool,
    /// Values that must not be written down.
    pub redactor: Redactor,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_bytes: 64 << 20, sign_every: Duration::from_secs(1), sync: false, redactor: Redactor::default() }
    }
}

/// The record of one data folder. Clones share one writer; other processes may write to the same folder.
///
/// Costs nothing until the first record. When the last clone is dropped, all that was recorded is written and signed; a
/// process that exits without dropping it must [`flush`](Ledger::flush).
///
/// All but [`record`](Ledger::record), [`subscribe`](Ledger::subscribe) and [`Follow::next`] wait for files: in async code, for
/// a blocking thread.
#[derive(Clone)]
pub struct Ledger {
    inner: Arc<Inner>,
}

struct Inner {
    folder: Folder,
    options: Options,
    status: Arc<Status>,
    watchers: broadcast::Sender<Arc<Record>>,
    /// Taken by who starts the writer.
    starting: Mutex<()>,
    running: OnceLock<Running>,
}

struct Running {
    queue: Arc<Queue>,
    thread: JoinHandle<()>,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("folder", &self.inner.folder.path()).finish_non_exhaustive()
    }
}

/// Something that is being written and signed.
#[derive(Debug)]
#[must_use = "it has been written and signed only when it has been waited for"]
pub struct Flushing(Option<(Receiver<()>, Arc<Status>)>);

impl Flushing {
    /// Waits until it is; an error says that it cannot be.
    pub fn wait(self) -> Result<(), LedgerError> {
        let Some((waiting, status)) = self.0 else { return Ok(()) };
        let _ = waiting.recv();
        status.check()
    }
}

impl Ledger {
    /// The ledger in `<data>/ledger`. Touches nothing yet.
    pub fn new(data: &Path, options: Options) -> Self {
        let inner = Inner {
            folder: Folder::below(data),
            options,
            status: Arc::default(),
            watchers: broadcast::Sender::new(BACKLOG),
            starting: Mutex::new(()),
            running: OnceLock::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Hands a record to the writer: about a microsecond. Only when thousands are waiting does it block, until there is
    /// room; nothing is dropped.
    ///
    /// `sandbox` is the sandbox's id, if it is about one; `actor` says who did it: `cli`, `key:<id>`, `sandbox`, …
    ///
    /// An error says that the file cannot be written at the moment. The record is then tried once more with the next; who
    /// must not act without a record should stop.
    pub fn record(&self, sandbox: Option<&str>, actor: &str, event: Event) -> Result<(), LedgerError> {
        let entry =
            Entry { time_ms: crate::now_ms(), sandbox: sandbox.map(Name::from), actor: Text::from(actor), event };
        self.send(Message::Record(Box::new(entry)))?;
        self.inner.status.check()
    }

    /// The same for what must not happen unrecorded: where there is little space, it waits until the record is in the file.
    /// Where there is plenty, it takes as long as [`record`](Self::record).
    pub fn record_surely(&self, sandbox: Option<&str>, actor: &str, event: Event) -> Result<(), LedgerError> {
        self.record(sandbox, actor, event)?;
        match self.inner.folder.has_space() {
            true => Ok(()),
            false => self.drain(),
        }
    }

    /// Waits until everything recorded so far is in the file and signed.
    pub fn flush(&self) -> Result<(), LedgerError> {
        self.ask(Message::Flush)
    }

    /// The same for whoever has something else to do before they wait.
    pub fn flush_soon(&self) -> Flushing {
        if self.inner.running.get().is_none() {
            return Flushing(None);
        }
        let (done, waiting) = mpsc::sync_channel(1);
        let status = self.inner.status.clone();
        Flushing(self.send(Message::Flush(done)).is_ok().then_some((waiting, status)))
    }

    /// Waits until everything recorded so far is in the file.
    pub fn drain(&self) -> Result<(), LedgerError> {
        self.ask(Message::Drain)
    }

    fn ask(&self, message: fn(SyncSender<()>) -> Message) -> Result<(), LedgerError> {
        if self.inner.running.get().is_none() {
            return Ok(());
        }
        let (done, waiting) = mpsc::sync_channel(1);
        self.send(message(done))?;
        let _ = waiting.recv();
        self.inner.status.check()
    }

    fn send(&self, message: Message) -> Result<(), LedgerError> {
        let taken = self.running()?.queue.push(message);
        taken.then_some(()).ok_or_else(|| LedgerError::Failing("its writer has died".into()))
    }

    /// The writer, which is started by the first record.
    fn running(&self) -> Result<&Running, LedgerError> {
        let inner = &self.inner;
        if let Some(running) = inner.running.get() {
            return Ok(running);
        }
        let _starting = inner.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = inner.running.get() {
            return Ok(running);
        }
        let queue = Arc::new(Queue::default());
        let writer =
            Writer::new(inner.folder.clone(), inner.options.clone(), inner.status.clone(), inner.watchers.clone());
        let theirs = queue.clone();
        let thread = std::thread::Builder::new().name("ledger".into()).spawn(move || writer.run(&theirs));
        let thread = thread.map_err(LedgerError::io("start a writer for", inner.folder.path()))?;
        Ok(inner.running.get_or_init(|| Running { queue, thread }))
    }

    /// Values that must not be written down; more can be added at any time.
    pub fn redactor(&self) -> &Redactor {
        &self.inner.options.redactor
    }

    /// What commands printed.
    pub fn outputs(&self) -> Outputs {
        Outputs::new(&self.inner.folder, self.inner.options.redactor.clone())
    }

    /// The records of this process as they are written, from now on. Who falls behind by thousands is told how many it
    /// missed, and can [`query`](Self::query) them.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Record>> {
        self.inner.watchers.subscribe()
    }

    /// The records that match, oldest first, with all that this process has recorded so far.
    pub fn query(&self, filter: Filter) -> Result<Reader, LedgerError> {
        self.drain()?;
        Ok(Reader::in_folder(self.inner.folder.clone(), filter))
    }

    /// The records that match, of all processes, and those that are still to come.
    pub fn follow(&self, filter: Filter) -> Follow {
        Follow::new(Reader::in_folder(self.inner.folder.clone(), filter))
    }

    /// The number of the last record in the file, 0 if there is none: where to [`follow`](Self::follow) from.
    pub fn last_seq(&self) -> Result<u64, LedgerError> {
        Reader::in_folder(self.inner.folder.clone(), Filter::default()).last_seq()
    }

    /// The key that heads are checked with; it is made if there is none. To be kept elsewhere.
    pub fn public_key(&self) -> Result<PublicKey, LedgerError> {
        Ok(self.chain()?.key.public())
    }

    /// Writes and signs what was recorded so far. To be kept elsewhere: see [`Known::heads`].
    pub fn head(&self) -> Result<Head, LedgerError> {
        self.drain()?;
        self.chain()?.sign()
    }

    /// Checks the whole chain. See [`verify`](crate::verify()).
    pub fn verify(&self, known: &Known) -> Result<Report, LedgerError> {
        self.drain()?;
        verify::verify_folder(&self.inner.folder, known)
    }

    /// Removes old segments, whole ones only and never the last, and notes it in the chain with a signed checkpoint.
    pub fn prune(&self, retention: &Retention) -> Result<Removed, LedgerError> {
        self.drain()?;
        prune::prune(&mut self.chain()?, retention)
    }

    /// Apart from the writer's, which the file lock keeps apart.
    fn chain(&self) -> Result<Chain, LedgerError> {
        Chain::open(&self.inner.folder, self.inner.options.segment_bytes, self.inner.options.sync)
    }
}

/// The newest signed head of a data folder, without writing anything.
pub fn last_head(data: &Path) -> Result<Option<Head>, LedgerError> {
    let folder = Folder::below(data);
    match public_key(data)? {
        Some(key) => chain::last_head(&folder, &key),
        None => Ok(None),
    }
}

/// The public key of a data folder, if it has one yet.
pub fn public_key(data: &Path) -> Result<Option<PublicKey>, LedgerError> {
    let bytes = folder::read(&Folder::below(data).public_key())?;
    bytes.map(|bytes| String::from_utf8_lossy(&bytes).parse()).transpose()
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(Running { queue, thread }) = self.running.take() {
            // The writer ends after it has written what is left.
            queue.close();
            let _ = thread.join();
        }
    }
}
