//! What sandboxes cost: the time they ran, as the operator prices it, and what their LLM calls came to. Summed up from the
//! ledger, so that it also tells of sandboxes that are gone.
//!
//! Time is charged for what a sandbox may use (its processors and its memory), while it is neither paused nor stopped. That
//! is what it keeps from others, and what the ledger knows.

use std::collections::BTreeMap;

use serde::Serialize;
use sloplet_gateway::prices::Compute;
use sloplet_ledger::event::{Decision, SandboxCreated, Spend};
use sloplet_ledger::{Event, Record};
use sloplet_policy::Limits;

/// The kinds of records that tell of costs.
pub const KINDS: [&str; 4] = ["sandbox_created", "sandbox_changed", "sandbox_gone", "spend"];

const HOUR_MS: f64 = 3_600_000.0;
const GIB: f64 = 1_073_741_824.0;

/// What was used and what that costs. Money is in millionths of a dollar.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Figures {
    /// How long it ran.
    pub running_ms: u64,
    /// Processors it might use, times hours.
    pub cpu_hours: f64,
    /// GiB of memory it might use, times hours.
    pub memory_gib_hours: f64,
    /// What that costs.
    pub compute_micro_usd: u64,
    /// LLM calls that were let through.
    pub calls: u64,
    /// LLM calls that were refused.
    pub calls_refused: u64,
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// Of those read, from a cache.
    pub cached_tokens: u64,
    /// What they cost.
    pub tokens_micro_usd: u64,
    /// All of it.
    pub total_micro_usd: u64,
}

/// The same of one sandbox.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SandboxCost {
    /// Its id.
    pub sandbox: String,
    /// Its name.
    pub name: Option<String>,
    /// What it used.
    #[serde(flatten)]
    pub figures: Figures,
}

/// What sandboxes cost between two moments.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Costs {
    /// From when, in milliseconds since 1970.
    pub since_ms: u64,
    /// Until when.
    pub until_ms: u64,
    /// What a sandbox's time costs, in dollars.
    pub rates: Compute,
    /// The dearest first.
    pub sandboxes: Vec<SandboxCost>,
    /// All together.
    pub total: Figures,
}

/// Adds up records, in the order in which they were written and from the first on: a sandbox that was made long ago may
/// still run.
#[derive(Debug)]
pub struct Summing {
    since_ms: u64,
    until_ms: u64,
    rates: Compute,
    sandboxes: BTreeMap<String, Tally>,
}

#[derive(Debug, Default)]
struct Tally {
    name: Option<String>,
    limits: Limits,
    running_since: Option<u64>,
    /// When it cannot run any more, even if nobody wrote down its end.
    latest: Option<u64>,
    figures: Figures,
}

impl Summing {
    /// Of what happened from `since_ms` to `until_ms`.
    pub fn new(since_ms: u64, until_ms: u64, rates: Compute) -> Self {
        Self { since_ms, until_ms, rates, sandboxes: BTreeMap::new() }
    }

    /// Takes in a record.
    pub fn add(&mut self, record: &Record) {
        let (Some(sandbox), true) = (&record.sandbox, KINDS.contains(&record.kind.as_str())) else { return };
        let (now, since, until) = (record.time_ms, self.since_ms, self.until_ms);
        let tally = self.sandboxes.entry(sandbox.clone()).or_default();
        match record.event() {
            Event::SandboxCreated(created) => tally.made(created, now, &record.actor),
            Event::SandboxChanged(changed) if &*changed.to == "running" => {
                tally.running_since.get_or_insert(now);
            }
            Event::SandboxChanged(_) => tally.stopped(now, since, until),
            Event::SandboxGone(_) => {
                tally.stopped(now, since, until);
                if tally.figures == Figures::default() {
                    self.sandboxes.remove(sandbox);
                }
            }
            Event::Spend(spend) if (since..until).contains(&now) => tally.spent(&spend),
            _ => {}
        }
    }

    /// The sums.
    pub fn finish(self) -> Costs {
        let Self { since_ms, until_ms, rates, sandboxes } = self;
        let mut all: Vec<SandboxCost> = sandboxes
            .into_iter()
            .map(|(sandbox, mut tally)| {
                tally.stopped(until_ms, since_ms, until_ms);
                let Tally { name, mut figures, .. } = tally;
                let dollars = figures.cpu_hours * rates.cpu_hour + figures.memory_gib_hours * rates.memory_gib_hour;
                figures.compute_micro_usd = (dollars * 1e6).round() as u64;
                figures.total_micro_usd = figures.compute_micro_usd.saturating_add(figures.tokens_micro_usd);
                SandboxCost { sandbox, name, figures }
            })
            .filter(|one| one.figures != Figures::default())
            .collect();
        all.sort_by_key(|one| std::cmp::Reverse(one.figures.total_micro_usd));
        let mut total = Figures::default();
        all.iter().for_each(|one| total.plus(&one.figures));
        Costs { since_ms, until_ms, rates, sandboxes: all, total }
    }
}

