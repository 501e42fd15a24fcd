//! A whole verification: canaries, controls, attempts, drills, verdicts.

use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command as HostCommand, Stdio};
use std::time::{Duration, Instant, SystemTime};

use sloplet_client::ClientError;
use sloplet_engine::{Command, DriverError, Engine, EngineError, Patron, Sandbox};
use sloplet_policy::{Bind, DriverReport, Feature, Isolation, Spec};

use crate::canaries::{Canaries, Harm, told};
use crate::drill::Drill;
use crate::judge::{Inside, Terms, judge};
use crate::part::Answer;
use crate::probe::{Finding, Kind, Probe, Verdict};
use crate::probes;
use crate::program::SUBCOMMAND;
use crate::record::digest;
use crate::report::{Report, Result as ProbeResult};
use crate::settings::Settings;

/// How long all attempts may take together. An emulated processor is slow.
const PATIENCE: Duration = Duration::from_secs(90);
const PATIENCE_WITH_OWN_KERNEL: Duration = Duration::from_secs(600);

/// Most bytes of answers from inside.
const ANSWERS: usize = 4 << 20;

/// What is to be verified.
pub struct Verification<'a> {
    /// Makes the sandboxes.
    pub engine: &'a Engine,
    /// The configuration.
    pub spec: Spec,
    /// This binary.
    pub program: PathBuf,
    /// Only these probes; all if there are none.
    pub only: Vec<String>,
    /// Is told which probe is next, its place, and how many there are.
    pub progress: &'a dyn Fn(&str, usize, usize),
    /// Is given the result, before anybody else: for a ledger that signs it. What cannot be written down counts for nothing.
    pub finished: &'a dyn Fn(&Report) -> io::Result<()>,
}

