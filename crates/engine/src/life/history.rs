//! What sandboxes used over time: a few hundred samples of each, closer together the newer they are. They are written down once
//! a minute, so that a server that was killed has lost a minute of them at most.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sloplet_store::{Collection, Document};

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

/// After how many looks the samples of a sandbox are written down. Each has its own turn: no look writes for all.
const LOOKS: usize = 12;

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

/// The samples of one sandbox, as they are written down: numbers in the order of [`Sample`].
#[derive(Serialize, Deserialize)]
pub(super) struct Written {
    id: String,
    samples: Vec<[u64; 6]>,
}

impl Document for Written {
    const KIND: &'static str = "history";

    fn id(&self) -> &str {
        &self.id
    }

    fn owner(&self) -> &str {
        ""
    }

    fn created_ms(&self) -> u64 {
        0
    }
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

    fn written(&self, id: &str) -> Written {
        let numbers = |sample: &Sample| {
            let Sample { at_ms, load, pids, memory, cache, disk_used } = *sample;
            [at_ms, load.into(), pids.into(), memory, cache, disk_used]
        };
        Written { id: id.to_owned(), samples: self.samples.iter().map(numbers).collect() }
    }

    /// What an earlier server saw, before what this one has seen.
    fn restore(&mut self, written: Written) {
        let bounded = |number| u32::try_from(number).unwrap_or(u32::MAX);
        let newer = std::mem::take(&mut self.samples);
        for [at_ms, load, pids, memory, cache, disk_used] in written.samples {
            self.push(Sample { at_ms, load: bounded(load), pids: bounded(pids), memory, cache, disk_used });
        }
        newer.into_iter().for_each(|sample| self.push(sample));
    }

    /// It does not run: the time until it does again is not its own.
    fn rest(&mut self) {
        self.last = None;
    }
}

/// Looks at running sandboxes as long as the registry exists.
pub(super) async fn run(registry: Weak<Inner>) {
    for look in 0usize.. {
        tokio::time::sleep(EVERY).await;
        let Some(inner) = registry.upgrade() else { return };
        let written = inner.histories.clone();
        let slots: Vec<Arc<Slot>> = Sandboxes(inner).slots().values().cloned().collect();
        for slot in slots {
            let live = slot.live().filter(|_| slot.record().state == State::Running);
            let Some(live) = live else {
                slot.history().rest();
                continue;
            };
            if let Ok(Ok(usage)) = tokio::time::timeout(PATIENCE, live.sandbox.machine().usage()).await {
                slot.history().look(&usage, Instant::now(), now_ms());
                if slot.turn() == look % LOOKS {
                    slot.write_history(&written);
                }
            }
        }
    }
}

impl Slot {
    fn turn(&self) -> usize {
        self.record().id.bytes().map(usize::from).sum::<usize>() % LOOKS
    }

    /// Writes down its samples. One that is being removed right now is not remembered again.
    fn write_history(&self, written: &Collection<Written>) {
        let Ok(_unchanged) = self.changing.try_lock() else { return };
        if self.live().is_none() {
            return;
        }
        let id = self.record().id;
        let document = self.history().written(&id);
        if let Err(error) = written.put(&document) {
            tracing::warn!(%error, sandbox = id, "cannot write down what it used");
        }
    }
}

impl Sandboxes {
    /// Gives sandboxes that were found again the samples that an earlier server wrote down.
    pub(super) fn restore_histories(&self) {
        let restored = self.0.histories.all().and_then(|all| {
            for written in all {
                let slot = self.slots().get(&written.id).cloned();
                match slot {
                    Some(slot) => slot.history().restore(written),
                    None => _ = self.0.histories.remove(&written.id)?,
                }
            }
            Ok(())
        });
        if let Err(error) = restored {
            tracing::warn!(%error, "cannot read what sandboxes used before");
        }
    }

    /// Writes down what all sandboxes used, because the server is about to end.
    pub fn write_histories(&self) {
        let slots: Vec<Arc<Slot>> = self.slots().values().cloned().collect();
        slots.iter().for_each(|slot| slot.write_history(&self.0.histories));
    }

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
    fn what_was_written_down_is_restored() {
        let mut history = History::default();
        for at_ms in 0..10 {
            history.push(Sample { at_ms, load: 1, pids: 2, memory: 3, cache: 4, disk_used: 5 });
        }
        let text = serde_json::to_string(&history.written("one")).unwrap();
        let mut restored = History::default();
        restored.restore(serde_json::from_str(&text).unwrap());
        assert_eq!(restored.samples, history.samples);
        let hostile = Written { id: "one".into(), samples: vec![[u64::MAX; 6]; 3 * MOST] };
        restored.restore(hostile);
        assert!(restored.samples.len() <= MOST);
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
