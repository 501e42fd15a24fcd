//! Reading, also while others write.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::error::LedgerError;
use crate::event::Event;
use crate::folder::{self, Folder};
use crate::line::{self, LINE_MAX};

/// How often a follower looks for more.
const POLL: Duration = Duration::from_millis(25);

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its number: from 1, without gaps.
    pub seq: u64,
    /// When, in milliseconds since 1970. Clocks may be turned back; numbers are not.
    pub time_ms: u64,
    /// The sandbox it is about.
    pub sandbox: Option<String>,
    /// Who did it.
    pub actor: String,
    /// What kind of event.
    pub kind: String,
    /// Its hash.
    pub hash: String,
    line: String,
    event: std::ops::Range<usize>,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(default)]
    kind: String,
}

impl Record {
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let parsed = line::parse(bytes)?;
        let event = parsed.event.get();
        let kind = serde_json::from_str::<Kind>(event).map(|kind| kind.kind).unwrap_or_default();
        let start = (event.as_ptr() as usize).checked_sub(bytes.as_ptr() as usize)?;
        Some(Self {
            seq: parsed.seq,
            time_ms: parsed.time_ms,
            sandbox: parsed.sandbox,
            actor: parsed.actor,
            kind,
            hash: parsed.hash.to_owned(),
            event: start..start + event.len(),
            line: String::from_utf8(bytes.to_vec()).ok()?,
        })
    }

    /// The record exactly as it was written, without the line's end.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// The event exactly as it was written.
    pub fn event_json(&self) -> &str {
        self.line.get(self.event.clone()).unwrap_or("null")
    }

    /// The event. A kind that this version does not know is [`Event::Unknown`].
    pub fn event(&self) -> Event {
        serde_json::from_str(self.event_json()).unwrap_or(Event::Unknown(serde_json::Value::Null))
    }
}

/// Which records. The default is all.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only those about this sandbox.
    pub sandbox: Option<String>,
    /// Only these kinds, such as `exec_started`; all if empty.
    pub kinds: Vec<String>,
    /// Only those of this time or later.
    pub since_ms: Option<u64>,
    /// Only those before this time.
    pub until_ms: Option<u64>,
    /// Only those with a higher number. Cheap, however long the ledger.
    pub after_seq: u64,
    /// At most so many.
    pub limit: Option<u64>,
}

impl Filter {
    /// Whether a record is one of those; the limit is not looked at.
    pub fn matches(&self, record: &Record) -> bool {
        record.seq > self.after_seq
            && self.sandbox.as_ref().is_none_or(|sandbox| record.sandbox.as_ref() == Some(sandbox))
            && self.since_ms.is_none_or(|since| record.time_ms >= since)
            && self.until_ms.is_none_or(|until| record.time_ms < until)
            && (self.kinds.is_empty() || self.kinds.contains(&record.kind))
    }
}

/// Goes through the records in constant memory. After the last one it gives `None`, and goes on when there are more.
pub struct Reader {
    folder: Folder,
    filter: Filter,
    open: Option<Open>,
    given: u64,
}

/// The segment that is being read.
struct Open {
    number: u32,
    file: BufReader<File>,
    /// Where the next line starts.
    at: u64,
    line: u64,
}

impl Reader {
    /// The records in `<data>/ledger` that match, oldest first.
    pub fn new(data: &Path, filter: Filter) -> Self {
        Self::in_folder(Folder::below(data), filter)
    }

    pub(crate) fn in_folder(folder: Folder, filter: Filter) -> Self {
        Self { folder, filter, open: None, given: 0 }
    }

    /// The next complete line, without its end; `None` at the end.
    fn line(&mut self) -> Result<Option<Vec<u8>>, LedgerError> {
        if self.open.is_none() {
            self.open = self.start()?;
        }
        loop {
            let Some(open) = &mut self.open else { return Ok(None) };
            if let Some(line) = open.line(&self.folder)? {
                return Ok(Some(line));
            }
            // When there is a next segment, this one is complete: but it may have grown since it was looked at.
            let number = open.number;
            let Some(next) = self.folder.segments()?.into_iter().find(|next| *next > number) else { return Ok(None) };
            if let Some(line) = open.line(&self.folder)? {
                return Ok(Some(line));
            }
            let Some(next) = Open::new(&self.folder, next)? else { return Ok(None) };
            self.open = Some(next);
        }
    }

    /// The segment and place where the wanted records begin.
    fn start(&self) -> Result<Option<Open>, LedgerError> {
        let numbers = self.folder.segments()?;
        let mut found = None;
        for number in numbers.into_iter().rev() {
            let Some(mut open) = Open::new(&self.folder, number)? else { continue };
            if self.filter.after_seq > 0
                && open.first_seq(&self.folder)?.is_some_and(|seq| seq <= self.filter.after_seq)
            {
                open.skip_to(self.filter.after_seq, &self.folder)?;
                return Ok(Some(open));
            }
            found = Some(open);
        }
        Ok(found)
    }

    /// The number of the last record, 0 if there is none.
    pub fn last_seq(&self) -> Result<u64, LedgerError> {
        for number in self.folder.segments()?.into_iter().rev() {
            let path = self.folder.segment(number);
            let Some(open) = Open::new(&self.folder, number)? else { continue };
            let mut file = open.file.into_inner();
            let mut last = || {
                let end = folder::complete(&mut file)?;
                folder::line_before(&mut file, end)
            };
            let (_, line) = last().map_err(LedgerError::io("read", &path))?;
            if let Some(record) = line::parse(&line) {
                return Ok(record.seq);
            }
        }
        Ok(0)
    }
}

