//! Proving that nothing was cut, changed or slipped in.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use serde::Serialize;

use crate::error::LedgerError;
use crate::folder::{self, Folder};
use crate::line::{self, LINE_MAX};
use crate::sign::{Checkpoint, Head, PublicKey, json_line};

/// So many problems are listed; the rest are counted.
const LISTED: usize = 100;
/// The file of heads is kept far below this.
const HEADS_MAX: u64 = 64 << 20;

/// What is known about a ledger from elsewhere. All of it is optional; each part proves more.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// The public key. Without, the one in the folder is believed.
    pub key: Option<PublicKey>,
    /// Heads that were kept elsewhere: the chain must contain them. They also reveal a tail that was removed together with
    /// the heads that spoke for it.
    pub heads: Vec<Head>,
}

/// What verification found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// How many records there are.
    pub records: u64,
    /// The first of them.
    pub first_seq: u64,
    /// The last of them.
    pub last_seq: u64,
    /// The last one's hash.
    pub last_hash: String,
    /// In how many segments.
    pub segments: u64,
    /// How many signed heads agree with the chain.
    pub heads: u64,
    /// The last record that a head speaks for. Later ones are chained, but not signed yet.
    pub signed_seq: u64,
    /// Half a line at the end, from a process that died or is still writing. No harm: it is cut off by the next writer.
    pub torn_bytes: u64,
    /// What was removed on purpose.
    pub pruned: Option<Checkpoint>,
    /// The key that signatures were checked with.
    pub key: Option<String>,
    /// What is wrong, up to a hundred of them.
    pub problems: Vec<Problem>,
    /// How much is wrong.
    pub problem_count: u64,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0
    }
}

/// Something wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file.
    pub file: String,
    /// The line in it, from 1.
    pub line: Option<u64>,
    /// The record's number, as far as it can be read.
    pub seq: Option<u64>,
    /// What it is.
    #[serde(flatten)]
    pub defect: Defect,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        if let Some(seq) = self.seq {
            write!(f, ", record {seq}")?;
        }
        write!(f, ": {}", self.defect)
    }
}

/// What can be wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "defect", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Defect {
    /// Not a record.
    #[error("this line is not a record")]
    Malformed,
    /// Its hash is not its own.
    #[error("the record was changed after it was written")]
    Altered,
    /// Numbers are missing before it.
    #[error("records {from} to {to} are missing before this one")]
    Missing {
        /// The first that is missing.
        from: u64,
        /// The last that is missing.
        to: u64,
    },
    /// Its number was there already.
    #[error("record {expected} belongs here: this one was moved, repeated or slipped in")]
    Misplaced {
        /// What belongs here.
        expected: u64,
    },
    /// Its predecessor is another.
    #[error("the record before it is not the one it was written after")]
    Unlinked,
    /// A segment is missing.
    #[error("segments {from} to {to} are missing")]
    MissingSegments {
        /// The first that is missing.
        from: u32,
        /// The last that is missing.
        to: u32,
    },
    /// The end is missing.
    #[error("a signed head speaks for records up to {to}, but the ledger ends at {last}: its end was removed")]
    CutOff {
        /// The last record there is.
        last: u64,
        /// The last record there was.
        to: u64,
    },
    /// The chain is not the one that was signed.
    #[error("the chain up to here is not the one that was signed: it was rewritten")]
    NotAsSigned,
    /// A head from elsewhere is not in the chain.
    #[error("the head that was kept elsewhere does not belong to this chain")]
    ForeignHead,
    /// A head is not signed by the ledger's key.
    #[error("the head's signature is not good")]
    BadHead,
    /// Heads are out of order.
    #[error("the head was moved or repeated")]
    MisplacedHead,
    /// There is no head.
    #[error("there are records but no signed heads: they were removed")]
    NoHeads,
    /// There is no key.
    #[error("there is no public key to check signatures with")]
    NoKey,
    /// The checkpoint is not signed by the ledger's key.
    #[error("the note of what was pruned is not good")]
    BadCheckpoint,
}

/// Checks the ledger in `<data>/ledger` from its first record to its last, in constant memory. Nothing is written; others
/// may go on writing.
pub fn verify(data: &Path, known: &Known) -> Result<Report, LedgerError> {
    verify_folder(&Folder::below(data), known)
}

