//! What a process wrote, kept for readers that are slow, late, or come back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sloplet_wire::Exit;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Bytes kept of a running process. A reader that is further behind holds the process up, as a full pipe would.
const KEPT: usize = 1024 * 1024;

/// Bytes that a process may be ahead of a reader that may come back: the rest of what is kept was sent to it, and may be lost on
/// its way.
const AHEAD: u64 = KEPT as u64 / 2;

/// Bytes kept once the process has ended.
const KEPT_AFTER_END: usize = 256 * 1024;

/// What a piece costs besides its bytes, so that a flood of tiny writes stays bounded, too.
const PIECE_COST: usize = 96;

/// Pieces shorter than this are copied: they would keep a whole network buffer alive.
const COPIED: usize = 16 * 1024;

/// Where bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Its terminal.
    Terminal,
}

/// Some of a process's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Bytes of all sources before this chunk: what to ask for to go on from here.
    pub offset: u64,
    /// Where it comes from.
    pub source: Source,
    /// The bytes.
    pub bytes: Bytes,
}

/// How it is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The process ended.
    Exited(Exit),
    /// Its sandbox ended, or nobody knows.
    Lost(String),
}

/// The output of one process.
#[derive(Debug, Default)]
pub struct Output {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<Chunk>,
    cost: usize,
    end: u64,
    /// Bytes that were written before, by the word of whoever sends them again: they will be there in a moment.
    promised: u64,
    ended: Option<Ended>,
    readers: BTreeMap<u64, u64>,
    next_reader: u64,
    /// How long the next reader is waited for.
    patience: Option<Duration>,
    /// The position of the reader that is waited for, and until when.
    awaited: Option<(u64, Instant)>,
}

impl Output {
    /// Output that waits so long for its first reader, and for one that left and comes back, before anything is dropped.
    pub fn patient(patience: Option<Duration>) -> Self {
        let mut state = State { patience, ..State::default() };
        state.wait_at(0);
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    /// Output of a process that an earlier engine started: what comes first is at an offset, and so much was written before.
    pub fn found_again(offset: u64, written: u64) -> Self {
        let state = State { end: offset, promised: written, ..State::default() };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    /// Adds bytes; waits while a reader that is still there would lose some for it.
    pub async fn push(&self, source: Source, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        let bytes = if bytes.len() < COPIED { Bytes::copy_from_slice(&bytes) } else { bytes };
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Before looking, or a change in between would be missed.
            changed.as_mut().enable();
            let until = {
                let mut state = self.lock();
                if state.add(source, &bytes) {
                    break;
                }
                state.awaited.map(|(_, until)| until)
            };
            match until {
                Some(until) => drop(tokio::time::timeout_at(until, changed).await),
                None => changed.await,
            }
        }
        self.changed.notify_waiters();
    }

    /// Says that nothing follows.
    pub fn end(&self, ended: Ended) {
        let mut state = self.lock();
        state.ended.get_or_insert(ended);
        let (slowest, kept) = (state.slowest(), if state.patience.is_some() { KEPT } else { KEPT_AFTER_END });
        state.shed(kept, slowest);
        drop(state);
        self.changed.notify_waiters();
    }

    /// How it is over, if it is.
    pub fn ended(&self) -> Option<Ended> {
        self.lock().ended.clone()
    }

    /// Bytes so far, of all sources.
    pub fn length(&self) -> u64 {
        self.lock().end
    }

    /// Reads from an offset on, or from the oldest byte that is still there.
    pub fn read_from(self: &Arc<Self>, offset: u64) -> Reader {
        let mut state = self.lock();
        let id = state.next_reader;
        state.next_reader += 1;
        let start = state.pieces.front().map_or(state.end, |piece| piece.offset);
        let position = offset.clamp(start, state.end.max(state.promised));
        state.readers.insert(id, position);
        state.awaited = None;
        drop(state);
        Reader { output: self.clone(), id, finished: false }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn slowest(&self) -> u64 {
        let awaited = self.awaited.filter(|(_, until)| Instant::now() < *until).map(|(position, _)| position);
        self.readers.values().copied().chain(awaited).min().unwrap_or(u64::MAX)
    }

    /// From now on a reader is waited for, at this position.
    fn wait_at(&mut self, position: u64) {
        self.awaited = self.patience.map(|patience| (position, Instant::now() + patience));
    }

    fn add(&mut self, source: Source, bytes: &Bytes) -> bool {
        let slowest = self.slowest();
        if self.patience.is_some() && self.end.saturating_sub(slowest) > AHEAD {
            return false;
        }
        self.shed(KEPT.saturating_sub(bytes.len() + PIECE_COST), slowest);
        if self.cost > 0 && self.cost + bytes.len() + PIECE_COST > KEPT {
            return false;
        }
        self.pieces.push_back(Chunk { offset: self.end, source, bytes: bytes.clone() });
        self.cost += bytes.len() + PIECE_COST;
        self.end += bytes.len() as u64;
        true
    }

    /// Drops the oldest pieces until `limit` is kept, but none that a reader still needs.
    fn shed(&mut self, limit: usize, slowest: u64) {
        while self.cost > limit {
            let Some(piece) = self.pieces.front() else { break };
            if piece.offset + piece.bytes.len() as u64 > slowest {
                break;
            }
            self.cost -= piece.bytes.len() + PIECE_COST;
            self.pieces.pop_front();
        }
    }

    fn next_from(&self, position: u64) -> Option<Chunk> {
        let index = self.pieces.partition_point(|piece| piece.offset + piece.bytes.len() as u64 <= position);
        let piece = self.pieces.get(index)?;
        let skip = usize::try_from(position.saturating_sub(piece.offset)).unwrap_or(0);
        Some(Chunk { offset: piece.offset + skip as u64, source: piece.source, bytes: piece.bytes.slice(skip..) })
    }
}

/// Reads the output of a process at its own pace. While it exists, the process waits for it.
#[derive(Debug)]
pub struct Reader {
    output: Arc<Output>,
    id: u64,
    finished: bool,
}

/// What a reader sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// More output.
    Chunk(Chunk),
    /// The end.
    Ended(Ended),
}

impl Reader {
    /// What comes next; `None` after the end. May be dropped and called again without loss.
    pub async fn next(&mut self) -> Option<Next> {
        if self.finished {
            return None;
        }
        let output = self.output.clone();
        loop {
            let changed = output.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(next) = self.try_next() {
                return Some(next);
            }
            changed.await;
        }
    }

