//! `sloplet verify`

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use sloplet_engine::Engine;
use sloplet_policy::{DriverReport, Isolation, Spec, weakness};
use sloplet_verify::record::{self, Records};
use sloplet_verify::{Report, Verdict, Verification, VerifyError, html, junit};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::Verify;
use crate::config::{self, Rest};
use crate::progress::ProgressLine;
use crate::{setup, table, terminal};

/// Something got out.
const BREACH: u8 = 1;

/// Of some wall, nothing is known.
const UNFINISHED: u8 = 125;

pub fn run(data: Option<PathBuf>, options: Verify) -> anyhow::Result<u8> {
    let file = config::file(&setup::places(data.clone())?.data, &options.machine)?;
    let rest = Rest { image: options.image.clone(), timeout: options.timeout, output: None };
    let mut spec = config::spec(&file, &options.machine, rest)?;
    spec.weaken = options.weaken.as_deref().map(weakness::for_test).transpose()?;
    let engine = setup::engine(data, None)?.protecting(file.protect);
    let walls = walls(&engine, &spec)?;
    let runtime = setup::runtime()?;
    // Given up, it takes its canaries along.
    let reports = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            reports = all(&engine, &options, &spec, &walls) => reports,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
            _ = terminate.recv() => bail!("interrupted"),
        }
    });
    engine.shut_down();
    let Outcome { reports, unfinished } = reports?;
    if let Some(path) = &options.junit {
        write(path, &junit::document(&reports))?;
    }
    if let Some(path) = &options.html {
        write(path, &html::page(&reports))?;
    }
    if options.json {
        say!("{}", serde_json::to_string_pretty(&reports)?);
    } else {
        reports.iter().for_each(|report| print(report, options.verbose));
    }
    Ok(match (reports.iter().all(Report::passed), unfinished) {
        (false, _) => BREACH,
        (true, true) => UNFINISHED,
        (true, false) => 0,
    })
}

/// What came of all walls.
#[derive(Default)]
struct Outcome {
    /// Of those that were attacked to the end.
    reports: Vec<Report>,
    /// Whether an attack broke off: a wall that makes no such sandbox at all needs none.
    unfinished: bool,
}

/// Attacks one wall after the other. One that cannot be attacked takes nothing from what is known of the others.
async fn all(engine: &Engine, options: &Verify, spec: &Spec, walls: &[String]) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::default();
    for wall in walls {
        let error = match one(engine, options, spec, wall).await {
            Ok(report) => {
                outcome.reports.push(report);
                continue;
            }
            Err(error) => error,
        };
        // The only one, or none of them could be: that is the answer.
        if walls.len() == 1 || (outcome.reports.is_empty() && walls.last() == Some(wall)) {
            return Err(error);
        }
        let refused = error.downcast_ref::<VerifyError>().is_some_and(VerifyError::is_refusal);
        let word = if refused { "makes no such sandbox" } else { "could not be verified" };
        complain!("sloplet: {wall} {word}: {}", terminal::harmless(&format!("{error:#}")));
        outcome.unfinished |= !refused;
    }
    Ok(outcome)
}

/// Attacks one wall, or finds that it was.
async fn one(engine: &Engine, options: &Verify, spec: &Spec, wall: &str) -> anyhow::Result<Report> {
    let records = Records::of(&engine.places().data);
    let program = Path::new(setup::PROGRAM);
    let mut spec = Spec { driver: Some(wall.to_owned()), ..spec.clone() };
    let report = engine.report(&spec)?;
    spec.isolation = report.isolation;
    let digest = record::digest(&spec, engine.radius(), &report, program);
    if options.changed
        && options.probe.is_empty()
        && let record::Standing::Good(report) = records.standing(&digest, options.max_age.0)
    {
        complain!("sloplet: {}: nothing has changed since {}", report.driver, html::date(report.started_ms));
        return Ok(*report);
    }
    let line = ProgressLine::new();
    let progress = |probe: &str, place: usize, count: usize| {
        line.show(|| Some(format!("{wall} {place}/{count} {probe}")));
    };
    let (program, only) = (program.to_owned(), options.probe.clone());
    let sign = |report: &Report| signed(engine, report);
    let wanted = Verification { engine, spec, program, only, progress: &progress, finished: &sign };
    let report = sloplet_verify::verify(wanted).await;
    line.clear();
    let report = report?;
    records.keep(&report).context("keeping the result")?;
    Ok(report)
}