pub(crate) fn verify_folder(folder: &Folder, known: &Known) -> Result<Report, LedgerError> {
    // Between two writes, so that no head speaks for a record that is not seen.
    let paused = folder.pause_writers();
    let heads = folder::read(&folder.heads())?;
    let checkpoint = folder::read(&folder.checkpoint())?;
    let numbers = folder.segments()?;
    let last = numbers.last().map(|number| open(folder, *number)).transpose()?.flatten();
    if paused.is_none() && folder.pause_writers().is_some() {
        // The first writer has just come: what was read may be half of what it made.
        return verify_folder(folder, known);
    }
    drop(paused);

    let mut check = Check::new(folder, known)?;
    check.read_heads(heads, !numbers.is_empty(), known);
    let pruned = check.read_checkpoint(checkpoint);
    let mut before = pruned;
    for (at, number) in numbers.iter().enumerate().filter(|(_, number)| **number > pruned) {
        let is_last = at + 1 == numbers.len();
        let file = if is_last { last.as_ref().and_then(again) } else { open(folder, *number)? };
        // Pruned meanwhile: once more, with the note of it.
        let Some((file, length)) = file else { return verify_folder(folder, known) };
        if *number != before + 1 {
            let defect = Defect::MissingSegments { from: before + 1, to: *number - 1 };
            check.problem(&name(*number), None, None, defect);
        }
        before = *number;
        check
            .segment(*number, file.take(length), is_last)
            .map_err(LedgerError::io("read", &folder.segment(*number)))?;
    }
    Ok(check.finish())
}

type Opened = (File, u64);

fn open(folder: &Folder, number: u32) -> Result<Option<Opened>, LedgerError> {
    let path = folder.segment(number);
    let file = match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(LedgerError::io("open", &path))?,
    };
    let length = file.metadata().map_err(LedgerError::io("read", &path))?.len();
    Ok(Some((file, length)))
}

fn again((file, length): &Opened) -> Option<Opened> {
    Some((file.try_clone().ok()?, *length))
}

fn name(number: u32) -> String {
    format!("{number:08}.log")
}

struct Check {
    report: Report,
    key: Option<PublicKey>,
    /// What the next record must be.
    seq: u64,
    prev: String,
    /// Heads that no record was found for yet: hash, and the line in the file of heads, or none if from elsewhere.
    heads: BTreeMap<u64, Vec<(String, Option<u64>)>>,
}

impl Check {
    fn new(folder: &Folder, known: &Known) -> Result<Self, LedgerError> {
        let file = folder::read(&folder.public_key())?;
        let own = file.and_then(|bytes| String::from_utf8_lossy(&bytes).parse().ok());
        let key = known.key.or(own);
        let report = Report { key: key.map(|key| key.to_string()), ..Report::default() };
        let prev = String::from_utf8_lossy(&line::NO_HASH).into_owned();
        Ok(Self { report, key, seq: 1, prev, heads: BTreeMap::new() })
    }

    fn problem(&mut self, file: &str, line: Option<u64>, seq: Option<u64>, defect: Defect) {
        self.report.problem_count += 1;
        if self.report.problems.len() < LISTED {
            self.report.problems.push(Problem { file: file.to_owned(), line, seq, defect });
        }
    }

