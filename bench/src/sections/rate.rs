//! Sandboxes per second: created, used once, destroyed.

use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::names::BEST_RATE;
use crate::interrupt;
use crate::options::Options;
use crate::ours::{self, Ours};
use crate::print;
use crate::report::{Quantity, Report, Table};
use crate::scratch::Scratch;

/// One for each processor of a small machine.
const SPAWNERS: usize = 2;

/// Measures and prints it.
pub fn measure(options: &Options, report: &mut Report, dir: &Scratch) -> Result<()> {
    let time = Duration::from_secs(if options.quick { 1 } else { 5 });
    let ours = Ours::start(dir, SPAWNERS)?;
    ours.block_on(ours::whole_life)?;
    ours.block_on(ours::whole_life)?;
    let mut rows = Vec::new();
    for at_once in [1, 2, 3, 4] {
        interrupt::check()?;
        let started = Instant::now();
        let lives = ours.block_on(async |engine| {
            let worker = async || -> Result<usize> {
                let mut lives = 0;
                while started.elapsed() < time {
                    ours::whole_life(engine).await?;
                    lives += 1;
                }
                Ok(lives)
            };
            all((0..at_once).map(|_| worker())).await
        })?;
        let rate = lives.iter().sum::<usize>() as f64 / started.elapsed().as_secs_f64();
        rows.push(Quantity::new(format!("{at_once} at once"), rate, "/s"));
    }
    let best = rows.iter().map(|row| row.value).fold(0.0, f64::max);
    rows.push(Quantity::new(BEST_RATE, best, "/s"));
    let title = format!("create + exec + destroy, sustained, {SPAWNERS} spawners");
    let table = Table { title, rows };
    print::quantities(&table);
    report.quantities.push(table);
    Ok(())
}

/// Waits for all of them, side by side.
async fn all<T>(work: impl Iterator<Item = impl Future<Output = Result<T>>>) -> Result<Vec<T>> {
    let mut pending: Vec<_> = work.map(|work| Some(Box::pin(work))).collect();
    let mut done = Vec::new();
    let mut step = pin!(std::future::poll_fn(move |cx| {
        for slot in &mut pending {
            if let Some(Poll::Ready(result)) = slot.as_mut().map(|work| work.as_mut().poll(cx)) {
                *slot = None;
                match result {
                    Ok(value) => done.push(value),
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
        }
        match pending.iter().all(Option::is_none) {
            true => Poll::Ready(Ok(std::mem::take(&mut done))),
            false => Poll::Pending,
        }
    }));
    step.as_mut().await
}