    /// What is there already.
    pub fn try_next(&mut self) -> Option<Next> {
        if self.finished {
            return None;
        }
        let mut state = self.output.lock();
        let position = *state.readers.get(&self.id)?;
        if let Some(chunk) = state.next_from(position) {
            state.readers.insert(self.id, chunk.offset + chunk.bytes.len() as u64);
            drop(state);
            self.output.changed.notify_waiters();
            return Some(Next::Chunk(chunk));
        }
        let ended = state.ended.clone()?;
        drop(state);
        self.finished = true;
        Some(Next::Ended(ended))
    }

    /// The offset of the next byte.
    pub fn position(&self) -> u64 {
        self.output.lock().readers.get(&self.id).copied().unwrap_or(0)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.output.lock();
        if let Some(position) = state.readers.remove(&self.id)
            && !self.finished
            && state.readers.is_empty()
        {
            state.wait_at(position);
        }
        drop(state);
        self.output.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited() -> Ended {
        Ended::Exited(Exit { code: Some(0), ..Exit::default() })
    }

    async fn collect(reader: &mut Reader) -> (Vec<u8>, Ended) {
        let mut all = Vec::new();
        loop {
            match reader.next().await.unwrap() {
                Next::Chunk(chunk) => all.extend_from_slice(&chunk.bytes),
                Next::Ended(ended) => return (all, ended),
            }
        }
    }

    #[tokio::test]
    async fn a_late_reader_sees_what_was_kept_from_where_it_asks() {
        let output = Arc::new(Output::default());
        output.push(Source::Stdout, Bytes::from_static(b"hello ")).await;
        output.push(Source::Stderr, Bytes::from_static(b"world")).await;
        output.end(exited());
        assert_eq!(collect(&mut output.read_from(0)).await, (b"hello world".to_vec(), exited()));
        let mut reader = output.read_from(8);
        let Some(Next::Chunk(chunk)) = reader.next().await else { panic!("no chunk") };
        assert_eq!((chunk.offset, chunk.source, &chunk.bytes[..]), (8, Source::Stderr, &b"rld"[..]));
        assert_eq!(reader.next().await, Some(Next::Ended(exited())));
        assert_eq!((reader.try_next(), reader.next().await), (None, None));
    }

    #[tokio::test]
    async fn without_readers_the_oldest_goes_and_memory_stays_bounded() {
        let output = Arc::new(Output::default());
        for _ in 0..100_000 {
            output.push(Source::Stdout, Bytes::from_static(b"x")).await;
        }
        assert!(output.lock().cost <= KEPT);
        let mut reader = output.read_from(0);
        let Some(Next::Chunk(chunk)) = reader.next().await else { panic!("no chunk") };
        assert!(chunk.offset > 0);
        assert_eq!(output.length(), 100_000);
    }

    #[tokio::test]
    async fn a_slow_reader_holds_the_writer_up_and_loses_nothing() {
        let output = Arc::new(Output::default());
        let mut reader = output.read_from(0);
        let writer = tokio::spawn({
            let output = output.clone();
            async move {
                for number in 0..64u8 {
                    output.push(Source::Stdout, vec![number; 100_000].into()).await;
                }
                output.end(exited());
            }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!writer.is_finished() && output.length() <= KEPT as u64);
        let (all, _) = collect(&mut reader).await;
        assert_eq!(all.len(), 6_400_000);
        assert!(all.chunks(100_000).enumerate().all(|(number, part)| part.iter().all(|b| usize::from(*b) == number)));
    }

    #[tokio::test]
    async fn offsets_are_for_life_however_often_the_output_is_found_again() {
        // 1000 bytes were written, of which the last 400 are still held, and a reader has seen 900 of them.
        let output = Arc::new(Output::found_again(600, 1000));
        let (mut late, mut first) = (output.read_from(900), output.read_from(0));
        let mut beyond = output.read_from(5000);
        assert_eq!(late.try_next(), None, "it waits for what is on its way");
        output.push(Source::Stdout, vec![1; 300].into()).await;
        assert_eq!(late.try_next(), None, "and does not see again what it has seen");
        output.push(Source::Stderr, vec![2; 100].into()).await;
        output.push(Source::Stdout, vec![3; 1].into()).await;
        let offsets = |reader: &mut Reader| {
            let next = std::iter::from_fn(|| reader.try_next());
            let told = next.map(|next| match next {
                Next::Chunk(chunk) => (chunk.offset, chunk.bytes.len()),
                Next::Ended(_) => panic!("it has not ended"),
            });
            told.collect::<Vec<_>>()
        };
        assert_eq!(offsets(&mut late), [(900, 100), (1000, 1)]);
        assert_eq!(offsets(&mut first), [(600, 300), (900, 100), (1000, 1)], "what is gone is a gap before the first");
        assert_eq!(offsets(&mut beyond), [(1000, 1)]);
        assert_eq!(output.length(), 1001);
    }

    fn much_to(output: &Arc<Output>) -> tokio::task::JoinHandle<()> {
        let output = output.clone();
        tokio::spawn(async move {
            for number in 0..64u8 {
                output.push(Source::Stdout, vec![number; 100_000].into()).await;
            }
            output.end(exited());
        })
    }

    #[tokio::test]
    async fn output_waits_for_its_first_reader_and_for_one_that_comes_back() {
        let output = Arc::new(Output::patient(Some(Duration::from_secs(600))));
        let writer = much_to(&output);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!writer.is_finished(), "the first reader is waited for");
        let mut reader = output.read_from(0);
        let Some(Next::Chunk(first)) = reader.next().await else { panic!("no chunk") };
        assert_eq!(first.offset, 0);
        let seen = reader.position();
        drop(reader);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!writer.is_finished(), "one that left is waited for, too");
        let (rest, _) = collect(&mut output.read_from(seen)).await;
        assert_eq!(rest.len() as u64, 6_400_000 - seen, "nothing was lost in between");
    }

