//! The thread that writes.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::broadcast;

use crate::chain::{Appended, Chain, draft, json};
use crate::error::LedgerError;
use crate::event::{Event, Oversize, Recovered};
use crate::folder::Folder;
use crate::ledger::Options;
use crate::line::{Draft, EVENT_MAX, hex};
use crate::queue::Queue;
use crate::reader::Record;
use crate::text::{Name, Text};

/// One lock and one write for so many bytes at most.
const BATCH_BYTES: usize = 1 << 20;

/// A record on its way.
pub(crate) struct Entry {
    pub time_ms: u64,
    pub sandbox: Option<Name>,
    pub actor: Text,
    pub event: Event,
}

/// What the writer is asked.
pub(crate) enum Message {
    Record(Box<Entry>),
    /// Write all and say so.
    Drain(SyncSender<()>),
    /// Write all, sign, and say so.
    Flush(SyncSender<()>),
}

impl Message {
    /// Whether somebody waits for an answer to it.
    pub fn is_waited_for(&self) -> bool {
        matches!(self, Self::Drain(_) | Self::Flush(_))
    }

    #[cfg(test)]
    pub fn nothing() -> Self {
        let event = Event::Recovered(Recovered::default());
        Self::Record(Box::new(Entry { time_ms: 0, sandbox: None, actor: Text::from("test"), event }))
    }
}

/// Tells those who wait for a writer that it has ended, also if it has died.
struct Leaving<'a>(&'a Queue);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// What callers are told of the writer's troubles.
#[derive(Debug, Default)]
pub(crate) struct Status(Mutex<Option<String>>);

impl Status {
    pub fn check(&self) -> Result<(), LedgerError> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(why) => Err(LedgerError::Failing(why.clone())),
            None => Ok(()),
        }
    }

    fn set(&self, why: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}

/// The writer's own state.
pub(crate) struct Writer {
    folder: Folder,
    options: Options,
    status: Arc<Status>,
    watchers: broadcast::Sender<Arc<Record>>,
    chain: Option<Chain>,
    /// Since when records are without a head.
    unsigned: Option<Instant>,
    /// What a failed write left; tried once more.
    waiting: Vec<Draft>,
    unwritten: u64,
}

impl Writer {
    pub fn new(
        folder: Folder,
        options: Options,
        status: Arc<Status>,
        watchers: broadcast::Sender<Arc<Record>>,
    ) -> Self {
        Self { folder, options, status, watchers, chain: None, unsigned: None, waiting: Vec::new(), unwritten: 0 }
    }

    /// Until nothing more will come.
    pub fn run(mut self, queue: &Queue) {
        let _leaving = Leaving(queue);
        while let Some(messages) = queue.take(self.unsigned.map(|since| since + self.options.sign_every)) {
            if messages.is_empty() {
                self.sign();
            } else {
                self.batch(messages);
                queue.nap();
            }
        }
        self.write(Vec::new());
        self.sign();
    }

    /// Writes what is there, and answers.
    fn batch(&mut self, messages: Vec<Message>) {
        let (mut drafts, mut bytes, mut sign, mut answers) = (Vec::new(), 0, false, Vec::new());
        for message in messages {
            match message {
                Message::Record(entry) => {
                    let draft = self.prepare(*entry);
                    bytes += draft.event.len();
                    drafts.push(draft);
                }
                Message::Drain(answer) => answers.push(answer),
                Message::Flush(answer) => {
                    sign = true;
                    answers.push(answer);
                }
            }
            if bytes >= BATCH_BYTES {
                self.write(std::mem::take(&mut drafts));
                bytes = 0;
            }
        }
        self.write(drafts);
        let due = self.unsigned.is_some_and(|since| since.elapsed() >= self.options.sign_every);
        if sign || due {
            self.sign();
        }
        for answer in answers {
            let _ = answer.send(());
        }
    }

    /// As it will stand in the line.
    fn prepare(&self, entry: Entry) -> Draft {
        let redactor = &self.options.redactor;
        let mut event = redactor.json(json(&entry.event));
        if event.len() > EVENT_MAX {
            let kind: Option<String> = serde_json::from_slice::<Kind>(&event).ok().map(|kind| kind.kind);
            let stand_in = Oversize {
                of: kind.unwrap_or_default().into(),
                bytes: event.len() as u64,
                sha256: hex(ring::digest::digest(&ring::digest::SHA256, &event).as_ref()).into(),
            };
            event = json(&Event::Oversize(stand_in));
        }
        let sandbox = entry.sandbox.as_deref().map(|sandbox| redactor.text(sandbox));
        Draft { time_ms: entry.time_ms, sandbox: json(&sandbox), actor: json(&redactor.text(&entry.actor)), event }
    }

    fn write(&mut self, fresh: Vec<Draft>) {
        let retried = self.waiting.len();
        let mut drafts = std::mem::take(&mut self.waiting);
        if self.unwritten > 0 {
            let lost = Recovered { unwritten_records: self.unwritten, ..Recovered::default() };
            drafts.push(draft(None, "ledger", &Event::Recovered(lost)));
        }
        let noted = drafts.len() - retried;
        drafts.extend(fresh);
        if drafts.is_empty() {
            return;
        }
        let mut appended = Appended::default();
        let was_open = self.chain.is_some();
        let mut result = self.chain().and_then(|chain| chain.append(&drafts, &mut appended));
        if result.is_err() && was_open && appended.drafts == 0 {
            // The folder may have been removed or replaced below us.
            self.chain = None;
            result = self.chain().and_then(|chain| chain.append(&drafts, &mut appended));
        }
        if appended.drafts > 0 {
            self.unsigned.get_or_insert_with(Instant::now);
            self.show(&appended.lines);
        }
        match result {
            Ok(()) => {
                self.unwritten = 0;
                self.status.set(None);
            }
            Err(error) => {
                if noted > 0 && appended.drafts > retried {
                    self.unwritten = 0;
                }
                // What was tried before is given up, so that a full disk does not fill the memory too.
                self.unwritten += retried.saturating_sub(appended.drafts) as u64;
                self.waiting = drafts.split_off((retried + noted).max(appended.drafts));
                self.status.set(Some(error.to_string()));
                self.chain = None;
            }
        }
    }

    fn sign(&mut self) {
        if self.unsigned.take().is_none() {
            return;
        }
        match self.chain().and_then(|chain| chain.sign()) {
            Ok(_) if self.waiting.is_empty() => self.status.set(None),
            Ok(_) => {}
            Err(error) => {
                self.unsigned = Some(Instant::now());
                self.status.set(Some(error.to_string()));
                self.chain = None;
            }
        }
    }

    fn chain(&mut self) -> Result<&mut Chain, LedgerError> {
        let chain = match self.chain.take() {
            Some(chain) => chain,
            None => Chain::open(&self.folder, self.options.segment_bytes, self.options.sync)?,
        };
        Ok(self.chain.insert(chain))
    }

    /// To those who watch in this process.
    fn show(&self, lines: &[u8]) {
        if self.watchers.receiver_count() == 0 {
            return;
        }
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            if let Some(record) = Record::parse(line) {
                let _ = self.watchers.send(Arc::new(record));
            }
        }
    }
}

#[derive(serde::Deserialize)]
struct Kind {
    kind: String,
}
