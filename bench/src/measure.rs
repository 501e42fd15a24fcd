//! Rounds and samples.

use std::time::Duration;

use anyhow::Result;

use crate::interrupt;
use crate::report::Timing;

/// Between two measurements. Back-to-back runs would hide what the kernel puts off (RCU, the death of network
/// namespaces) and charge it to whoever comes next.
const PAUSE: Duration = Duration::from_millis(12);

/// The slow ones leave more behind.
const LONG_PAUSE: Duration = Duration::from_millis(60);

/// How often the slow ones take part: every so many rounds.
const SELDOM: usize = 5;

/// One of those that take turns.
pub struct Contender<'a> {
    name: &'static str,
    slow: bool,
    /// Runs once; returns how long that took.
    action: Box<dyn FnMut() -> Result<Duration> + 'a>,
}

impl<'a> Contender<'a> {
    /// One that takes part in every round.
    pub fn new(name: &'static str, action: impl FnMut() -> Result<Duration> + 'a) -> Self {
        Self { name, slow: false, action: Box::new(action) }
    }

    /// One that takes part seldom, because it takes so long.
    pub fn slow(name: &'static str, action: impl FnMut() -> Result<Duration> + 'a) -> Self {
        Self { slow: true, ..Self::new(name, action) }
    }

    /// One that is not here.
    pub fn missing(name: &'static str, reason: anyhow::Error) -> Self {
        let reason = format!("{reason:#}");
        Self::new(name, move || Err(anyhow::anyhow!(reason.clone())))
    }
}

/// Times measured for one contender.
#[derive(Default)]
pub struct Samples {
    times: Vec<Duration>,
    failures: usize,
}

impl Samples {
    /// Adds one.
    pub fn add(&mut self, time: Duration) {
        self.times.push(time);
    }

    /// A row of the table.
    pub fn timing(mut self, name: &str) -> Timing {
        self.times.sort_unstable();
        let at = |part: f64| self.times.get(((self.times.len().max(1) - 1) as f64 * part).round() as usize);
        let ms = |time: Option<&Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
        Timing {
            name: name.to_owned(),
            samples: self.times.len(),
            failures: self.failures,
            best_ms: ms(self.times.first()),
            p50_ms: ms(at(0.5)),
            p95_ms: ms(at(0.95)),
            missing: None,
        }
    }
}

/// Runs one of each per round, every round beginning with another one, so that nobody always suffers from the same
/// predecessor.
pub fn take_turns(rounds: usize, mut contenders: Vec<Contender<'_>>) -> Result<Vec<Timing>> {
    let mut missing: Vec<Option<String>> = Vec::new();
    for contender in &mut contenders {
        interrupt::check()?;
        // The first run fills caches and shows whether it works at all.
        missing.push((contender.action)().err().map(|error| format!("{error:#}")));
        std::thread::sleep(LONG_PAUSE);
    }
    let count = contenders.len();
    let mut samples: Vec<Samples> = (0..count).map(|_| Samples::default()).collect();
    for round in 0..rounds {
        for step in 0..count {
            let index = (round + step) % count;
            let contender = &mut contenders[index];
            if missing[index].is_some() || (contender.slow && round % SELDOM != 0) {
                continue;
            }
            interrupt::check()?;
            match (contender.action)() {
                Ok(time) => samples[index].add(time),
                Err(_) => samples[index].failures += 1,
            }
            std::thread::sleep(if contender.slow { LONG_PAUSE } else { PAUSE });
        }
    }
    let rows = contenders.iter().zip(samples).zip(missing);
    Ok(rows.map(|((contender, samples), missing)| Timing { missing, ..samples.timing(contender.name) }).collect())
}

/// The one in the middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_and_an_empty_row_is_no_panic() {
        let mut samples = Samples::default();
        (1..=100).rev().for_each(|ms| samples.add(Duration::from_millis(ms)));
        let timing = samples.timing("x");
        assert_eq!((timing.samples, timing.best_ms), (100, 1.0));
        assert!((timing.p50_ms - 50.0).abs() <= 1.0 && (timing.p95_ms - 95.0).abs() <= 1.0);
        assert!(Samples::default().timing("none").p50_ms.is_nan());
    }

    #[test]
    fn one_that_fails_at_first_is_missing_and_never_run_again() {
        let mut runs = 0;
        let broken = Contender::new("broken", || {
            runs += 1;
            anyhow::bail!("not installed")
        });
        let fine = Contender::new("fine", || Ok(Duration::from_millis(1)));
        let rows = take_turns(3, vec![broken, fine]).unwrap();
        assert_eq!(runs, 1);
        assert_eq!(rows[0].missing.as_deref(), Some("not installed"));
        assert_eq!((rows[1].samples, rows[1].missing.is_none()), (3, true));
    }
}
