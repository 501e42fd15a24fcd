//! What a process wrote, kept for readers that are slow, late, or come back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sloplet_wire::Exit;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::allowance::{Allowance, Spare, Taken};

/// Bytes kept of a running process. A reader that is further behind holds the process up, as a full pipe would.
const KEPT: usize = 1024 * 1024;

/// Bytes that a process may be ahead of a reader that may come back: the rest of what is kept was sent to it, and may be lost on
/// its way.
const AHEAD: u64 = KEPT as u64 / 2;

/// Bytes kept once the process has ended.
const KEPT_AFTER_END: usize = 256 * 1024;

/// What a piece costs besides its bytes, so that a flood of tiny writes stays bounded, too.
const PIECE_COST: usize = 96;

/// Longest piece. All are copied: a part of a network buffer would keep all of it alive.
const PIECE: usize = 16 * 1024;

/// What a process that is held up costs besides: its agent may have sent so much on both channels that nobody took.
const HELD_UP: u64 = 2 * sloplet_wire::flow::INITIAL_WINDOW as u64;

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
#[derive(Debug)]
pub struct Output {
    state: Mutex<State>,
    changed: Notify,
    allowance: Allowance,
}

#[derive(Debug)]
struct State {
    pieces: VecDeque<Chunk>,
    cost: usize,
    /// As much as that.
    taken: Taken,
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
    /// Output that is kept within an allowance. It waits so long for its first reader, and for one that left and comes back,
    /// before anything is dropped.
    pub fn new(allowance: &Allowance, patience: Option<Duration>) -> Self {
        let mut state = State {
            pieces: VecDeque::new(),
            cost: 0,
            taken: allowance.begin(),
            end: 0,
            promised: 0,
            ended: None,
            readers: BTreeMap::new(),
            next_reader: 0,
            patience,
            awaited: None,
        };
        state.wait_at(0);
        Self { state: Mutex::new(state), changed: Notify::new(), allowance: allowance.clone() }
    }

    /// Output of a process that an earlier engine started: what comes first is at an offset, and so much was written before.
    pub fn found_again(allowance: &Allowance, offset: u64, written: u64) -> Self {
        let output = Self::new(allowance, None);
        {
            let mut state = output.lock();
            (state.end, state.promised) = (offset, written);
        }
        output
    }

    /// Adds bytes; waits while a reader that is still there would lose some for it. If there is no memory to wait, or to keep
    /// them, the oldest are lost; a reader finds a gap there.
    pub async fn push(&self, source: Source, bytes: Bytes) {
        for piece in bytes.chunks(PIECE) {
            self.push_piece(source, Bytes::copy_from_slice(piece)).await;
        }
    }