    #[tokio::test]
    async fn what_was_lost_on_its_way_is_still_there() {
        let output = Arc::new(Output::patient(Some(Duration::from_secs(600))));
        let writer = much_to(&output);
        let mut reader = output.read_from(0);
        while reader.position() < 2_000_000 {
            reader.next().await;
        }
        // The last of it never arrived.
        let (sent, seen) = (reader.position(), reader.position() - 300_000);
        drop(reader);
        let (rest, _) = collect(&mut output.read_from(seen)).await;
        assert_eq!(rest.len() as u64, 6_400_000 - seen, "of {sent} bytes that were sent");
        writer.await.unwrap();
    }

    #[tokio::test]
    async fn output_does_not_wait_for_readers_for_ever() {
        let output = Arc::new(Output::patient(Some(Duration::from_millis(10))));
        let writer = much_to(&output);
        tokio::time::timeout(Duration::from_secs(10), writer).await.unwrap().unwrap();
        assert!(output.lock().cost <= KEPT);
    }

    #[tokio::test]
    async fn a_reader_that_leaves_lets_the_writer_go_on() {
        let output = Arc::new(Output::default());
        let reader = output.read_from(0);
        let writer = tokio::spawn({
            let output = output.clone();
            async move {
                for _ in 0..64 {
                    output.push(Source::Stdout, vec![0; 100_000].into()).await;
                }
            }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!writer.is_finished());
        drop(reader);
        tokio::time::timeout(Duration::from_secs(10), writer).await.unwrap().unwrap();
    }
}