/// Writes a result into the ledger, and has it signed. What was weakened on purpose says nothing about this host.
fn signed(engine: &Engine, report: &Report) -> std::io::Result<()> {
    if report.weakened.is_some() {
        return Ok(());
    }
    let count = |verdict| report.count(verdict) as u64;
    let event = sloplet_ledger::event::Verification {
        sha256: sloplet_ledger::sha256(report.text()?.as_bytes()).as_str().into(),
        contained: count(Verdict::Contained),
        escaped: count(Verdict::Breach),
        skipped: count(Verdict::Inconclusive) + count(Verdict::NotApplicable),
        digest: report.digest.as_str().into(),
        driver: report.driver.as_str().into(),
        complete: report.complete,
    };
    let ledger = engine.ledger();
    let written = ledger.record(None, "verify", sloplet_ledger::Event::Verification(event));
    written.and_then(|()| ledger.flush()).map_err(std::io::Error::other)
}

/// Why a wall is not attacked, if it is not.
fn objection(driver: &str) -> Option<&'static str> {
    (driver == sloplet_driver_vm::whole::NAME)
        .then_some("root of a whole machine may do all that the probes try; verify 'vm', which is the same machine")
}

/// A wall that is.
fn attackable(driver: &str) -> anyhow::Result<String> {
    match objection(driver) {
        Some(objection) => bail!("{driver} cannot be verified: {objection}"),
        None => Ok(driver.to_owned()),
    }
}

/// Which walls, by name. Of all, those that work here.
fn walls(engine: &Engine, spec: &Spec) -> anyhow::Result<Vec<String>> {
    let known: Vec<(&str, Isolation)> = engine.walls().collect();
    match spec.driver.as_deref() {
        None => Ok(vec![attackable(engine.driver_name(spec)?)?]),
        Some("all") => {
            let works = |report: &DriverReport| {
                let reason = objection(&report.driver).or(report.unavailable.as_deref());
                if let Some(reason) = reason {
                    complain!("sloplet: {} is left out: {}", report.driver, terminal::harmless(reason));
                }
                reason.is_none()
            };
            Ok(engine.reports().into_iter().filter(works).map(|report| report.driver).collect())
        }
        Some(name) => {
            // Of the walls of a level, the one that it stands for.
            let level = known.iter().find(|(_, level)| level.name() == name).map(|(_, isolation)| *isolation);
            match (known.iter().find(|(known, _)| *known == name), level) {
                (Some((known, _)), _) => Ok(vec![attackable(known)?]),
                (None, Some(isolation)) => {
                    let usual = Spec { driver: None, isolation, ..spec.clone() };
                    Ok(vec![attackable(engine.driver_name(&usual)?)?])
                }
                (None, None) => {
                    let names: Vec<&str> = known.iter().map(|(known, _)| *known).collect();
                    bail!("there is no driver '{name}': choose of all, {}", names.join(", "))
                }
            }
        }
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn print(report: &Report, verbose: bool) {
    say!("{} (isolation {}) on {}, as {}", report.driver, report.isolation, report.kernel, report.user);
    say!("{}", terminal::harmless(&report.configuration));
    say!();
    let short = |text: &str, length: usize| match text.char_indices().nth(length) {
        Some((end, _)) if !verbose => format!("{}…", &text[..end]),
        _ => text.to_owned(),
    };
    let rows: Vec<[String; 4]> = report
        .results
        .iter()
        .map(|result| {
            let ids: Vec<String> = result.ids.iter().map(u8::to_string).collect();
            [result.probe.clone(), ids.join(","), result.verdict.to_string(), short(&result.detail, 80)]
        })
        .collect();
    table::print(["PROBE", "NO.", "VERDICT", "WHAT HAPPENED"], &rows);
    if verbose {
        say!();
        for result in &report.results {
            say!("{}: {}", result.probe, result.tries);
            say!("  why      {}", result.why);
            say!("  control  {}", terminal::harmless(&result.control));
            for part in &result.parts {
                let inside: Vec<String> = part.inside.iter().map(|(user, what)| format!("{user}: {what}")).collect();
                let words = format!("{}: unconfined {}; inside {}", part.name, part.control, inside.join(", "));
                say!("  {:<14} {}", part.verdict.to_string(), terminal::harmless(&words));
            }
        }
    }
    say!();
    let word = match report.passed() {
        true => terminal::green("nothing got out"),
        false => terminal::red("SOMETHING GOT OUT"),
    };
    say!("{word}: {} ({:.1} s)", report.summary(), report.took_ms as f64 / 1000.0);
    let unclear = report.count(Verdict::Inconclusive);
    if unclear > 0 && !verbose {
        say!("{unclear} inconclusive: --verbose tells why");
    }
}