/// Why nothing could be verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// No such probe.
    #[error("there is no probe '{0}': choose of {1}")]
    Unknown(String, String),
    /// The canaries.
    #[error("cannot plant canaries on the host: {0}")]
    Canaries(#[source] io::Error),
    /// The controls.
    #[error("cannot make the attempts on the host: {0}")]
    Control(#[source] io::Error),
    /// The sandbox.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The agent.
    #[error("the attempts inside broke off: {0}")]
    Client(#[from] ClientError),
    /// The wall.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The result.
    #[error("cannot write the result down: {0}")]
    Unrecorded(#[source] io::Error),
}

impl VerifyError {
    /// Whether the wall makes no sandbox of this configuration: then there is none to be afraid of.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Engine(_) | Self::Driver(_))
    }
}

/// Attacks a sandbox of the given configuration.
pub async fn verify(wanted: Verification<'_>) -> Result<Report, VerifyError> {
    let (started, clock) = (SystemTime::now(), Instant::now());
    let probes = chosen(&wanted.only)?;
    let wall = wanted.engine.report(&wanted.spec)?;
    let mut canaries = Canaries::plant(&wanted.program, &wanted.engine.places().data).map_err(VerifyError::Canaries)?;
    let radius = wanted.engine.radius();
    canaries.settings.protected_hosts.clone_from(&radius.hosts);
    canaries.settings.protected_paths.clone_from(&radius.paths);
    canaries.settings.protected_env.clone_from(&radius.env);
    canaries.settings.way_out = wanted.spec.reaches_out();
    canaries.settings.host_programs =
        wanted.engine.resolve(&wanted.spec.image).map_or(true, |image| !image.binds.is_empty());
    canaries.settings.own_kernel = wall.claims(Feature::OwnKernel);
    let claims = wall.claimed();
    let (spec, program) = equipped(&wanted.spec, canaries.folder());
    let applies = |probe: &&&Probe| missing(probe, &wall).is_none();
    let attempts: Vec<&str> = probes
        .iter()
        .filter(applies)
        .filter(|probe| matches!(probe.kind, Kind::Attempts { .. }))
        .map(|probe| probe.name)
        .collect();
    (wanted.progress)("the same attempts on the host", 0, probes.len());
    let control = on_host(&wanted.program, &canaries, &attempts).await.map_err(VerifyError::Control)?;
    canaries.forget_calls();
    (wanted.progress)("attempts inside", 0, probes.len());
    let (inside, attempts_took) = match attempts.is_empty() {
        true => (Vec::new(), Duration::ZERO),
        false => {
            let clock = Instant::now();
            (inside(wanted.engine, &spec, &program, &canaries, &attempts).await?, clock.elapsed())
        }
    };
    let harm = canaries.harm();
    let each = attempts_took.as_millis() as u64 / (attempts.len().max(1) as u64);
    let mut results = Vec::new();
    for (place, probe) in probes.iter().enumerate() {
        (wanted.progress)(probe.name, place + 1, probes.len());
        let clock = Instant::now();
        let mut parts = Vec::new();
        let finding = match (&probe.kind, missing(probe, &wall)) {
            (_, Some(reason)) => Finding::not_applicable(reason),
            (Kind::Attempts { refusals, .. }, None) => {
                let of = |answers: &'_ [Answer]| -> Vec<Answer> {
                    answers.iter().filter(|answer| answer.probe == probe.name).cloned().collect()
                };
                let control = of(&control);
                let answers: Vec<(String, Vec<Answer>)> =
                    inside.iter().map(|(user, answers)| (user.clone(), of(answers))).collect();
                let answers: Vec<Inside<'_>> =
                    answers.iter().map(|(user, all)| Inside { user, answers: all.iter().collect() }).collect();
                let control: Vec<&Answer> = control.iter().collect();
                let own: Vec<String> =
                    harm.iter().filter(|harm| harm.by == probe.name).map(|harm| harm.words.clone()).collect();
                let terms = Terms { refusals, root: canaries.settings.root, claims: &claims, harm: &own };
                let (finding, told) = judge(&control, &answers, &terms);
                parts = told;
                finding
            }
            (Kind::Drill(run), None) => {
                let drill = Drill {
                    engine: wanted.engine,
                    wall: &wall,
                    spec: &spec,
                    program: &program,
                    host_program: &wanted.program,
                    canaries: &canaries,
                };
                run(&drill).await
            }
        };
        let took_ms = match probe.kind {
            Kind::Attempts { .. } => each,
            _ => clock.elapsed().as_millis() as u64,
        };
        results.push(result(probe, finding, parts, &harm, took_ms));
    }
    let after = canaries.harm();
    let all_harm: Vec<Harm> = harm.into_iter().chain(after).collect();
    results.push(of_canaries(&all_harm));
    let report = Report {
        started_ms: started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
        took_ms: clock.elapsed().as_millis() as u64,
        driver: wall.driver.clone(),
        isolation: wall.isolation.to_string(),
        kernel: kernel(),
        host: canaries.settings.host_name.clone(),
        user: if canaries.settings.root {
            "root".into()
        } else {
            format!("user {}", rustix::process::getuid().as_raw())
        },
        version: env!("CARGO_PKG_VERSION").into(),
        digest: digest(&wanted.spec, radius, &wall, &wanted.program),
        configuration: describe(&wanted.spec),
        complete: wanted.only.is_empty(),
        weakened: wanted.spec.weaken.map(str::to_owned),
        results,
    };
    (wanted.finished)(&report).map_err(VerifyError::Unrecorded)?;
    Ok(report)
}

fn chosen(only: &[String]) -> Result<Vec<&'static Probe>, VerifyError> {
    let known = |name: &String| probes::ALL.iter().any(|probe| probe.name == name);
    if let Some(unknown) = only.iter().find(|name| !known(name)) {
        let names: Vec<&str> = probes::ALL.iter().map(|probe| probe.name).collect();
        return Err(VerifyError::Unknown(unknown.clone(), names.join(", ")));
    }
    Ok(probes::ALL.iter().filter(|probe| only.is_empty() || only.iter().any(|name| name == probe.name)).collect())
}

/// What the wall does not even claim.
fn missing(probe: &Probe, wall: &DriverReport) -> Option<String> {
    let feature = probe.needs.iter().find(|feature| !wall.claims(**feature))?;
    Some(format!("this wall does not claim: {feature}"))
}

/// The spec with the program for attempts in it, and where that is.
fn equipped(spec: &Spec, folder: &Path) -> (Spec, String) {
    let mut spec = spec.clone();
    // Masked anew for each of dozens of sandboxes, it would prove nothing more.
    spec.data = Vec::new();
    let own_root = spec.isolation != Isolation::Process;
    for name in ["probe", "shown"] {
        let from = folder.join(name);
        let to = if own_root { PathBuf::from(format!("/sloplet-{name}")) } else { from.clone() };
        spec.mounts.push(Bind { from, to, ..Bind::default() });
    }
    let program = if own_root { "/sloplet-probe".to_owned() } else { folder.join("probe").display().to_string() };
    (spec, program)
}

/// Makes the attempts unconfined.
async fn on_host(program: &Path, canaries: &Canaries, names: &[&str]) -> io::Result<Vec<Answer>> {
    let mut command = HostCommand::new(program);
    command.args([SUBCOMMAND, "run"]).args(names).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    // What an attempt cannot remove, because it has left the root, say, goes with the canaries.
    command.env("TMPDIR", canaries.folder().join("attempts"));
    let input = serde_json::to_vec(&canaries.settings)?;
    let output = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(&input)?;
        }
        child.wait_with_output()
    });
    let output = output.await.map_err(io::Error::other)??;
    Ok(answers(&output.stdout))
}

