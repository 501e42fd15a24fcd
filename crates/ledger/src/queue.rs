//! What waits for the writer.
//!
//! To wake a thread costs whoever wakes it more than all else about a record. So the writer naps for a moment when it has
//! written, in which it is woken only by those who wait for it: what comes meanwhile is written together.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::writer::Message;

/// How many messages may wait; who brings one more waits, too.
const MOST: usize = 4096;
/// One batch; so many end a nap.
const BATCH: usize = 2048;
/// A nap: what a process that is killed may leave unwritten.
const NAP: Duration = Duration::from_millis(2);

#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    something: Condvar,
    room: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Message>,
    writer: Writing,
    /// Whether somebody waits for an answer.
    urgent: bool,
    /// Whether nothing more will come.
    closed: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Writing {
    #[default]
    Awake,
    Napping,
    Asleep,
    /// There is none any more.
    Gone,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over a message, as soon as there is room. `false` if nobody takes it any more.
    pub fn push(&self, message: Message) -> bool {
        let mut state = self.state();
        while state.waiting.len() >= MOST && state.writer != Writing::Gone {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.writer == Writing::Gone {
            return false;
        }
        state.urgent |= message.is_waited_for();
        state.waiting.push_back(message);
        let wake = match state.writer {
            Writing::Asleep => true,
            Writing::Napping => state.urgent || state.waiting.len() >= BATCH,
            Writing::Awake | Writing::Gone => false,
        };
        if wake {
            state.writer = Writing::Awake;
            drop(state);
            self.something.notify_one();
        }
        true
    }

    /// Nothing more will come.
    pub fn close(&self) {
        self.state().closed = true;
        self.something.notify_one();
    }

    /// For the writer: the next messages, none if it is `due` before there are any; `None` at the end.
    pub fn take(&self, due: Option<Instant>) -> Option<Vec<Message>> {
        let mut state = self.state();
        loop {
            if !state.waiting.is_empty() {
                let count = state.waiting.len().min(BATCH);
                let taken = state.waiting.drain(..count).collect();
                state.urgent = state.waiting.iter().any(Message::is_waited_for);
                drop(state);
                self.room.notify_all();
                return Some(taken);
            }
            if state.closed {
                return None;
            }
            state.writer = Writing::Asleep;
            match due.map(|due| due.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => {
                    state.writer = Writing::Awake;
                    return Some(Vec::new());
                }
                Some(rest) => {
                    state = self.something.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
                }
                None => state = self.something.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
            state.writer = Writing::Awake;
        }
    }

    /// For the writer: rests, unless somebody waits for it.
    pub fn nap(&self) {
        let mut state = self.state();
        let restless = |state: &State| state.urgent || state.closed || state.waiting.len() >= BATCH;
        if !restless(&state) {
            state.writer = Writing::Napping;
            let undisturbed = |state: &mut State| !restless(state);
            let nap = self.something.wait_timeout_while(state, NAP, undisturbed);
            nap.unwrap_or_else(PoisonError::into_inner).0.writer = Writing::Awake;
        }
    }

    /// For the writer, however it ends: who waits for it learns that it is gone.
    pub fn leave(&self) {
        let mut state = self.state();
        state.writer = Writing::Gone;
        state.waiting.clear();
        drop(state);
        self.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn drain() -> Message {
        Message::Drain(sync_channel(1).0)
    }

    #[test]
    fn who_waits_for_the_writer_ends_its_nap_and_others_do_not() {
        let queue = Arc::new(Queue::default());
        queue.state().writer = Writing::Napping;
        queue.push(Message::nothing());
        assert!(queue.state().writer == Writing::Napping, "a record lets it nap on");
        queue.push(drain());
        assert!(queue.state().writer == Writing::Awake);
        assert_eq!(queue.take(None).map(|taken| taken.len()), Some(2));
        assert!(!queue.state().urgent, "all was taken");
    }

    #[test]
    fn a_full_queue_lets_nobody_in_until_there_is_room() {
        let queue = Arc::new(Queue::default());
        (0..MOST).for_each(|_| assert!(queue.push(Message::nothing())));
        let late = std::thread::spawn({
            let queue = queue.clone();
            move || queue.push(Message::nothing())
        });
        let mut taken = 0;
        while taken < MOST + 1 {
            taken += queue.take(None).map_or(0, |taken| taken.len());
        }
        assert!(late.join().unwrap());
        queue.close();
        assert!(queue.take(None).is_none());
    }

    #[test]
    fn a_dead_writer_is_not_waited_for() {
        let queue = Arc::new(Queue::default());
        (0..MOST).for_each(|_| assert!(queue.push(Message::nothing())));
        let late = std::thread::spawn({
            let queue = queue.clone();
            move || queue.push(Message::nothing())
        });
        queue.leave();
        assert!(!late.join().unwrap());
        assert!(!queue.push(drain()));
    }

    #[test]
    fn what_is_due_is_not_put_off() {
        assert_eq!(Queue::default().take(Some(Instant::now())).map(|taken| taken.len()), Some(0));
    }
}