    async fn push_piece(&self, source: Source, bytes: Bytes) {
        let mut held_up: Option<Taken> = None;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Before looking, or a change in between would be missed.
            changed.as_mut().enable();
            let until = {
                let mut state = self.lock();
                match state.add(source, &bytes, &self.allowance) {
                    Added::Yes => break,
                    Added::ReaderIsSlow => held_up = held_up.or_else(|| self.take_reclaiming(HELD_UP)),
                    Added::NoRoom => held_up = None,
                }
                if held_up.is_none() {
                    state.add_anyway(source, &bytes);
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

    fn take_reclaiming(&self, bytes: u64) -> Option<Taken> {
        let mut taken = self.allowance.begin();
        taken.grow_reclaiming(bytes).then_some(taken)
    }

    /// Says that nothing follows. What is kept may be given up from here on, if memory is short.
    pub fn end(self: &Arc<Self>, ended: Ended) {
        let mut state = self.lock();
        state.ended.get_or_insert(ended);
        let (slowest, kept) = (state.slowest(), if state.patience.is_some() { KEPT } else { KEPT_AFTER_END });
        state.shed(kept, slowest);
        drop(state);
        let spare: Arc<dyn Spare> = self.clone();
        self.allowance.offer(Arc::downgrade(&spare));
        self.changed.notify_waiters();
    }

    /// How it is over, if it is.
    pub fn ended(&self) -> Option<Ended> {
        self.lock().ended.clone()
    }

    /// Waits for the end, without reading.
    pub async fn over(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.ended().is_some() {
                return;
            }
            changed.await;
        }
    }

    /// Bytes so far, of all sources; those included that were written before and are yet to be sent again.
    pub fn length(&self) -> u64 {
        let state = self.lock();
        state.end.max(state.promised)
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

impl Spare for Output {
    fn give_up(&self) {
        self.lock().shed(0, u64::MAX);
        self.changed.notify_waiters();
    }
}

/// How it went to add a piece.
enum Added {
    Yes,
    /// A reader would lose some for it.
    ReaderIsSlow,
    /// There is no memory for it.
    NoRoom,
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

    fn add(&mut self, source: Source, bytes: &Bytes, allowance: &Allowance) -> Added {
        let (slowest, more) = (self.slowest(), bytes.len() + PIECE_COST);
        if self.patience.is_some() && self.end.saturating_sub(slowest) > AHEAD {
            return Added::ReaderIsSlow;
        }
        self.shed(KEPT.saturating_sub(more), slowest);
        if self.cost > 0 && self.cost + more > KEPT {
            return Added::ReaderIsSlow;
        }
        while !self.taken.grow(more as u64) {
            // What nobody waits for goes first, then its own oldest.
            if allowance.reclaim(more as u64) {
                continue;
            }
            let before = self.cost;
            self.shed(before.saturating_sub(more), slowest);
            if self.cost == before {
                return Added::NoRoom;
            }
        }
        self.store(source, bytes);
        Added::Yes
    }

    /// Adds a piece whatever is lost for it: the oldest, or the piece itself.
    fn add_anyway(&mut self, source: Source, bytes: &Bytes) {
        let more = bytes.len() + PIECE_COST;
        self.shed(KEPT.saturating_sub(more), u64::MAX);
        while !self.taken.grow(more as u64) {
            if self.pieces.is_empty() {
                self.end += bytes.len() as u64;
                return;
            }
            self.shed(self.cost.saturating_sub(more), u64::MAX);
        }
        self.store(source, bytes);
    }

    fn store(&mut self, source: Source, bytes: &Bytes) {
        self.pieces.push_back(Chunk { offset: self.end, source, bytes: bytes.clone() });
        self.cost += bytes.len() + PIECE_COST;
        self.end += bytes.len() as u64;
    }

    /// Drops the oldest pieces until `limit` is kept, but none that a reader still needs.
    fn shed(&mut self, limit: usize, slowest: u64) {
        while self.cost > limit {
            let Some(piece) = self.pieces.front() else { break };
            if piece.offset + piece.bytes.len() as u64 > slowest {
                break;
            }
            let less = piece.bytes.len() + PIECE_COST;
            self.cost -= less;
            self.taken.shrink(less as u64);
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
        // What is not there any more was lost; what was promised is yet to come.
        let end = state.end.max(position);
        state.readers.insert(self.id, end);
        let ended = state.ended.clone()?;
        drop(state);
        self.finished = true;
        Some(Next::Ended(ended))
    }

    /// Bytes that were written so far: where a reader of all of them is.
    pub fn end(&self) -> u64 {
        self.output.length()
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
    use crate::allowance::Allowances;

    fn output(patience: Option<Duration>) -> Output {
        Output::new(&Allowances::default().of("somebody"), patience)
    }

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
        let output = Arc::new(output(None));
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
        let output = Arc::new(output(None));
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
        let output = Arc::new(output(None));
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
        let output = Arc::new(Output::found_again(&Allowances::default().of("somebody"), 600, 1000));
        assert_eq!(output.length(), 1000, "whoever wants only what follows begins there");
        let mut from_now_on = output.read_from(output.length());
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
        assert_eq!(offsets(&mut from_now_on), [(1000, 1)]);
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
        let output = Arc::new(output(Some(Duration::from_secs(600))));
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
        let output = Arc::new(output(Some(Duration::from_secs(600))));
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
        let output = Arc::new(output(Some(Duration::from_millis(10))));
        let writer = much_to(&output);
        tokio::time::timeout(Duration::from_secs(10), writer).await.unwrap().unwrap();
        assert!(output.lock().cost <= KEPT);
    }

    #[tokio::test]
    async fn a_reader_that_leaves_lets_the_writer_go_on() {
        let output = Arc::new(output(None));
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

    async fn write(output: &Arc<Output>, bytes: usize) {
        for _ in 0..bytes / 1000 {
            output.push(Source::Stdout, Bytes::from_static(&[b'x'; 1000])).await;
        }
    }

    #[tokio::test]
    async fn many_chatty_processes_keep_no_more_than_their_owners_share() {
        let all = Allowances::new(8 * KEPT as u64);
        let outputs: Vec<Arc<Output>> = (0..100).map(|_| Arc::new(Output::new(&all.of("me"), None))).collect();
        // Some are read by somebody who is too slow; of those one or the other is held up.
        let slow: Vec<Reader> = outputs.iter().step_by(2).map(|output| output.read_from(0)).collect();
        let mut writers = tokio::task::JoinSet::new();
        for output in &outputs {
            let output = output.clone();
            writers.spawn(async move { write(&output, 2 * KEPT).await });
        }
        for done in 0..90 {
            let one = tokio::time::timeout(Duration::from_secs(60), writers.join_next()).await;
            one.unwrap_or_else(|_| panic!("only {done} are not held up")).unwrap().unwrap();
            assert!(all.held() <= 4 * KEPT as u64, "{} bytes", all.held());
        }
        // Somebody else's are kept as ever.
        let other = Arc::new(Output::new(&all.of("you"), None));
        write(&other, KEPT / 2).await;
        assert!(other.lock().cost >= KEPT / 2);
        writers.shutdown().await;
        drop((outputs, slow, other));
        assert_eq!(all.held(), 0);
    }

    #[tokio::test]
    async fn what_ended_processes_wrote_goes_first() {
        let all = Allowances::new(4 * KEPT as u64);
        let ended: Vec<Arc<Output>> = (0..20).map(|_| Arc::new(Output::new(&all.of("me"), None))).collect();
        for output in &ended {
            write(output, KEPT / 4).await;
            output.end(exited());
        }
        let running = Arc::new(Output::new(&all.of("me"), None));
        write(&running, KEPT - KEPT / 8).await;
        assert!(running.lock().cost >= KEPT / 2);
        assert_eq!(ended[0].lock().cost, 0, "the oldest is given up");
        // Its end can still be read, and that something is missing.
        let mut reader = ended[0].read_from(0);
        assert_eq!(reader.next().await, Some(Next::Ended(exited())));
        assert!(reader.end() > 0);
    }

    #[tokio::test]
    async fn a_reader_for_whom_there_is_no_memory_finds_a_gap() {
        let all = Allowances::new(KEPT as u64);
        let output = Arc::new(Output::new(&all.of("me"), None));
        let mut reader = output.read_from(0);
        tokio::time::timeout(Duration::from_secs(60), write(&output, 4 * KEPT)).await.expect("nobody is held up");
        let Some(Next::Chunk(chunk)) = reader.next().await else { panic!("no chunk") };
        assert!(chunk.offset > 0 && all.held() <= KEPT as u64 / 2);
    }
}
