//! Following an output: its size, its digest, and as much of it as is kept.
//!
//! The whole stream is hashed, with the CPU's own instructions where it has them. That is still about as much work as moving
//! it, so [`OutputTap`] does it on the caller's thread only for small outputs; beyond a megabyte a thread of its own takes over.

use std::collections::VecDeque;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use bytes::Bytes;
use ring::digest::{Context, SHA256};

use crate::event::OutputSummary;
use crate::line::hex;

/// Of a longer output, so much of its beginning is kept.
pub const KEPT_HEAD: usize = 512 * 1024;
/// And so much of its end.
pub const KEPT_TAIL: usize = 512 * 1024;

/// An output grows a thread when it reaches this size.
const INLINE: u64 = 1 << 20;
/// How many chunks may wait for that thread: enough to keep it busy, and no more memory than that.
const QUEUE: usize = 8;

/// Hashes a stream, and keeps its first and last half megabyte.
pub struct OutputDigest {
    context: Context,
    bytes: u64,
    head: Vec<u8>,
    tail: VecDeque<u8>,
}

impl Default for OutputDigest {
    fn default() -> Self {
        Self { context: Context::new(&SHA256), bytes: 0, head: Vec::new(), tail: VecDeque::new() }
    }
}

impl OutputDigest {
    /// Takes the next piece.
    pub fn push(&mut self, chunk: &[u8]) {
        self.context.update(chunk);
        self.bytes += chunk.len() as u64;
        let room = KEPT_HEAD - self.head.len();
        let (head, rest) = chunk.split_at(room.min(chunk.len()));
        self.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(KEPT_TAIL)..];
        let over = (self.tail.len() + rest.len()).saturating_sub(KEPT_TAIL);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    /// The result.
    pub fn finish(self) -> Output {
        let sha256 = hex(self.context.finish().as_ref());
        let left_out = self.bytes - (self.head.len() + self.tail.len()) as u64;
        let mut kept = self.head;
        if left_out > 0 {
            kept.extend_from_slice(format!("\n…[+{left_out} bytes]\n").as_bytes());
        }
        let (front, back) = self.tail.as_slices();
        kept.extend_from_slice(front);
        kept.extend_from_slice(back);
        Output { sha256, bytes: self.bytes, truncated: left_out > 0, kept }
    }
}

/// An output that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Of all of it.
    pub sha256: String,
    /// Its size.
    pub bytes: u64,
    /// Whether [`Output::kept`] lacks the middle.
    pub truncated: bool,
    /// What is kept: all, or the beginning and the end with a mark between.
    pub kept: Vec<u8>,
}

impl Output {
    /// For [`ExecEnded`](crate::event::ExecEnded).
    pub fn summary(&self, stored: bool) -> OutputSummary {
        OutputSummary { bytes: self.bytes, sha256: self.sha256.as_str().into(), stored, truncated: self.truncated }
    }
}

/// An [`OutputDigest`] that stays out of a fast stream's way.
#[derive(Default)]
pub struct OutputTap {
    inline: OutputDigest,
    worker: Option<Worker>,
}

struct Worker {
    sender: SyncSender<Bytes>,
    thread: JoinHandle<OutputDigest>,
}

impl OutputTap {
    /// Takes the next piece, without copying it. Waits only while the hashing thread is 8 pieces behind, which is a
    /// matter of microseconds: it waits for nothing but the CPU.
    pub fn push(&mut self, chunk: Bytes) {
        if self.worker.is_none() && self.inline.bytes >= INLINE {
            self.worker = self.start();
        }
        match &self.worker {
            // The thread ends only when the sender is dropped.
            Some(worker) => drop(worker.sender.send(chunk)),
            None => self.inline.push(&chunk),
        }
    }

    /// The result, when all is hashed.
    pub fn finish(self) -> Output {
        let Some(Worker { sender, thread }) = self.worker else { return self.inline.finish() };
        drop(sender);
        thread.join().unwrap_or_default().finish()
    }

    /// Without a thread to be had, hashing stays where it is.
    fn start(&mut self) -> Option<Worker> {
        let (sender, receiver) = sync_channel::<Bytes>(QUEUE);
        let (hand_over, state) = sync_channel::<OutputDigest>(1);
        let work = move || {
            let mut digest = state.recv().unwrap_or_default();
            receiver.iter().for_each(|chunk| digest.push(&chunk));
            digest
        };
        let thread = std::thread::Builder::new().name("output".into()).spawn(work).ok()?;
        let _ = hand_over.send(std::mem::take(&mut self.inline));
        Some(Worker { sender, thread })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(size: usize) -> Vec<u8> {
        (0..size).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn small_outputs_are_kept_whole() {
        let all = pattern(KEPT_HEAD + KEPT_TAIL);
        let mut digest = OutputDigest::default();
        all.chunks(777).for_each(|chunk| digest.push(chunk));
        let output = digest.finish();
        assert_eq!(output.sha256.as_bytes(), crate::line::sha256(&all));
        assert!(!output.truncated);
        assert!(output.kept == all);
    }

    #[test]
    fn large_outputs_lose_their_middle() {
        let all = pattern(5_000_000);
        for size in [1000, 65_536, 3_000_000, 5_000_000] {
            let mut tap = OutputTap::default();
            Bytes::from(all.clone()).chunks(size).for_each(|chunk| tap.push(Bytes::copy_from_slice(chunk)));
            let output = tap.finish();
            assert_eq!(output.sha256.as_bytes(), crate::line::sha256(&all));
            assert_eq!(output.bytes, 5_000_000);
            assert!(output.truncated);
            assert!(output.kept.starts_with(&all[..KEPT_HEAD]));
            assert!(output.kept.ends_with(&all[all.len() - KEPT_TAIL..]));
            let mark = String::from_utf8_lossy(&output.kept[KEPT_HEAD..KEPT_HEAD + 30]).into_owned();
            assert!(mark.contains("…[+3951424 bytes]"), "{mark}");
        }
        assert_eq!(OutputTap::default().finish().bytes, 0);
    }
}