    fn read_heads(&mut self, content: Option<Vec<u8>>, records: bool, known: &Known) {
        let mut content = content.unwrap_or_default();
        content.truncate(usize::try_from(HEADS_MAX).unwrap_or(usize::MAX));
        if self.key.is_none() && (records || !content.is_empty()) {
            self.problem("key.pub", None, None, Defect::NoKey);
        }
        if records && content.is_empty() {
            self.problem("heads", None, None, Defect::NoHeads);
        }
        let mut before = None;
        for (at, line) in content.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let number = Some(at as u64 + 1);
            if !line.ends_with(b"\n") {
                if !is_torn(line) {
                    self.problem("heads", number, None, Defect::BadHead);
                }
                continue;
            }
            let head = serde_json::from_slice::<Head>(line).ok().filter(|head| json_line(head) == line);
            let Some(head) = head.filter(|head| self.key.is_some_and(|key| head.is_signed_by(&key))) else {
                self.problem("heads", number, None, Defect::BadHead);
                continue;
            };
            if before.is_some_and(|before| before >= head.seq) {
                self.problem("heads", number, Some(head.seq), Defect::MisplacedHead);
            }
            before = before.max(Some(head.seq));
            self.expect(head, number);
        }
        for head in &known.heads {
            if self.key.is_some_and(|key| head.is_signed_by(&key)) {
                self.expect(head.clone(), None);
            } else {
                self.problem("head from elsewhere", None, Some(head.seq), Defect::BadHead);
            }
        }
    }

    fn expect(&mut self, head: Head, line: Option<u64>) {
        if head.seq == 0 {
            self.report.heads += 1;
        } else {
            self.heads.entry(head.seq).or_default().push((head.hash, line));
        }
    }

    /// The last segment that was removed on purpose.
    fn read_checkpoint(&mut self, content: Option<Vec<u8>>) -> u32 {
        let Some(content) = content else { return 0 };
        let checkpoint = serde_json::from_slice::<Checkpoint>(&content).ok().filter(|at| json_line(at) == content);
        let Some(at) = checkpoint.filter(|at| self.key.is_some_and(|key| at.is_signed_by(&key))) else {
            self.problem("pruned", None, None, Defect::BadCheckpoint);
            return 0;
        };
        self.match_heads("pruned", None, at.seq, &at.hash);
        // What was before can no longer be checked.
        self.heads = self.heads.split_off(&(at.seq + 1));
        (self.seq, self.prev) = (at.seq + 1, at.hash.clone());
        let segment = at.segment;
        self.report.pruned = Some(at);
        segment
    }

    fn segment(&mut self, number: u32, file: impl Read, is_last: bool) -> std::io::Result<()> {
        let file_name = name(number);
        let mut file = BufReader::with_capacity(256 * 1024, file);
        let mut line = Vec::new();
        self.report.segments += 1;
        for at in 1.. {
            line.clear();
            let read = (&mut file).take(LINE_MAX as u64).read_until(b'\n', &mut line)?;
            if read == 0 {
                break;
            }
            if line.pop_if(|end| *end == b'\n').is_some() {
                self.record(&file_name, at, &line);
            } else if read < LINE_MAX && is_last && is_torn(&line) {
                self.report.torn_bytes = read as u64;
            } else {
                self.problem(&file_name, Some(at), None, Defect::Malformed);
                file.skip_until(b'\n')?;
            }
        }
        Ok(())
    }

    fn record(&mut self, file: &str, at: u64, line: &[u8]) {
        let Some(record) = line::parse(line) else {
            self.problem(file, Some(at), None, Defect::Malformed);
            return;
        };
        let (at, seq) = (Some(at), Some(record.seq));
        if !line::intact(line) {
            self.problem(file, at, seq, Defect::Altered);
        }
        if record.seq > self.seq {
            self.problem(file, at, seq, Defect::Missing { from: self.seq, to: record.seq - 1 });
        } else if record.seq < self.seq {
            self.problem(file, at, seq, Defect::Misplaced { expected: self.seq });
        } else if record.prev != self.prev {
            self.problem(file, at, seq, Defect::Unlinked);
        }
        self.match_heads(file, at, record.seq, record.hash);
        let report = &mut self.report;
        if report.records == 0 {
            report.first_seq = record.seq;
        }
        report.records += 1;
        report.last_seq = report.last_seq.max(record.seq);
        self.seq = record.seq.saturating_add(1);
        record.hash.clone_into(&mut self.prev);
    }

    fn match_heads(&mut self, file: &str, at: Option<u64>, seq: u64, hash: &str) {
        for (signed, _) in self.heads.remove(&seq).into_iter().flatten() {
            if signed == hash {
                self.report.heads += 1;
                self.report.signed_seq = self.report.signed_seq.max(seq);
            } else {
                self.problem(file, at, Some(seq), Defect::NotAsSigned);
            }
        }
    }

    fn finish(mut self) -> Report {
        self.report.last_hash = std::mem::take(&mut self.prev);
        let last = self.report.last_seq.max(self.report.pruned.as_ref().map_or(0, |at| at.seq));
        let left = std::mem::take(&mut self.heads);
        let beyond = left.iter().rfind(|(_, heads)| heads.iter().any(|(_, line)| line.is_some()));
        if let Some((to, _)) = beyond.filter(|(seq, _)| **seq > last) {
            self.problem("heads", None, None, Defect::CutOff { last, to: *to });
        }
        for (seq, heads) in left {
            for (_, line) in heads {
                match line {
                    Some(_) if seq > last => {}
                    Some(_) => self.problem("heads", line, Some(seq), Defect::NotAsSigned),
                    None => self.problem("head from elsewhere", None, Some(seq), Defect::ForeignHead),
                }
            }
        }
        self.report
    }
}

/// Whether these bytes are the beginning of a line, as a writer leaves them when it is killed.
fn is_torn(bytes: &[u8]) -> bool {
    match serde_json::from_slice::<serde::de::IgnoredAny>(bytes) {
        Ok(_) => bytes.ends_with(b"}"),
        Err(error) => error.is_eof(),
    }
}
