//! What sandboxes used over time: a few hundred samples of each, closer together the newer they are.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::clock::now_ms;
use super::error::LifeError;
use super::record::State;
use super::sandboxes::{Inner, Sandboxes, Slot};
use crate::driver::Usage;

/// How often running sandboxes are looked at.
const EVERY: Duration = Duration::from_secs(5);

/// How long one look may take before the others have their turn.
const PATIENCE: Duration = Duration::from_secs(1);

/// Samples kept of one sandbox: half an hour of the latest, at first.
const MOST: usize = 360;

/// What a sandbox used at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Hundredths of a percent of one processor since the sample before.
    pub load: u32,
    /// Processes and threads.
    pub pids: u32,
    /// Bytes of memory, without what the kernel could drop at once.
    pub memory: u64,
    /// Bytes of memory that hold copies of files on disks.
    pub cache: u64,
    /// Bytes written that are still there.
    pub disk_used: u64,
}

/// The samples of one sandbox.
#[derive(Debug, Default)]
pub(super) struct History {
    samples: VecDeque<Sample>,
    /// When it was looked at, and its processor time then.
    last: Option<(Instant, u64)>,
}

impl History {
    /// Remembers what it uses now. The first look only begins to count its processor time.
    fn look(&mut self, usage: &Usage, now: Instant, now_ms: u64) {
        if let Some((before, cpu_us)) = self.last.replace((now, usage.cpu_us)) {
            let elapsed = now.duration_since(before).as_micros().max(1);
            let load = u128::from(usage.cpu_us.saturating_sub(cpu_us)) * 10_000 / elapsed;
            self.push(Sample {
                at_ms: now_ms,
                load: u32::try_from(load).unwrap_or(u32::MAX),
                pids: u32::try_from(usage.pids).unwrap_or(u32::MAX),
                memory: usage.memory,
                cache: usage.cache,
                disk_used: usage.disk_used,
            });
        }
    }

    fn push(&mut self, sample: Sample) {
        if self.samples.len() >= MOST {
            // Every second one of the older half goes.
            let mut number = 0;
            self.samples.retain(|_| {
                number += 1;
                number > MOST / 2 || number % 2 == 1
            });
        }
        self.samples.push_back(sample);
    }

    /// It does not run: the time until it does again is not its own.
    fn rest(&mut self) {
        self.last = None;
    }
}

/// Looks at running sandboxes as long as the registry exists.
pub(super) async fn run(registry: Weak<Inner>) {
    loop {
        tokio::time::sleep(EVERY).await;
        let Some(inner) = registry.upgrade() else { return };
        let slots: Vec<Arc<Slot>> = Sandboxes(inner).slots().values().cloned().collect();
        for slot in slots {
            let live = slot.live().filter(|_| slot.record().state == State::Running);
            let Some(live) = live else {
                slot.history().rest();
                continue;
            };
            if let Ok(Ok(usage)) = tokio::time::timeout(PATIENCE, live.sandbox.machine().usage()).await {
                slot.history().look(&usage, Instant::now(), now_ms());
            }
        }
    }
}

impl Sandboxes {
    /// What a sandbox used from one moment to another (in milliseconds since 1970), oldest first.
    pub fn history(&self, owner: &str, id: &str, from_ms: u64, to_ms: u64) -> Result<Vec<Sample>, LifeError> {
        let slot = self.slot(owner, id)?;
        let history = slot.history();
        Ok(history.samples.iter().filter(|sample| (from_ms..=to_ms).contains(&sample.at_ms)).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_that_since_the_last_look_and_pauses_do_not_count() {
        let mut history = History::default();
        let start = Instant::now();
        let look = |history: &mut History, second: u64, cpu_us| {
            let usage = Usage { cpu_us, memory: 7, ..Usage::default() };
            history.look(&usage, start + Duration::from_secs(second), second * 1000);
        };
        look(&mut history, 0, 1_000_000);
        look(&mut history, 5, 3_500_000);
        history.rest();
        look(&mut history, 500, 3_500_000);
        look(&mut history, 505, 13_500_000);
        let loads: Vec<_> = history.samples.iter().map(|sample| (sample.at_ms, sample.load, sample.memory)).collect();
        assert_eq!(loads, [(5_000, 5_000, 7), (505_000, 20_000, 7)]);
    }

    #[test]
    fn a_long_life_needs_no_more_room_and_is_not_forgotten() {
        let mut history = History::default();
        for at_ms in 0..100_000 {
            history.push(Sample { at_ms, load: 0, pids: 0, memory: 0, cache: 0, disk_used: 0 });
            assert!(history.samples.len() <= MOST);
        }
        assert_eq!(history.samples.front().unwrap().at_ms, 0);
        assert_eq!(history.samples.back().unwrap().at_ms, 99_999);
        assert!(history.samples.iter().is_sorted_by_key(|sample| sample.at_ms));
    }
}