impl Tally {
    fn made(&mut self, created: SandboxCreated, now: u64, actor: &str) {
        self.name = created.name.map(String::from);
        self.limits = serde_json::from_value(created.limits).unwrap_or_default();
        self.running_since.get_or_insert(now);
        // Others live until their keeper says otherwise, and it does say when they end.
        if actor == "cli" {
            let most = u64::try_from(self.limits.timeout.0.as_millis()).unwrap_or(u64::MAX);
            self.latest = Some(now.saturating_add(most));
        }
    }

    /// Counts what of its last run lies between the two moments.
    fn stopped(&mut self, now: u64, since: u64, until: u64) {
        let Some(started) = self.running_since.take() else { return };
        let end = now.min(self.latest.unwrap_or(u64::MAX)).min(until);
        let ran = end.saturating_sub(started.max(since));
        let hours = ran as f64 / HOUR_MS;
        self.figures.running_ms = self.figures.running_ms.saturating_add(ran);
        self.figures.cpu_hours += hours * f64::from(self.limits.cpus);
        self.figures.memory_gib_hours += hours * self.limits.memory.0 as f64 / GIB;
    }

    fn spent(&mut self, spend: &Spend) {
        let figures = &mut self.figures;
        if spend.decision != Decision::Allowed {
            figures.calls_refused += 1;
            return;
        }
        figures.calls += 1;
        figures.input_tokens = figures.input_tokens.saturating_add(spend.input_tokens);
        figures.output_tokens = figures.output_tokens.saturating_add(spend.output_tokens);
        figures.cached_tokens = figures.cached_tokens.saturating_add(spend.cached_tokens);
        figures.tokens_micro_usd = figures.tokens_micro_usd.saturating_add(spend.usd_micros);
    }
}

impl Figures {
    fn plus(&mut self, other: &Self) {
        self.cpu_hours += other.cpu_hours;
        self.memory_gib_hours += other.memory_gib_hours;
        for (sum, more) in [
            (&mut self.running_ms, other.running_ms),
            (&mut self.compute_micro_usd, other.compute_micro_usd),
            (&mut self.calls, other.calls),
            (&mut self.calls_refused, other.calls_refused),
            (&mut self.input_tokens, other.input_tokens),
            (&mut self.output_tokens, other.output_tokens),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.tokens_micro_usd, other.tokens_micro_usd),
            (&mut self.total_micro_usd, other.total_micro_usd),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use sloplet_ledger::event::{SandboxChanged, SandboxGone};
    use sloplet_ledger::{Filter, Ledger, Options};

    use super::*;

    #[test]
    fn time_and_calls_add_up() {
        let data = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(data.path(), Options::default());
        let created = || {
            let limits = serde_json::to_value(Limits::default()).unwrap();
            Event::SandboxCreated(SandboxCreated { name: Some("my".into()), limits, ..SandboxCreated::default() })
        };
        let to = |state: &str| Event::SandboxChanged(SandboxChanged { to: state.into(), ..SandboxChanged::default() });
        let spend = |decision| {
            Event::Spend(Spend { input_tokens: 10, output_tokens: 3, usd_micros: 250, decision, ..Spend::default() })
        };
        for (sandbox, actor, event) in [
            ("a", "key:me", created()),
            ("a", "sandbox", spend(Decision::Allowed)),
            ("a", "sandbox", spend(Decision::Denied)),
            ("a", "key:me", to("paused")),
            ("b", "cli", created()),
            ("c", "key:me", created()),
            ("c", "key:me", Event::SandboxGone(SandboxGone::default())),
        ] {
            ledger.record(Some(sandbox), actor, event).unwrap();
        }
        let records: Vec<Record> = ledger.query(Filter::default()).unwrap().collect::<Result<_, _>>().unwrap();
        let (first, last) = (records[0].time_ms, records[records.len() - 1].time_ms);
        let rates = Compute { cpu_hour: 0.5, memory_gib_hour: 0.25 };
        // A week later: one is paused, one has long ended without a word, one is gone.
        let until = last + 7 * 24 * 3_600_000;
        let mut summing = Summing::new(first, until, rates);
        records.iter().for_each(|record| summing.add(record));
        let costs = summing.finish();
        let of = |id: &str| costs.sandboxes.iter().find(|one| one.sandbox == id).map(|one| one.figures.clone());
        let (a, b) = (of("a").unwrap(), of("b").unwrap());
        assert_eq!((a.calls, a.calls_refused, a.input_tokens, a.output_tokens, a.tokens_micro_usd), (1, 1, 10, 3, 250));
        assert!(a.running_ms <= last - first, "{a:?}");
        assert_eq!(
            (b.running_ms, b.cpu_hours, b.memory_gib_hours),
            (3_600_000, 2.0, 2.0),
            "an hour is what it may live"
        );
        assert_eq!(b.compute_micro_usd, 1_500_000);
        assert_eq!(
            costs.total.total_micro_usd,
            a.total_micro_usd + b.total_micro_usd + of("c").map_or(0, |c| c.total_micro_usd)
        );
        // Nothing of that was tomorrow.
        let mut later = Summing::new(last + 24 * 3_600_000, until, rates);
        records.iter().for_each(|record| later.add(record));
        let later = later.finish();
        assert_eq!(later.sandboxes, []);
        assert_eq!(later.total, Figures::default());
    }
}