impl Open {
    fn new(folder: &Folder, number: u32) -> Result<Option<Self>, LedgerError> {
        let path = folder.segment(number);
        match File::open(&path) {
            // Pruned meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            file => {
                let file = BufReader::with_capacity(64 * 1024, file.map_err(LedgerError::io("open", &path))?);
                Ok(Some(Self { number, file, at: 0, line: 0 }))
            }
        }
    }

    fn line(&mut self, folder: &Folder) -> Result<Option<Vec<u8>>, LedgerError> {
        self.read_line().map_err(|error| LedgerError::io("read", &folder.segment(self.number))(error))
    }

    /// A line that is too long is given cut: it is not a record, whatever it says.
    fn read_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let read = (&mut self.file).take(LINE_MAX as u64).read_until(b'\n', &mut line)?;
        let skipped = match line.pop_if(|last| *last == b'\n') {
            Some(_) => Some(0),
            None if read == LINE_MAX => self.skip_line()?,
            None => None,
        };
        match skipped {
            Some(skipped) => {
                self.at += read as u64 + skipped;
                self.line += 1;
                Ok(Some(line))
            }
            // Half a line: somebody is writing it, or died. Read again from its start next time.
            None => self.file.seek(SeekFrom::Start(self.at)).map(|_| None),
        }
    }

    /// How long the rest of the line is; `None` if it has no end yet.
    fn skip_line(&mut self) -> io::Result<Option<u64>> {
        let mut skipped = 0;
        loop {
            let part = self.file.fill_buf()?;
            if part.is_empty() {
                return Ok(None);
            }
            let found = part.iter().position(|byte| *byte == b'\n');
            let used = found.map_or(part.len(), |at| at + 1);
            self.file.consume(used);
            skipped += used as u64;
            if found.is_some() {
                return Ok(Some(skipped));
            }
        }
    }

    fn first_seq(&mut self, folder: &Folder) -> Result<Option<u64>, LedgerError> {
        let line = self.line(folder)?;
        self.seek(0, folder)?;
        Ok(line.and_then(|line| Some(line::parse(&line)?.seq)))
    }

    fn seek(&mut self, at: u64, folder: &Folder) -> Result<(), LedgerError> {
        let path = folder.segment(self.number);
        self.file.seek(SeekFrom::Start(at)).map_err(LedgerError::io("read", &path))?;
        (self.at, self.line) = (at, 0);
        Ok(())
    }

    /// To a place before the record behind `seq`, near it: by halving, since numbers only grow.
    fn skip_to(&mut self, seq: u64, folder: &Folder) -> Result<(), LedgerError> {
        let length =
            self.file.get_ref().metadata().map_err(LedgerError::io("read", &folder.segment(self.number)))?.len();
        // `low` is always a line's start with a number that is not too high.
        let (mut low, mut high) = (0, length);
        while high - low > 64 * 1024 {
            let middle = low + (high - low) / 2;
            self.seek(middle, folder)?;
            // The rest of the line that `middle` falls into.
            if self.line(folder)?.is_none() {
                break;
            }
            let start = self.at;
            let next = self.line(folder)?.and_then(|line| Some(line::parse(&line)?.seq));
            match next {
                Some(next) if next <= seq && start < high => low = start,
                Some(_) => high = middle,
                // Damaged: reading from `low` will say so.
                None => break,
            }
        }
        self.seek(low, folder)
    }
}

impl Iterator for Reader {
    type Item = Result<Record, LedgerError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.filter.limit.is_none_or(|limit| self.given < limit) {
            let line = match self.line() {
                Ok(line) => line?,
                Err(error) => return Some(Err(error)),
            };
            let Some(record) = Record::parse(&line) else {
                let (segment, line) = self.open.as_ref().map_or((0, 0), |open| (open.number, open.line));
                return Some(Err(LedgerError::Damaged { segment, line }));
            };
            if self.filter.matches(&record) {
                self.given += 1;
                return Some(Ok(record));
            }
        }
        None
    }
}

/// The records that are there and those that come, of all processes.
pub struct Follow {
    reader: Reader,
}

impl Follow {
    pub(crate) fn new(reader: Reader) -> Self {
        Self { reader }
    }

    /// The records in `<data>/ledger` that match.
    pub fn open(data: &Path, filter: Filter) -> Self {
        Self::new(Reader::new(data, filter))
    }

    /// The next record, if it is there within `patience`.
    pub fn next_within(&mut self, patience: Duration) -> Result<Option<Record>, LedgerError> {
        let start = Instant::now();
        loop {
            if let Some(record) = self.reader.next() {
                return record.map(Some);
            }
            let Some(left) = patience.checked_sub(start.elapsed()) else { return Ok(None) };
            std::thread::sleep(left.min(POLL));
        }
    }

    /// The next record, however long it takes. Can be dropped and called again without losing one.
    pub async fn next(&mut self) -> Result<Record, LedgerError> {
        loop {
            if let Some(record) = self.reader.next() {
                return record;
            }
            tokio::time::sleep(POLL).await;
        }
    }
}
