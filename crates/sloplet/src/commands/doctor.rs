//! `sloplet doctor`

use std::path::PathBuf;

use sloplet_engine::{Command, Engine, Patron};
use sloplet_policy::{DriverReport, Enforcement, Isolation, Spec};

use crate::terminal::{green, red};
use crate::{setup, terminal};

/// Walls that take longer to start than anybody wants to wait for a look.
const SLOW: [&str; 2] = ["vm", sloplet_driver_vm::whole::NAME];

pub fn run(data: Option<PathBuf>, probe: bool, json: bool) -> anyhow::Result<u8> {
    let engine = setup::engine(data, None)?;
    let mut reports = engine.reports();
    let runtime = setup::runtime()?;
    for report in &mut reports {
        if probe || !SLOW.contains(&report.driver.as_str()) {
            report.unavailable = runtime.block_on(trial(&engine, report));
        }
    }
    engine.shut_down();
    if json {
        let told = |report: &DriverReport| {
            let mut told = serde_json::to_value(report)?;
            told["wall"] = serde_json::to_value(report.summary())?;
            serde_json::Result::Ok(told)
        };
        say!("{}", serde_json::to_string_pretty(&reports.iter().map(told).collect::<Result<Vec<_>, _>>()?)?);
    } else {
        verdicts(&reports, probe);
        reports.iter().for_each(print);
    }
    Ok(u8::from(reports.iter().all(|report| report.unavailable.is_some())))
}

/// Whether a sandbox really starts: no look at the host's settings tells as much.
async fn trial(engine: &Engine, report: &DriverReport) -> Option<String> {
    let spec = Spec { driver: Some(report.driver.clone()), best_effort: true, ..Spec::default() };
    // Which images a container engine has is its owner's business: that it answers must do.
    // A whole machine is an image's own, and takes long to start.
    if engine.has_own_images(&spec).unwrap_or(false) || report.driver == sloplet_driver_vm::whole::NAME {
        return report.unavailable.clone();
    }
    let attempt = async {
        let sandbox = engine.create(spec, &Patron::plain("doctor")).await?;
        let output = sandbox.exec(Command::new(["true"])).await?.output(1 << 20).await?;
        sandbox.destroy().await?;
        anyhow::ensure!(output.exit.code == Some(0), "a trial command failed");
        Ok(())
    };
    attempt.await.err().map(|error: anyhow::Error| terminal::harmless(&format!("{error:#}")))
}

/// What most want to know, first.
fn verdicts(reports: &[DriverReport], probe: bool) {
    let usual = reports.iter().find(|report| report.isolation == Isolation::default() && report.unavailable.is_none());
    match usual {
        Some(report) => say!("{}: 'sloplet run' works here, by {}", green("good"), report.driver),
        None => say!("{}: 'sloplet run' does not work here as it is; see below for what is missing", red("bad")),
    }
    for report in reports {
        let verdict = match &report.unavailable {
            None if !probe && SLOW.contains(&report.driver.as_str()) => "ready, not tried (--probe starts one)".into(),
            None => green("works"),
            Some(_) => red("does not work here"),
        };
        say!("  {:<12} {:<10} {verdict}", report.driver, report.isolation.to_string());
    }
    say!();
}

fn print(report: &DriverReport) {
    say!("{} (isolation {})", report.driver, report.isolation);
    if let Some(reason) = &report.unavailable {
        say!("  {reason}");
    }
    say!("  {}", report.summary());
    for capability in &report.capabilities {
        let mark = match capability.enforcement {
            Enforcement::Enforced => "yes",
            Enforcement::Watched => "watched",
            Enforcement::Missing => "no",
        };
        say!("  {:<25} {mark:<8} {}", capability.feature.to_string(), capability.detail);
        if let Some(remedy) = &capability.remedy {
            say!("  {:<25} {:<8} → {remedy}", "", "");
        }
    }
    say!();
}
