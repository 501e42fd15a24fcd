//! How many machines to keep ready: pure, so that it can be tried on traces.
//!
//! Claims are counted second by second. What is **expected** until a claimed machine is replaced is the smoothed rate times the
//! time that making one takes; the **head-room** is what the greatest burst of late took beyond that. Their sum is what demand
//! asks for, between what the owner asked for and what something forbids.

use std::collections::VecDeque;
use std::time::Duration;

use super::config::PoolConfig;

/// Over how many seconds the rate is smoothed.
const SMOOTHING: f64 = 30.0;

/// Seconds of history, at most.
const HISTORY: usize = 600;

/// How many of the times that making one took count.
const LEAD_WEIGHT: f64 = 0.2;

/// How demand has been.
#[derive(Debug, Clone, Default)]
pub struct Demand {
    /// Claims a second, smoothed.
    rate: f64,
    /// Claims in each of the last seconds, the oldest first; the last one is not over yet.
    seconds: VecDeque<u32>,
    /// Which second the last one is.
    now: u64,
    /// When the last claim was, in milliseconds.
    claimed_ms: Option<u64>,
    /// Seconds that making one takes, smoothed.
    lead: f64,
}

impl Demand {
    /// From now on. A pool that was just asked for is not idle.
    pub fn since(now_ms: u64) -> Self {
        Self { now: now_ms / 1000, seconds: VecDeque::from([0]), claimed_ms: Some(now_ms), ..Self::default() }
    }

    /// Somebody wants one, whether it was there or not.
    pub fn claimed(&mut self, now_ms: u64) {
        self.pass(now_ms);
        self.claimed_ms = Some(now_ms);
        if let Some(last) = self.seconds.back_mut() {
            *last = last.saturating_add(1);
        }
    }

    /// Somebody is about to want one.
    pub fn wake(&mut self, now_ms: u64) {
        self.claimed_ms = Some(now_ms);
    }

    /// One was made, and took so long.
    pub fn made(&mut self, took: Duration) {
        let took = took.as_secs_f64();
        self.lead = if self.lead == 0.0 { took } else { self.lead + LEAD_WEIGHT * (took - self.lead) };
    }

    /// Time goes by.
    pub fn pass(&mut self, now_ms: u64) {
        let second = now_ms / 1000;
        // A clock that was set back, or far ahead, is no reason to count for hours.
        let passed = second.saturating_sub(self.now).min(HISTORY as u64);
        self.now = second;
        for _ in 0..passed {
            let claims = f64::from(self.seconds.back().copied().unwrap_or(0));
            self.rate += (claims - self.rate) * (1.0 - (-1.0 / SMOOTHING).exp());
            self.seconds.push_back(0);
        }
        if self.seconds.is_empty() {
            self.seconds.push_back(0);
        }
        let surplus = self.seconds.len().saturating_sub(HISTORY);
        self.seconds.drain(..surplus);
    }

    /// How long nobody has claimed one.
    pub fn quiet(&self, now_ms: u64) -> Duration {
        self.claimed_ms.map_or(Duration::MAX, |claimed| Duration::from_millis(now_ms.saturating_sub(claimed)))
    }

    /// The most claims of late in the time that it takes to replace one; bursts do not begin with a second, so in one more.
    fn burst(&self, remembered: Duration) -> u32 {
        let width = (self.lead.ceil() as usize).clamp(1, HISTORY) + 1;
        let length = (remembered.as_secs().max(1) as usize + width).min(self.seconds.len());
        let late: Vec<u32> = self.seconds.iter().skip(self.seconds.len() - length).copied().collect();
        late.windows(width.min(late.len()).max(1)).map(|some| some.iter().sum()).max().unwrap_or(0)
    }
}