/// Makes them inside, as the sandbox's user and, where there is one, as root.
async fn inside(
    engine: &Engine,
    spec: &Spec,
    program: &str,
    canaries: &Canaries,
    names: &[&str],
) -> Result<Vec<(String, Vec<Answer>)>, VerifyError> {
    let sandbox = engine.create(spec.clone(), &Patron { ear: true, ..Patron::plain("verify") }).await?;
    let shown = if spec.isolation == Isolation::Process {
        canaries.settings.read_only.clone()
    } else {
        PathBuf::from("/sloplet-shown/read-only")
    };
    let victim = if spec.isolation == Isolation::Process { sandbox.pid().unwrap_or(1) } else { 1 };
    let settings = Settings { inside: true, victim, address: 0, read_only: shown, ..canaries.settings.clone() };
    let mut all = Vec::new();
    let usual = attempts(&sandbox, program, &settings, names, None).await?;
    all.push((spec.user.clone().unwrap_or_else(|| "user".into()), usual));
    if !matches!(spec.user.as_deref(), Some("root" | "0")) {
        match attempts(&sandbox, program, &settings, names, Some("0")).await {
            Ok(answers) => all.push(("root".to_owned(), answers)),
            // There is no root in it.
            Err(error) if error.failure().is_some() => {}
            Err(error) => return Err(error.into()),
        }
    }
    sandbox.destroy().await?;
    Ok(all)
}

async fn attempts(
    sandbox: &Sandbox,
    program: &str,
    settings: &Settings,
    names: &[&str],
    user: Option<&str>,
) -> Result<Vec<Answer>, ClientError> {
    let words = [program, SUBCOMMAND, "run"].into_iter().chain(names.iter().copied());
    let command = Command {
        stdin: true,
        user: user.map(str::to_owned),
        timeout: Some(if settings.own_kernel { PATIENCE_WITH_OWN_KERNEL } else { PATIENCE }),
        ..Command::new(words.map(str::as_bytes))
    };
    let mut process = sandbox.exec(command).await?;
    if let Some(mut stdin) = process.take_stdin() {
        let text = serde_json::to_vec(settings).unwrap_or_default();
        let _ = stdin.write(text).await;
    }
    Ok(answers(&process.output(ANSWERS).await?.stdout))
}

/// Lines that are no answers are nobody's.
fn answers(text: &[u8]) -> Vec<Answer> {
    text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

fn result(
    probe: &Probe,
    finding: Finding,
    parts: Vec<crate::report::Part>,
    harm: &[Harm],
    took_ms: u64,
) -> ProbeResult {
    let canary = match (&probe.kind, finding.verdict, harm.is_empty()) {
        (_, Verdict::NotApplicable, _) | (Kind::Drill(_), ..) => String::new(),
        (_, _, true) => "files, processes, sockets, settings and binary of the host are as they were".to_owned(),
        (_, _, false) => told(harm),
    };
    ProbeResult {
        probe: probe.name.to_owned(),
        ids: probe.ids.to_vec(),
        tries: probe.tries.to_owned(),
        why: probe.why.to_owned(),
        verdict: finding.verdict,
        control: finding.control,
        detail: finding.detail,
        canary,
        parts,
        took_ms,
    }
}

/// The last word is the host's own.
fn of_canaries(harm: &[Harm]) -> ProbeResult {
    ProbeResult {
        probe: "canaries".into(),
        ids: Vec::new(),
        tries: "everything above, as seen from the host".into(),
        why: "a refusal can lie; what was planted on the host cannot".into(),
        verdict: if harm.is_empty() { Verdict::Contained } else { Verdict::Breach },
        control: "connections of the controls were seen by the same sockets".into(),
        detail: if harm.is_empty() {
            "nothing on the host was changed, read, killed or called".into()
        } else {
            told(harm)
        },
        canary: String::new(),
        parts: Vec::new(),
        took_ms: 0,
    }
}

/// The running kernel.
pub fn kernel() -> String {
    let name = rustix::system::uname();
    format!(
        "{} {} {}",
        name.sysname().to_string_lossy(),
        name.release().to_string_lossy(),
        name.machine().to_string_lossy()
    )
}

/// A configuration for people.
fn describe(spec: &Spec) -> String {
    let limits = &spec.limits;
    let mut text = format!(
        "image {}, isolation {}, memory {}, cpus {}, pids {}, disk {}, timeout {}, user {}",
        spec.image,
        spec.isolation,
        limits.memory,
        limits.cpus,
        limits.pids,
        limits.disk,
        limits.timeout,
        spec.user.as_deref().unwrap_or("user")
    );
    for mount in &spec.mounts {
        let mode = if mount.writable { "rw" } else { "ro" };
        text.push_str(&format!(", mount {}:{}:{mode}", mount.from.display(), mount.to.display()));
    }
    if spec.best_effort {
        text.push_str(", best effort");
    }
    text
}
