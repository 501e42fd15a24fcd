//! Removing old segments without breaking the proof.

use std::fs::File;
use std::time::Duration;

use crate::chain::{self, Appended, Chain};
use crate::error::LedgerError;
use crate::event::{Event, Pruned};
use crate::folder;
use crate::line;
use crate::sign::json_line;

/// How long things are kept. The default is for ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// What is older goes.
    pub max_age: Option<Duration>,
    /// The oldest go until no more than this is left.
    pub max_bytes: Option<u64>,
}

/// What went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    /// How many files.
    pub files: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// The last record of a segment.
struct Last {
    seq: u64,
    time_ms: u64,
    hash: String,
}

pub(crate) fn prune(chain: &mut Chain, retention: &Retention) -> Result<Removed, LedgerError> {
    chain.locked(|chain| {
        let current = chain.current()?;
        let done = chain::checkpoint(&chain.folder)?.map_or(0, |at| at.segment);
        let mut sizes = Vec::new();
        for number in chain.folder.segments()? {
            let path = chain.folder.segment(number);
            sizes.push((number, std::fs::metadata(&path).map_err(LedgerError::io("read", &path))?.len()));
        }
        let mut left: u64 = sizes.iter().map(|(_, size)| size).sum();
        let oldest_ms = retention
            .max_age
            .map(|age| crate::now_ms().saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)));

        let mut last = None;
        let mut removed = Removed::default();
        for (number, size) in sizes.iter().filter(|(number, _)| *number < current) {
            // Left over from a prune that was interrupted.
            let mut goes = *number <= done;
            if !goes {
                // A segment whose end cannot be read is evidence, and stays.
                let Some(end) = end_of(chain, *number)? else { break };
                goes = retention.max_bytes.is_some_and(|most| left > most)
                    || oldest_ms.is_some_and(|oldest| end.time_ms < oldest);
                if goes {
                    last = Some((*number, end));
                }
            }
            if !goes {
                break;
            }
            left -= size;
            removed.files += 1;
            removed.bytes += size;
        }

        let mut through = done;
        if let Some((number, end)) = last {
            through = number;
            let event = Pruned { through_segment: number, through_seq: end.seq, bytes: removed.bytes };
            let note = chain::draft(None, "ledger", &Event::Pruned(event));
            chain.append_locked(&[note], &mut Appended::default())?;
            chain.sign_locked()?;
            let checkpoint = chain.key.checkpoint(number, end.seq, &end.hash);
            folder::replace(&chain.folder.checkpoint(), &json_line(&checkpoint))?;
        }
        // Only now: a crash in between leaves too much, never too little.
        for (number, _) in sizes.iter().filter(|(number, _)| *number <= through && *number < current) {
            let path = chain.folder.segment(*number);
            std::fs::remove_file(&path).map_err(LedgerError::io("remove", &path))?;
        }
        Ok(removed)
    })
}

fn end_of(chain: &Chain, number: u32) -> Result<Option<Last>, LedgerError> {
    let path = chain.folder.segment(number);
    let read = || {
        let mut file = File::open(&path)?;
        let end = folder::complete(&mut file)?;
        folder::line_before(&mut file, end)
    };
    let (_, line) = read().map_err(LedgerError::io("read", &path))?;
    let parsed = line::parse(&line).filter(|_| line::intact(&line));
    Ok(parsed.map(|last| Last { seq: last.seq, time_ms: last.time_ms, hash: last.hash.to_owned() }))
}