/// What keeps a pool from being larger, or makes it as large as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bound {
    /// What the owner wants kept.
    Target,
    /// What demand asks for.
    Demand,
    /// Nobody has claimed one for long.
    Idle,
    /// The most that the owner allows.
    Max,
    /// What the owner's key may have.
    Quota,
    /// What the owner's pools may have together.
    Total,
    /// What all pools of the server may have together.
    Server,
    /// What waiting may cost.
    Cost,
    /// It was drained.
    Drained,
}

impl Bound {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Target,
        Self::Demand,
        Self::Idle,
        Self::Max,
        Self::Quota,
        Self::Total,
        Self::Server,
        Self::Cost,
        Self::Drained,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::Demand => "demand",
            Self::Idle => "idle",
            Self::Max => "max",
            Self::Quota => "quota",
            Self::Total => "total",
            Self::Server => "server",
            Self::Cost => "cost",
            Self::Drained => "drained",
        }
    }
}

/// How many are wanted, and why.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wish {
    /// Claims a second, smoothed.
    pub rate: f64,
    /// Seconds that making one takes.
    pub lead: f64,
    /// Claims that are expected until one is replaced.
    pub expected: f64,
    /// What is kept beyond that for bursts.
    pub headroom: f64,
    /// So many are to be ready.
    pub wanted: u32,
    /// What that comes from.
    pub bound: Bound,
    /// More than these are forbidden: those beyond go at once.
    pub ceiling: u32,
}

