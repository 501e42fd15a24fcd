//! kill -9 of the server at every step of every operation: what it tells afterwards is what is there.
//!
//! Each [operation](operations) is carried out once to see which [failpoints](sloplet_engine::failpoint) it reaches; then again
//! for steps of it, and the server [kills itself](trial) there. What the next one tells is compared with [what is
//! there](truth).
//!
//! Every operation has its turn, and every failpoint. `SLOPLET_TEST_KILLS` says how many kills there are to be at least: then
//! every step of every operation is tried, again and again, and from the second round on servers die while they recover, too.
//! `SLOPLET_TEST_OPERATIONS` has parts of the names of those operations that are to be tried, with commas between them.

mod operations;
mod trial;
mod truth;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use operations::{OPERATIONS, Operation};
use sloplet_engine::failpoint::Point;
use trial::{Step, Trial};

/// Servers at once: most of the time each waits for something.
const WORKERS: usize = 3;

/// Most steps that a start takes.
const START_STEPS: usize = 100;

/// What is to be tried.
enum Job {
    Operation(&'static Operation),
    /// A start of the server.
    Start,
}

/// What all workers share.
#[derive(Default)]
struct Progress {
    jobs: VecDeque<Job>,
    /// Points that somebody dies at, or has.
    taken: BTreeSet<String>,
    killed_at: BTreeMap<String, usize>,
    kills: usize,
    steps: usize,
    failures: Vec<String>,
}

struct Run {
    progress: Mutex<Progress>,
    /// Every step, or just enough for every operation and every point.
    thorough: bool,
    round: usize,
}

impl Run {
    /// Tries one after the other, until there is none.
    fn work(&self) {
        let mut trial = None;
        while let Some(job) = self.with(|progress| progress.jobs.pop_front()) {
            let began = Instant::now();
            let mut used: Trial = trial.take().unwrap_or_else(Trial::new);
            let name = match &job {
                Job::Operation(operation) => operation.name,
                Job::Start => "start",
            };
            let tried = catch_unwind(AssertUnwindSafe(|| match job {
                Job::Operation(operation) => self.try_operation(&mut used, operation),
                Job::Start => self.try_start(&mut used),
            }));
            self.note(&mut used);
            match tried {
                Ok(steps) => {
                    eprintln!("{name}: {steps} steps, {:.1?}", began.elapsed());
                    trial = Some(used);
                }
                // What it left behind is nobody else's business.
                Err(panic) => self.fail(name, panic.as_ref()),
            }
        }
        if let Some(trial) = trial
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| trial.end()))
        {
            self.fail("the end", panic.as_ref());
        }
    }

    fn with<T>(&self, look: impl FnOnce(&mut Progress) -> T) -> T {
        look(&mut self.progress.lock().unwrap())
    }

    fn note(&self, trial: &mut Trial) {
        let (kills, killed_at) = (std::mem::take(&mut trial.kills), std::mem::take(&mut trial.killed_at));
        self.with(|progress| {
            progress.kills += kills;
            for (point, count) in killed_at {
                *progress.killed_at.entry(point).or_default() += count;
            }
        });
    }

    fn fail(&self, name: &str, panic: &(dyn std::any::Any + Send)) {
        let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        let failure = format!("{name}: {}", said.unwrap_or("it failed"));
        eprintln!("FAILED {failure}");
        self.with(|progress| progress.failures.push(failure));
    }

    /// The steps of an operation that are tried: each point at least once in the whole run, and one of each operation.
    fn choose(&self, steps: &[Step]) -> Vec<(usize, Step)> {
        let all: Vec<(usize, Step)> = steps.iter().cloned().enumerate().collect();
        self.with(|progress| {
            progress.steps += steps.len();
            let new: Vec<bool> = steps.iter().map(|(point, _)| progress.taken.insert(point.clone())).collect();
            if self.thorough {
                return all;
            }
            let mut chosen: Vec<_> = all.iter().filter(|(index, _)| new[*index]).cloned().collect();
            if chosen.is_empty() {
                chosen.extend(all.into_iter().nth(steps.len() / 2));
            }
            chosen
        })
    }

    fn try_operation(&self, trial: &mut Trial, operation: &Operation) -> usize {
        let steps = trial.trace(operation);
        assert!(!steps.is_empty(), "{} reaches no point", operation.name);
        let chosen = self.choose(&steps);
        for (index, step) in &chosen {
            // Another step of the recovery each time.
            let again = (self.round > 0).then(|| 1 + (index * 7 + self.round * 3) % 16);
            trial.die_at(operation, step, again);
        }
        chosen.len()
    }

    /// Starts that end at their first step, at their second, and so on until one does not end.
    fn try_start(&self, trial: &mut Trial) -> usize {
        let last = (1..START_STEPS).find(|step| !trial.die_while_starting(*step)).expect("a start that ends");
        self.with(|progress| progress.taken.extend(trial.killed_at.keys().cloned()));
        last
    }
}

#[test]
fn a_server_killed_at_any_step_of_any_operation_tells_the_truth_afterwards() {
    let wanted = std::env::var("SLOPLET_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let some = std::env::var("SLOPLET_TEST_OPERATIONS").unwrap_or_default();
    let (began, thorough) = (Instant::now(), wanted > 1 || !some.is_empty());
    let is_wanted = |name: &str| some.split(',').any(|part| name.contains(part));
    let mut run = Run { progress: Mutex::default(), thorough, round: 0 };
    loop {
        let operations = OPERATIONS.iter().filter(|operation| is_wanted(operation.name)).map(Job::Operation);
        let start = is_wanted("start").then_some(Job::Start);
        // The longest first.
        run.with(|progress| progress.jobs = start.into_iter().chain(operations).collect());
        thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| run.work());
            }
        });
        let (kills, steps) = run.with(|progress| (progress.kills, progress.steps));
        eprintln!("round {}: {kills} kills at {steps} steps so far, {:.0?}", run.round, began.elapsed());
        run.round += 1;
        if kills >= wanted || run.with(|progress| !progress.failures.is_empty()) {
            break;
        }
    }
    let Progress { kills, killed_at, failures, .. } = run.progress.into_inner().unwrap();
    println!("{kills} kills at {} of {} points, {:.0?}", killed_at.len(), Point::ALL.len(), began.elapsed());
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
    let never: Vec<&str> =
        Point::ALL.iter().map(|point| point.name()).filter(|name| !killed_at.contains_key(*name)).collect();
    assert!(never.is_empty() || !some.is_empty(), "no server died at {never:?}, but at {killed_at:?}");
}