impl Wish {
    /// What a pool wishes for; `caps` are what forbids more, and why.
    pub fn of(config: &PoolConfig, demand: &Demand, now_ms: u64, caps: &[(u32, Bound)]) -> Self {
        let expected = demand.rate * (demand.lead + 1.0);
        let burst = f64::from(demand.burst(config.cooldown_after_acquire.0));
        let headroom = if config.adaptive { (burst - expected).max(0.0) } else { 0.0 };
        let asked = match config.adaptive {
            true => (expected + headroom - 1e-9).ceil().clamp(0.0, f64::from(u32::MAX)) as u32,
            false => 0,
        };
        let idle = demand.quiet(now_ms) > config.idle_timeout.0.max(config.cooldown_after_acquire.0);
        let (mut wanted, mut bound) = match idle {
            true if config.least() < config.target_ready => (config.least(), Bound::Idle),
            true => (config.target_ready, Bound::Target),
            false if asked > config.target_ready => (asked, Bound::Demand),
            false => (config.target_ready, Bound::Target),
        };
        let mut ceiling = u32::MAX;
        for &(most, why) in [(config.max_ready, Bound::Max)].iter().chain(caps) {
            ceiling = ceiling.min(most);
            (wanted, bound) = if most < wanted { (most, why) } else { (wanted, bound) };
        }
        Self { rate: demand.rate, lead: demand.lead, expected, headroom, wanted, bound, ceiling }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(target: u32, max: u32) -> PoolConfig {
        PoolConfig { target_ready: target, max_ready: max, ..PoolConfig::default() }
    }

    /// Replays claims (one number for each second), with a pool that is refilled after each second to what is wished for.
    /// Returns hits, claims, and the machines that waited, in seconds.
    fn replay(config: &PoolConfig, trace: &[u32]) -> (u32, u32, u64) {
        let mut demand = Demand::since(0);
        demand.made(Duration::from_millis(10));
        let (mut ready, mut hits, mut waited, mut shrunk) = (config.target_ready, 0, 0u64, 0);
        for (second, &claims) in trace.iter().enumerate() {
            let now_ms = second as u64 * 1000;
            demand.pass(now_ms);
            let wish = Wish::of(config, &demand, now_ms, &[]);
            let patience = config.scale_down_delay.0.as_millis() as u64;
            if ready < wish.wanted {
                ready = wish.wanted;
            } else if ready > wish.wanted
                && demand.quiet(now_ms) > config.cooldown_after_acquire.0
                && now_ms >= shrunk + patience
            {
                (ready, shrunk) = (ready - 1, now_ms);
            }
            waited += u64::from(ready);
            hits += claims.min(ready);
            ready -= claims.min(ready);
            (0..claims).for_each(|_| demand.claimed(now_ms));
        }
        (hits, trace.iter().sum(), waited)
    }

    /// Bursts of twenty every half minute, and a claim now and then.
    fn bursty() -> Vec<u32> {
        (0..600).map(|second| if second % 30 == 7 { 20 } else { u32::from(second % 5 == 0) }).collect()
    }

    #[test]
    fn demand_is_met_better_than_with_a_fixed_size_and_within_bounds() {
        let fixed = PoolConfig { adaptive: false, ..config(4, 32) };
        let (fixed_hits, claims, _) = replay(&fixed, &bursty());
        let (hits, _, _) = replay(&config(4, 32), &bursty());
        let rate = |hits: u32| f64::from(hits) / f64::from(claims);
        assert!(rate(hits) > 0.9, "{}", rate(hits));
        assert!(rate(fixed_hits) < 0.5, "{}", rate(fixed_hits));
        // The same demand, and not more than is allowed.
        let (bounded, _, waited) = replay(&config(4, 8), &bursty());
        assert!(bounded > fixed_hits && bounded < hits && waited <= 8 * 600, "{bounded} {waited}");
    }

    #[test]
    fn a_pool_that_nobody_uses_falls_back_to_what_is_always_kept() {
        let mut trace = bursty();
        trace.extend([0; 3600]);
        let to_zero = PoolConfig { min_ready: Some(0), ..config(4, 32) };
        for (config, least) in [(config(0, 32), 0), (config(4, 32), 4), (to_zero, 0)] {
            let mut demand = Demand::since(0);
            for (second, &claims) in trace.iter().enumerate() {
                (0..claims).for_each(|_| demand.claimed(second as u64 * 1000));
            }
            let end = trace.len() as u64 * 1000;
            demand.pass(end);
            let wish = Wish::of(&config, &demand, end, &[]);
            assert_eq!(wish.wanted, least, "{wish:?}");
            assert!(wish.rate < 0.01 && wish.headroom == 0.0, "{wish:?}");
        }
    }

    #[test]
    fn the_tightest_bound_is_named() {
        let mut demand = Demand::since(0);
        (0..50).for_each(|_| demand.claimed(500));
        let config = config(2, 40);
        let wish = |caps: &[(u32, Bound)]| {
            let wish = Wish::of(&config, &demand, 900, caps);
            (wish.wanted, wish.bound, wish.ceiling)
        };
        assert_eq!(wish(&[]), (40, Bound::Max, 40));
        assert_eq!(wish(&[(30, Bound::Quota), (20, Bound::Cost), (25, Bound::Total)]), (20, Bound::Cost, 20));
        assert_eq!(wish(&[(0, Bound::Drained)]), (0, Bound::Drained, 0));
        let calm = Wish::of(&config, &Demand::since(0), 900, &[(30, Bound::Quota)]);
        assert_eq!((calm.wanted, calm.bound, calm.ceiling), (2, Bound::Target, 30));
    }

    #[test]
    fn slow_machines_need_more_of_them() {
        let asked = |lead: u64| {
            let mut demand = Demand::since(0);
            demand.made(Duration::from_secs(lead));
            (0..60).for_each(|second| demand.claimed(second * 1000));
            Wish::of(&config(0, 100), &demand, 60_000, &[]).wanted
        };
        assert!(asked(10) >= 10 && asked(10) > asked(1), "{} {}", asked(10), asked(1));
    }

    #[test]
    fn a_clock_that_jumps_does_no_harm() {
        let mut demand = Demand::since(1_000_000);
        demand.claimed(5);
        demand.pass(u64::MAX);
        demand.claimed(0);
        let wish = Wish::of(&config(1, 10), &demand, 0, &[]);
        assert!(wish.rate.is_finite() && wish.wanted <= 10, "{wish:?}");
    }
}
